"""A fitted PCA: frozen arrays, and what can be computed from them alone, block by block.

Blocks are centred before they are projected, a strip at a time, so a large mean costs no accuracy and no copy of the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streampca.errors import CorruptDataError, UsageError
from streampca.statistics.base import refuse_nonfinite

Array = NDArray[Any]
Floats = NDArray[np.float64]

STRIP_ROWS = 2048
_STRIP_BYTES = 2**19  # of centred rows: they are multiplied while they are in the processor's own cache


@dataclass(frozen=True, eq=False)
class PCAModel:
    """Principal components with scikit-learn's meanings (divisor n - 1 in the variances).

    With ``scale`` other than one, the components and variances are those of the standardised columns.
    """

    components: Floats  # k x d, orthonormal rows
    mean: Floats
    scale: Floats  # what each column is divided by; ones unless standardised
    explained_variance: Floats
    explained_variance_ratio: Floats
    singular_values: Floats
    noise_variance: float
    total_variance: float
    n_samples: int
    residuals: Floats  # |S v - l v| / l of each component, as far as it is known
    subspace_error: float  # estimated 1 - MEV against the exact components
    whiten: bool = False
    spectrum: Floats | None = None  # all variances that the solver knows, those of the components first
    weight: float | None = None  # the sum of the rows' weights; the number of rows without
    held_out: Floats | None = None  # mean log-likelihoods of held-out rows with 0, 1, 2, ... components, where they were chosen by these

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.components)

    @property
    def n_features(self) -> int:
        """Number of columns of the data."""
        return len(self.mean)

    def transform(self, block: Array) -> Array:
        """Return the scores of rows: float32 for float32 rows, else float64."""
        return project(block, self.mean, self._projection)

    def inverse_transform(self, scores: Array) -> Array:
        """Return the rows that the scores stand for: float32 for float32 scores, else float64."""
        dtype = scores_dtype(scores.dtype)
        back = (self.components * self.scale) * (self._whitening[:, None] if self.whiten else 1.0)
        rows = scores.astype(dtype, copy=False) @ back.astype(dtype, copy=False)
        result: Array = (rows + self.mean).astype(dtype, copy=False)
        return result

    def score_samples(self, block: Array) -> Floats:
        """Return the log-likelihood of each row under the probabilistic PCA model of the components and noise variance."""
        self._check_density()
        d, k = self.n_features, self.n_components
        constant = d * np.log(2 * np.pi) + self._log_determinant
        result = np.empty(len(block))
        with np.errstate(invalid="ignore", over="ignore"):
            for rows in _strips(len(block)):
                centred = np.subtract(block[rows], self.mean, dtype=np.float64) / self.scale
                scores = centred @ self.components.T
                distance = np.einsum("ij,ij,j->i", scores, scores, 1 / self.explained_variance)
                if k < d:
                    centred -= scores @ self.components
                    distance += np.einsum("ij,ij->i", centred, centred) / self.noise_variance
                result[rows] = -0.5 * (distance + constant)
        if not np.isfinite(result).all():
            refuse_nonfinite(block)
        return result

    def covariance(self) -> Floats:
        """Return the d x d covariance of the model: that of the components plus isotropic noise."""
        excess = np.maximum(self.explained_variance - self.noise_variance, 0.0)
        covariance = (self.components.T * excess) @ self.components
        covariance.flat[:: self.n_features + 1] += self.noise_variance
        covariance *= self.scale
        covariance *= self.scale[:, None]
        return covariance

    def precision(self) -> Floats:
        """Return the inverse of ``covariance()``, from the components alone."""
        self._check_density()
        if self.n_components == self.n_features:
            precision = (self.components.T / self.explained_variance) @ self.components
        else:
            deficit = 1 / self.noise_variance - 1 / np.maximum(self.explained_variance, self.noise_variance)
            precision = -(self.components.T * deficit) @ self.components
            precision.flat[:: self.n_features + 1] += 1 / self.noise_variance
        precision /= self.scale
        precision /= self.scale[:, None]
        return precision

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: np.asarray(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the model that ``to_arrays`` described, after checking that its parts fit together."""
        wanted = {field.name for field in fields(cls)}
        if not wanted - {"spectrum", "weight", "held_out"} <= arrays.keys() <= wanted or arrays["components"].ndim != 2:
            raise CorruptDataError(f"a model has the arrays {', '.join(sorted(wanted))}, but these are stored: {', '.join(sorted(arrays))}")
        k, d = arrays["components"].shape
        by_component = ("explained_variance", "explained_variance_ratio", "singular_values", "residuals")
        expected = {"mean": (d,), "scale": (d,), **dict.fromkeys(by_component, (k,))}
        for name in {"spectrum", "held_out"} & arrays.keys():
            expected[name] = (max(arrays[name].size, 1),)
        for name, array in arrays.items():
            if array.shape != expected.get(name, (k, d) if name == "components" else ()) or not np.isfinite(array).all():
                raise CorruptDataError(f"array {name!r} of the model has shape {array.shape} or entries that do not fit the others")
        plain: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return cls(**plain)

    @cached_property
    def _whitening(self) -> Floats:
        """Standard deviation of each component, never zero."""
        return np.maximum(np.sqrt(self.explained_variance), np.finfo(np.float64).eps)

    @cached_property
    def _projection(self) -> Floats:
        """What a centred row is multiplied by (d x k)."""
        projection = np.ascontiguousarray(self.components.T) / self.scale[:, None]
        return projection / self._whitening if self.whiten else projection

    @property
    def _log_determinant(self) -> float:
        d, k = self.n_features, self.n_components
        noise = (d - k) * np.log(self.noise_variance) if k < d else 0.0
        return float(np.log(self.explained_variance).sum() + noise + 2 * np.log(self.scale).sum())

    def _check_density(self) -> None:
        if (self.n_components < self.n_features and self.noise_variance <= 0) or not (self.explained_variance > 0).all():
            raise UsageError(
                "the model's covariance is singular (some direction has no variance), so it has no density and no inverse: "
                f"fit fewer than {self.n_components} components"
            )


def scores_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of scores: float32 for float32 data, else float64."""
    return np.dtype(np.float32) if dtype == np.float32 else np.dtype(np.float64)


def project(block: Array, mean: Floats, projection: Floats) -> Array:
    """Return ``(block - mean) @ projection``, centred before it is multiplied: float32 for float32 rows, else float64."""
    dtype = scores_dtype(block.dtype)
    pivot = mean.astype(dtype)
    basis = projection.astype(dtype, copy=False)
    rest = ((mean - pivot) @ projection).astype(dtype)  # what rounding the mean to float32 left out
    scores = np.empty((len(block), projection.shape[1]), dtype)
    height = max(_STRIP_BYTES // (len(mean) * dtype.itemsize), 16)
    centred = np.empty((min(height, len(block)), len(mean)), dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for rows in _strips(len(block), height):
            strip = np.subtract(block[rows], pivot, out=centred[: rows.stop - rows.start], dtype=dtype, casting="same_kind")
            np.dot(strip, basis, out=scores[rows])
        scores -= rest
    if not np.isfinite(scores).all():
        refuse_nonfinite(block)
    return scores


def _strips(rows: int, height: int = STRIP_ROWS) -> Iterator[slice]:
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))
