"""A fitted sparse PCA: frozen arrays, and the scores of rows by least squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np

from streampca.errors import CorruptDataError
from streampca.models.pca import Array, Floats, project, scores_dtype


@dataclass(frozen=True, eq=False)
class SparseModel:
    """Sparse components of unit length, not orthogonal in general; a component that the penalty left nothing of is zero.

    The variances (divisor n - 1) are adjusted: what each component explains beyond those before it.
    """

    components: Floats  # k x d
    mean: Floats
    scale: Floats  # what each column is divided by; ones unless standardised
    explained_variance: Floats
    total_variance: float
    n_samples: int
    n_iter: int
    change: float  # of the components in the last iteration

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.components)

    @property
    def n_features(self) -> int:
        """Number of columns of the data."""
        return len(self.mean)

    @property
    def explained_variance_ratio(self) -> Floats:
        """The adjusted variances as parts of the total."""
        return self.explained_variance / (self.total_variance or 1.0)

    def transform(self, block: Array) -> Array:
        """Return the scores Z that make ``mean + scale * (Z @ components)`` the nearest to the rows: least squares."""
        return project(block, self.mean, self._projection)

    def inverse_transform(self, scores: Array) -> Array:
        """Return the rows that the scores stand for: float32 for float32 scores, else float64."""
        dtype = scores_dtype(scores.dtype)
        rows = scores.astype(dtype, copy=False) @ (self.components * self.scale).astype(dtype, copy=False)
        result: Array = (rows + self.mean).astype(dtype, copy=False)
        return result

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the model that ``to_arrays`` described, after checking that its parts fit together."""
        wanted = {field.name for field in fields(cls)}
        if arrays.keys() != wanted or arrays["components"].ndim != 2:
            raise CorruptDataError(f"a model has the arrays {', '.join(sorted(wanted))}, but these are stored: {', '.join(sorted(arrays))}")
        k, d = arrays["components"].shape
        expected = {"components": (k, d), "mean": (d,), "scale": (d,), "explained_variance": (k,)}
        for name, array in arrays.items():
            if array.shape != expected.get(name, ()) or not np.isfinite(array).all():
                raise CorruptDataError(f"array {name!r} of the model has shape {array.shape} or entries that do not fit the others")
        plain: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return cls(**plain)

    @cached_property
    def _projection(self) -> Floats:
        """What a centred row is multiplied by (d x k): the pseudo-inverse, which is the transpose where components are orthogonal."""
        inverse: Floats = np.linalg.pinv(self.components) / self.scale[:, None]
        return inverse
