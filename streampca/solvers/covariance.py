"""Exact PCA from one pass: the eigenvectors of the scatter matrix."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from streampca.engine import in_pass
from streampca.errors import DataError
from streampca.models.pca import Floats, PCAModel
from streampca.planning.covariance import kept_vectors
from streampca.statistics.scatter import STRIP_ROWS, Precision, Scatter

Run = Callable[[str, Scatter], Scatter]

ONE_THREAD_LIMIT = 1500  # up to this width more BLAS threads mostly wait for each other
FLOAT32_TOLERANCE = 1e-6  # the relative accuracy of a variance that is promised for float32 data


@dataclass(frozen=True)
class Spectrum:
    """The leading eigenpairs of a covariance (divisor n - 1), largest first, and its exact trace."""

    variances: Floats
    vectors: Floats  # one per row
    trace: float


@dataclass(frozen=True)
class Options:
    """What is to be made of the sums."""

    n_components: int | float | None = None
    whiten: bool = False
    standardize: bool = False


def solve(n_features: int, options: Options, run: Run, *, precision: Precision, repeat: bool) -> tuple[PCAModel, Scatter]:
    """Return the model and the sums that it came from.

    With ``repeat``, products in float32 are done again in float64 when the spectrum turns out too steep for them.
    """
    scatter = run("scatter", Scatter(n_features, precision))
    model = model_of(scatter, options)
    if repeat and precision == "float32" and too_coarse(model, scatter.count):
        scatter = run("scatter-float64", Scatter(n_features, "float64"))
        model = model_of(scatter, options)
    return model, scatter


def model_of(scatter: Scatter, options: Options) -> PCAModel:
    """Return the PCA of accumulated sums."""
    n, d = scatter.count, scatter.n_features
    limit = min(n, d)
    scale = column_scales(scatter) if options.standardize else np.ones(d)
    spectrum = eigenpairs(scatter, scale, kept_vectors(d, options.n_components))
    k = count_components(spectrum, options.n_components, limit)
    variances, trace = spectrum.variances[:k], spectrum.trace
    rest = max(trace - variances.sum(), 0.0) if k < limit else 0.0
    if spectrum.variances.size == d:  # the sum of small parts is more accurate than the difference of large ones
        rest = float(spectrum.variances[k:].sum())
    return PCAModel(
        components=fix_signs(spectrum.vectors[:k]),
        mean=scatter.mean,
        scale=scale,
        explained_variance=variances,
        explained_variance_ratio=variances / trace if trace > 0 else np.zeros(k),
        singular_values=np.sqrt(variances * (n - 1)),
        noise_variance=rest / (limit - k) if k < limit else 0.0,
        total_variance=trace,
        n_samples=n,
        whiten=options.whiten,
    )


def eigenpairs(scatter: Scatter, scale: Floats, n_vectors: int) -> Spectrum:
    """Return the largest eigenpairs of the covariance of the columns divided by ``scale``."""
    d = scatter.n_features
    covariance = np.divide(scatter.scatter, scatter.count - 1)
    covariance /= scale
    covariance /= scale[:, None]
    if not np.isfinite(covariance.diagonal()).all():
        raise DataError("the values are so large that their squares overflow float64: rescale the data")
    trace = float(covariance.trace())
    # Row-major lower triangle = column-major upper triangle: pass the transpose so that LAPACK overwrites it in place.
    driver, subset = ("evd", None) if n_vectors == d else ("evr", (d - n_vectors, d - 1))
    with in_pass() if d <= ONE_THREAD_LIMIT else nullcontext():
        values, vectors = linalg.eigh(
            covariance.T, lower=False, overwrite_a=True, check_finite=False, driver=driver, subset_by_index=subset
        )
    return Spectrum(np.maximum(values[::-1], 0.0), np.ascontiguousarray(vectors.T[::-1]), trace)


def count_components(spectrum: Spectrum, n_components: int | float | None, limit: int) -> int:
    """Return the number of components: as asked for, or the fewest that explain more than a fraction of the variance."""
    if n_components is None:
        return limit
    if isinstance(n_components, int):
        return n_components
    if spectrum.trace <= 0:
        return 1
    explained = np.cumsum(spectrum.variances[:limit]) / spectrum.trace
    return min(int(np.searchsorted(explained, n_components, side="right")) + 1, limit)


def column_scales(scatter: Scatter) -> Floats:
    """Return the standard deviation (divisor n) of each column, 1 where it is constant."""
    deviation = np.sqrt(scatter.scatter.diagonal() / scatter.count)
    return np.where(deviation > 0, deviation, 1.0)


def fix_signs(components: Floats) -> Floats:
    """Return the components with their entry of largest magnitude positive.

    >>> fix_signs(np.array([[0.6, -0.8], [0.8, 0.6]])).tolist()
    [[-0.6, 0.8], [0.8, 0.6]]
    """
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return components * np.where(signs == 0, 1.0, signs)[:, None]


def too_coarse(model: PCAModel, n_rows: int) -> bool:
    """Return whether rounding in float32 products may show in the smallest variance that was asked for.

    The errors of strips are independent, each about a twentieth of float32's epsilon of the largest variance (measured).
    """
    strips = max(n_rows / STRIP_ROWS, 1.0)
    error = 2 * 0.05 * np.finfo(np.float32).eps * model.explained_variance[0] / np.sqrt(strips)
    return bool(error > FLOAT32_TOLERANCE * model.explained_variance[-1])
