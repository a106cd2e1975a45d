"""Exact PCA from one pass: the eigenvectors of the scatter matrix."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import linalg

from streampca.engine import in_pass
from streampca.errors import DataError
from streampca.models.pca import Floats, PCAModel
from streampca.planning.covariance import kept_vectors
from streampca.planning.criteria import HELD_OUT
from streampca.solvers.choice import count_components, known_spectrum
from streampca.solvers.finish import Sample, exactly, pca_model
from streampca.solvers.held_out import log_likelihoods
from streampca.solvers.spectrum import ONE_THREAD_LIMIT, Options, Spectrum, check_sum_of_weights
from streampca.statistics.scatter import STRIP_ROWS, Precision, Scatter
from streampca.statistics.split import SplitScatter

Run = Callable[[str, Any], Any]

FLOAT32_TOLERANCE = 1e-6  # the relative accuracy of a variance that is promised for float32 data
FLOAT32_ERROR = 0.05 * float(np.finfo(np.float32).eps)  # of a strip's products, in the largest variance (measured); independent of others'


def solve(n_features: int, options: Options, run: Run, *, precision: Precision, repeat: bool) -> tuple[PCAModel, Scatter]:
    """Return the model and the sums that it came from.

    With ``repeat``, products in float32 are done again in float64 when the spectrum turns out too steep for them.
    """
    if options.n_components == HELD_OUT:
        return _held_out(n_features, options, run)
    scatter: Scatter = run("scatter", Scatter(n_features, precision))
    model = model_of(scatter, options)
    if repeat and precision == "float32" and too_coarse(model, scatter.rows):
        scatter = run("scatter-float64", Scatter(n_features, "float64"))
        model = model_of(scatter, options)
    return model, scatter


def _held_out(n_features: int, options: Options, run: Run) -> tuple[PCAModel, Scatter]:
    """Return the model of all rows, with as many components as predict best those rows that were held out."""
    split: SplitScatter = run("split-scatter", SplitScatter(n_features))
    kept, held = split.kept, split.held
    if min(kept.rows, held.rows) < 2:
        raise DataError(f"n_components='held-out' has too few rows to hold some out ({kept.rows + held.rows}): use 'bic'")
    scale = column_scales(kept) if options.standardize else np.ones(n_features)
    shift = (held.mean - kept.mean) / scale
    second = held.scatter / (scale * scale[:, None] * float(held.count))
    second += np.outer(shift, shift)
    curve = log_likelihoods(eigenpairs(kept, scale, n_features), float(kept.count), second) - np.log(scale).sum()
    del second
    kept.merge(held)
    model = model_of(kept, replace(options, n_components=max(int(np.argmax(curve)), 1)))
    return replace(model, held_out=curve), kept


def model_of(scatter: Scatter, options: Options) -> PCAModel:
    """Return the PCA of accumulated sums; a row of weight w is w rows in all of it but the rank."""
    n, d = scatter.count, scatter.n_features
    check_sum_of_weights(n, scatter.rows)
    scale = column_scales(scatter) if options.standardize else np.ones(d)
    spectrum = eigenpairs(scatter, scale, kept_vectors(d, options.n_components))
    sample = Sample(scatter.mean, scale, scatter.rows, n, spectrum.trace)
    known = known_spectrum(spectrum.variances, scatter.rows, n, d, spectrum.trace)
    k = count_components(known, options.n_components, sample.limit)
    rank = int(np.count_nonzero(spectrum.variances > 4 * np.sqrt(d) * np.finfo(np.float64).eps * spectrum.variances[0]))
    residuals = _rounding(scatter) * spectrum.variances[0] / np.maximum(spectrum.variances, np.finfo(np.float64).tiny)
    return pca_model(sample, exactly(spectrum, k, residuals, rank), options)


def _rounding(scatter: Scatter) -> float:
    """Return the rounding errors of the sums and of their eigenvalues, relative to the largest."""
    products = 0.0 if scatter.precision == "float64" else FLOAT32_ERROR / np.sqrt(max(scatter.rows / STRIP_ROWS, 1.0))
    return float(products + np.sqrt(scatter.n_features) * np.finfo(np.float64).eps)


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


def column_scales(scatter: Scatter) -> Floats:
    """Return the standard deviation (divisor n) of each column, 1 where it is constant."""
    deviation = np.sqrt(scatter.scatter.diagonal() / scatter.count)
    return np.where(deviation > 0, deviation, 1.0)


def too_coarse(model: PCAModel, n_rows: int) -> bool:
    """Return whether rounding in float32 products may show in the smallest variance that was asked for."""
    strips = max(n_rows / STRIP_ROWS, 1.0)
    error = 2 * FLOAT32_ERROR * model.explained_variance[0] / np.sqrt(strips)
    return bool(error > FLOAT32_TOLERANCE * model.explained_variance[-1])
