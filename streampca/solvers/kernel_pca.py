"""Kernel PCA: exactly, from the kernel matrix of all rows, or as the one-pass PCA of streamed kernel features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np

from streampca.engine import in_pass
from streampca.kernels import ExactKernelPCA, FeatureMap, FourierMap, Kernel, KernelColumns, NystromMap, RidgePreimage
from streampca.kernels.error import Trace, frobenius_error, trace_of
from streampca.kernels.landmarks import Landmarks, Method, Sample, choose_landmarks
from streampca.models.kernel import KernelModel
from streampca.models.pca import Array, Floats, PCAModel
from streampca.planning.covariance import choose_precision
from streampca.planning.kernel import ERROR_ROWS, PREIMAGE_ROWS
from streampca.solvers.choice import Wanted, count_components, known_spectrum
from streampca.solvers.covariance import Run, model_of, too_coarse
from streampca.solvers.spectrum import Options
from streampca.sources.base import Source, SourceInfo
from streampca.statistics.scatter import Precision, Scatter

Over = Callable[[FeatureMap], tuple[Run, SourceInfo]]  # of features: what makes passes over them, and the facts of them as a source
_SMALL = 1e-12  # variances below this share of the largest are zero, as scikit-learn has it


# --- exactly --------------------------------------------------------------------------------------------------


def exactly(kernel: Kernel, rows: Array, wanted: Wanted) -> KernelModel:
    """Return the kernel PCA of rows that are all landmarks."""
    n = len(rows)
    with in_pass():
        found = ExactKernelPCA.fit(kernel, rows, wanted if isinstance(wanted, int) else None)
    k = found.n_components
    if not (wanted is None or isinstance(wanted, int)):
        variances = np.zeros(max(n - 1, 1))
        variances[:k] = found.eigenvalues[: n - 1] / (n - 1)
        known = known_spectrum(variances, n, float(n), n, found.total_variation / (n - 1))
        k = min(count_components(known, wanted, n), max(k, 1))
    values = found.eigenvalues[:k]
    inverse = np.divide(1.0, np.sqrt(values), out=np.zeros(k), where=values > 0)
    dual = found.vectors[:, :k] * inverse
    dual -= dual.mean(axis=0)  # centres a row's kernel values as the matrix was
    columns = KernelColumns(kernel, found.rows, np.dtype(np.float64), found.origin)
    ratios = values / found.total_variation if found.total_variation > 0 else np.zeros(k)
    share = found.negative_share or 0.0
    return KernelModel(columns, dual, found.column_means @ dual, np.full(n, 1 / n), values, ratios, n, float(n), 0.0, 0.0, share)


# --- by features ----------------------------------------------------------------------------------------------


def landmarks_of(source: Source, kernel: Kernel, sample: Sample, count: int, method: Method, seed: int) -> tuple[Landmarks, Array]:
    """Return landmarks chosen of a sample, and rows on which to measure the error of what they stand for.

    These are rows that the choice has not seen; unless the sample is all rows, where they are those that were not chosen.
    """
    n_sample = len(sample.rows)
    rng = np.random.default_rng([seed, 2])
    whole = n_sample >= source.info.n_rows or n_sample <= count + ERROR_ROWS
    held = np.zeros(n_sample, bool)
    if not whole:
        held[rng.choice(n_sample, ERROR_ROWS, replace=False)] = True
    pool = Sample(sample.rows[~held], sample.indices[~held])
    with in_pass():
        landmarks = choose_landmarks(source, kernel, count, method=method, seed=seed, sample=pool)
    if whole:
        held = ~np.isin(sample.indices, landmarks.indices)
    if np.count_nonzero(held) < 2:
        held[:] = True
    rows = np.flatnonzero(held)
    if len(rows) > ERROR_ROWS:  # drawn from everywhere: the order of the rows may mean something
        rows = np.sort(rng.choice(rows, ERROR_ROWS, replace=False))
    return landmarks, sample.rows[rows]


def nystrom_map(kernel: Kernel, landmarks: Array) -> NystromMap:
    """Return the feature map of landmarks."""
    with in_pass():
        return NystromMap.fit(kernel, landmarks)


def by_features(features: NystromMap | FourierMap, over: Over, wanted: Wanted, held: Array) -> tuple[KernelModel, Scatter]:
    """Return the kernel PCA whose kernel is the products of features, and the sums of its pass; its error is measured on ``held`` rows."""
    step = features.cheapest_pass()
    run, info = over(step.features)
    # Without a number the smallest variances count too: only float64 products have them right.
    precision: Precision = choose_precision(info, step.precision) if isinstance(wanted, int) else "float64"
    sums = run("scatter", Scatter(info.n_features, precision))
    model, scatter = _pca_of(features, sums, wanted)
    if step.precision == "auto" and precision == "float32" and too_coarse(model, scatter.rows):
        sums = run("scatter-float64", Scatter(info.n_features, "float64"))
        model, scatter = _pca_of(features, sums, wanted)
    return _kernel_model(features, model, scatter, _trace(features, scatter, sums, held), wanted, held), sums


def model_of_sums(features: NystromMap | FourierMap, sums: Scatter, wanted: Wanted, held: Array) -> KernelModel:
    """Return the kernel PCA that follows from the sums of ``by_features``, whatever rows they are of."""
    model, scatter = _pca_of(features, sums, wanted)
    return _kernel_model(features, model, scatter, _trace(features, scatter, sums, held), wanted, held)


def _pca_of(features: NystromMap | FourierMap, sums: Scatter, wanted: Wanted) -> tuple[PCAModel, Scatter]:
    """Return the PCA of the features, and their scatter."""
    scatter = features.cheapest_pass().finish(sums)
    return model_of(scatter, Options(min(wanted, features.n_features_out) if isinstance(wanted, int) else wanted)), scatter


def _kernel_model(
    features: NystromMap | FourierMap, model: PCAModel, scatter: Scatter, trace: Trace, wanted: Wanted, held: Array
) -> KernelModel:
    n = float(scatter.count)
    kept = model.explained_variance > _SMALL * model.explained_variance[0]
    scores = features.projected(model.components[kept], model.mean)
    # Beyond the rank there is nothing: eigenvalue and scores 0, as scikit-learn has it, if so many were asked for.
    k = wanted if isinstance(wanted, int) else max(int(kept.sum()), 1)
    eigenvalues = _padded(model.explained_variance[kept] * (n - 1), k)
    variation = float(scatter.scatter.trace()) + max(trace.total - trace.captured, 0.0)
    nystrom = features if isinstance(features, NystromMap) else None
    with in_pass():
        error = frobenius_error(features.kernel, features, held)
    found = KernelModel(
        features=features if nystrom is None else nystrom.columns,  # type: ignore[arg-type]
        matrix=_padded(scores.matrix, k),
        offset=_padded(scores.offset, k),
        mean_weights=None if nystrom is None else nystrom.coefficients(model.mean),
        eigenvalues=eigenvalues,
        explained_variance_ratio=eigenvalues / variation if variation > 0 else np.zeros(k),
        n_samples=model.n_samples,
        weight=n,
        frobenius_error=error,
        uncaptured_trace=_uncaptured(trace, features.kernel),
        negative_share=0.0 if nystrom is None else nystrom.negative_share,
    )
    signs = _signs(found, held if found.landmarks is None else found.landmarks)
    return replace(found, matrix=found.matrix * signs, offset=found.offset * signs)


def _trace(features: NystromMap | FourierMap, scatter: Scatter, sums: Scatter, held: Array) -> Trace:
    """Return the sums of k(x, x) and |f(x)|^2 over all rows, k(x, x) from the raw columns; where these were not streamed, from a sample."""
    known = trace_of(scatter)
    if features.kernel.unit_diagonal or not isinstance(features, NystromMap):
        return known
    if features.cheapest_pass().root is not None:
        return replace(known, total=features.columns.trace(sums))
    sampled = features.transform(held).astype(np.float64)
    captured = float(np.einsum("ij,ij->", sampled, sampled))
    whole = float(features.kernel.diagonal(features.columns.shifted(held)).sum())
    return replace(known, total=known.captured * whole / captured if captured > 0 else known.captured)


def _uncaptured(trace: Trace, kernel: Kernel) -> float:
    share = trace.uncaptured_share if trace.total != 0 else 0.0
    return max(share, 0.0) if kernel.definite else share  # else rounding


def preimage_rows(rows: Array) -> Array:
    """Return the rows of a sample that the way back is learned from."""
    return rows[:: -(-len(rows) // PREIMAGE_ROWS)]


def with_preimage(model: KernelModel, rows: Array, alpha: float | Literal["auto"]) -> KernelModel:
    """Return the model with a way back from scores to rows, learned from some rows."""
    rows = preimage_rows(rows)
    with in_pass():
        return replace(model, preimage=RidgePreimage.fit(model.transform(rows.astype(np.float64)), rows, alpha))


def _signs(model: KernelModel, rows: Array) -> Floats:
    """Return the signs that make the score of largest magnitude positive, whatever basis the features have."""
    scores = model.transform(rows)
    largest = scores[np.abs(scores).argmax(axis=0), np.arange(scores.shape[1])]
    return np.where(largest < 0, -1.0, 1.0)


def _padded(array: Floats, k: int) -> Floats:
    """Return an array with zeros up to k entries in its last axis."""
    padded = np.zeros((*array.shape[:-1], k))
    padded[..., : array.shape[-1]] = array
    return padded
