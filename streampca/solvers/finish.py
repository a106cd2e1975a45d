"""The last step of every PCA: from leading variances and directions, whatever solver found them, to the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from streampca.models.pca import Floats, PCAModel
from streampca.solvers.spectrum import Options, Spectrum, fix_signs


@dataclass(frozen=True)
class Sample:
    """What is known of the rows beside their directions. ``weight`` is their number, or the sum of their weights."""

    mean: Floats
    scale: Floats
    rows: int
    weight: float
    trace: float  # of the covariance of the scaled columns, divisor weight - 1

    @property
    def limit(self) -> int:
        """The most components that are told of; rows that count several times are as many rows."""
        return min(max(self.rows, int(self.weight)), len(self.mean))


@dataclass(frozen=True)
class Found:
    """Leading variances, their directions (one per row), and how far off these are: |S v - l v| / l each, and 1 - MEV."""

    variances: Floats
    vectors: Floats
    residuals: Floats
    subspace_error: float
    tail: Floats | None = None  # the variances that follow, if they are known
    spectrum: Floats | None = None  # all variances that a choice of the number may be made from


def exactly(spectrum: Spectrum, k: int, residuals: Floats, rank: int) -> Found:
    """Return the first k of the eigenpairs of an exact solver, of which only rounding makes ``residuals``.

    Beyond the rank, what rounding made of the directions is replaced by others that depend on the first ones alone, so that
    all solvers, and repeated rows and weights, agree on them.
    """
    variances = spectrum.variances
    residuals = np.minimum(residuals, 1.0)
    tail = variances[k:] if len(variances) == spectrum.vectors.shape[1] else None
    following = variances[k] if k < len(variances) else 0.0
    gap = np.maximum(variances[:k] - following, 1e-16 * variances[:k] + np.finfo(np.float64).tiny)
    errors = np.minimum(residuals[:k] * (variances[:k] / gap), 1.0) ** 2 if k < spectrum.vectors.shape[1] else np.zeros(k)
    vectors = spectrum.vectors[:k] if rank >= k else orthonormal_rows(spectrum.vectors[:rank], k)
    return Found(variances[:k], vectors, residuals[:k], float(errors.mean()), tail, variances)


def pca_model(sample: Sample, found: Found, options: Options) -> PCAModel:
    """Return the model of what was found."""
    variances, trace, k = found.variances, sample.trace, len(found.variances)
    rest = max(trace - float(variances.sum()), 0.0) if k < sample.limit else 0.0
    if found.tail is not None:  # the sum of small parts is more accurate than the difference of large ones
        rest = float(found.tail.sum())
    return PCAModel(
        components=fix_signs(found.vectors),
        mean=sample.mean,
        scale=sample.scale,
        explained_variance=variances,
        explained_variance_ratio=variances / trace if trace > 0 else np.zeros(k),
        singular_values=np.sqrt(variances * (sample.weight - 1)),
        noise_variance=rest / (sample.limit - k) if k < sample.limit else 0.0,
        total_variance=trace,
        n_samples=sample.rows,
        whiten=options.whiten,
        residuals=found.residuals,
        subspace_error=found.subspace_error,
        spectrum=found.variances if found.spectrum is None else found.spectrum,
        weight=sample.weight,
    )


def orthonormal_rows(vectors: Floats, wanted: int, seed: int | None = None) -> Floats:
    """Return ``wanted`` orthonormal rows: the given ones, nearly orthonormal already, and others where they are too few.

    >>> orthonormal_rows(np.array([[1.0, 1e-9, 0.0]]), 2).round(6).shape
    (2, 3)
    """
    rows = np.zeros((wanted, vectors.shape[1]))
    rows[: len(vectors)] = vectors
    given = _by_cholesky(rows[: len(vectors)])
    if given < wanted:
        rows[given:] = np.random.default_rng(seed or 0).standard_normal((wanted - given, rows.shape[1]))
        for _ in range(2):  # twice is enough
            rows[given:] -= (rows[given:] @ rows[:given].T) @ rows[:given]
        rows[given:] = linalg.qr(rows[given:].T, mode="economic", check_finite=False)[0].T
    return rows


def _by_cholesky(rows: Floats) -> int:
    """Make nearly orthonormal rows orthonormal, in place; return how many there are."""
    if len(rows):
        lower = linalg.cholesky(rows @ rows.T, lower=True, check_finite=False)
        inverse = linalg.solve_triangular(lower, np.eye(len(rows)), lower=True, check_finite=False)
        panel = max(2**17 // len(rows), 256)
        for start in range(0, rows.shape[1], panel):
            rows[:, start : start + panel] = inverse @ rows[:, start : start + panel]
    return len(rows)
