"""Exact PCA of few, long rows: eigenvectors of their n x n products, then one more pass for the components.

Both passes read slabs of columns: they run over the transposed table.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import linalg

from streampca.engine import in_pass
from streampca.models.pca import Array, Floats, PCAModel
from streampca.solvers.choice import count_components, known_spectrum
from streampca.solvers.finish import Found, Sample, orthonormal_rows, pca_model
from streampca.solvers.spectrum import ONE_THREAD_LIMIT, Options, Spectrum
from streampca.statistics.base import refuse_nonfinite
from streampca.statistics.gram import Gram, centre_rows
from streampca.statistics.scatter import Precision


class ColumnPasses(Protocol):
    """Passes over the features of a table, each a row of all samples."""

    def run(self, name: str, statistic: Gram) -> Gram:
        """Return the statistic of all features."""

    def collect(self, name: str, compute: Callable[[Array], Array], n_columns: int) -> Array:
        """Return what ``compute`` gives for every feature, in order."""


def solve(n_samples: int, options: Options, passes: ColumnPasses, precision: Precision, seed: int | None = None) -> PCAModel:
    """Return the model."""
    gram = passes.run("gram", Gram(n_samples, options.standardize, precision))
    n, d = n_samples, gram.count
    spectrum = _eigenpairs(gram, min(n, d))
    k = count_components(known_spectrum(spectrum.variances, n, n, d, spectrum.trace), options.n_components, min(n, d))
    values, U = spectrum.variances[:k], spectrum.vectors[:k]
    known = int(np.count_nonzero(values > n * np.finfo(precision).eps * 1e-3 * max(values[0], 0.0)))
    table = passes.collect("components", Loadings(U[:known].T, options.standardize, precision), known + 2)
    means, scale = table[:, -2].copy(), table[:, -1].copy()
    vectors = table[:, :known].T
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    vectors /= lengths[:, None]
    residuals = np.zeros(k)
    residuals[:known] = np.abs(lengths**2 / ((n - 1) * values[:known]) - 1)
    found = Found(values, orthonormal_rows(vectors, k, seed), residuals, 0.0, spectrum=spectrum.variances)
    del table, vectors
    return pca_model(Sample(means, scale, n, n, spectrum.trace), found, options)


@dataclass(frozen=True)
class Loadings:
    """X^T U of a slab of columns, with the mean and scale of each: what becomes a row of the components."""

    U: Floats
    standardize: bool
    precision: Precision

    def __call__(self, block: Array) -> Floats:
        """Return k + 2 numbers for each feature of the slab."""
        centred: Array = np.empty(block.shape, self.precision)
        with np.errstate(invalid="ignore", over="ignore"):
            means, deviations = centre_rows(block, centred)
        if not np.isfinite(deviations).all():
            refuse_nonfinite(block)
        scale = np.where(deviations > 0, deviations, 1.0) if self.standardize else np.ones(len(block))
        result = np.empty((len(block), self.U.shape[1] + 2))
        result[:, :-2] = centred @ self.U.astype(self.precision)
        result[:, :-2] /= scale[:, None]
        result[:, -2], result[:, -1] = means, scale
        return result


def _eigenpairs(gram: Gram, limit: int) -> Spectrum:
    """Return the eigenpairs of the n x n covariance, largest first."""
    K = gram.products / (gram.n_features - 1)
    trace = float(K.trace())
    with in_pass() if len(K) <= ONE_THREAD_LIMIT else nullcontext():
        values, vectors = linalg.eigh(K.T, lower=False, overwrite_a=True, check_finite=False, driver="evd")
    return Spectrum(np.maximum(values[::-1], 0.0)[:limit], np.ascontiguousarray(vectors.T[::-1])[:limit], trace)
