"""A fitted independent component analysis: frozen arrays, the sources of rows, and the rows of sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from streampca.errors import CorruptDataError
from streampca.models.pca import Array, Floats, project, scores_dtype


@dataclass(frozen=True, eq=False)
class ICAModel:
    """Sources of unit variance: ``(x - mean) @ unmixing.T``, and back by the mixing matrix, largest column first."""

    unmixing: Floats  # k x d
    mixing: Floats  # d x k
    mean: Floats
    whitening: Floats  # k x d: what the rows were made white by before they were rotated
    total_variance: float
    n_samples: int
    n_rows_used: int  # how many of the rows the rotation was found from
    n_iter: int
    change: float  # of the rotation in the last iteration

    @property
    def n_components(self) -> int:
        """Number of sources."""
        return len(self.unmixing)

    @property
    def n_features(self) -> int:
        """Number of columns of the data."""
        return len(self.mean)

    @property
    def explained_variance_ratio(self) -> Floats:
        """The part of the variance that each source carries: they are uncorrelated, so that the parts add up."""
        sizes: Floats = np.einsum("ij,ij->j", self.mixing, self.mixing)
        return sizes / (self.total_variance or 1.0)

    def transform(self, block: Array) -> Array:
        """Return the sources of rows: float32 for float32 rows, else float64."""
        return project(block, self.mean, np.ascontiguousarray(self.unmixing.T))

    def inverse_transform(self, sources: Array) -> Array:
        """Return the rows that sources mix to: float32 for float32 sources, else float64."""
        dtype = scores_dtype(sources.dtype)
        rows = sources.astype(dtype, copy=False) @ self.mixing.T.astype(dtype, copy=False)
        result: Array = (rows + self.mean).astype(dtype, copy=False)
        return result

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the model that ``to_arrays`` described, after checking that its parts fit together."""
        wanted = {field.name for field in fields(cls)}
        if arrays.keys() != wanted or arrays["unmixing"].ndim != 2:
            raise CorruptDataError(f"a model has the arrays {', '.join(sorted(wanted))}, but these are stored: {', '.join(sorted(arrays))}")
        k, d = arrays["unmixing"].shape
        expected = {"unmixing": (k, d), "mixing": (d, k), "mean": (d,), "whitening": (k, d)}
        for name, array in arrays.items():
            if array.shape != expected.get(name, ()) or not np.isfinite(array).all():
                raise CorruptDataError(f"array {name!r} of the model has shape {array.shape} or entries that do not fit the others")
        plain: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return cls(**plain)
