"""Feature maps f with f(x) . f(y) = k(x, y), nearly: what turns kernel PCA into PCA of streamed features.

A map is a picklable value; blocks are mapped in strips that stay in the processor's cache, so that nothing as tall as
the data is ever held. The maps themselves are in ``nystrom.py`` and ``fourier.py``.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, Self

import numpy as np

from streampca.errors import NonFiniteError
from streampca.statistics.base import Array, Floats
from streampca.statistics.scatter import Scatter

STRIP_BYTES = 2**20  # of a strip of values, by measurement: the second-level cache
_STRIP_ROWS = (32, 4096)


class FeatureMap(ABC):
    """Rows of n_features_in columns to rows of n_features_out features. Subclasses are frozen dataclasses."""

    kind: str

    @property
    @abstractmethod
    def n_features_in(self) -> int:
        """Number of columns of the rows."""

    @property
    @abstractmethod
    def n_features_out(self) -> int:
        """Number of features."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the features: float32 or float64."""

    @abstractmethod
    def _map(self, strip: Array, out: Array) -> None:
        """Put the features of a few rows in ``out``, a C-ordered array."""

    @abstractmethod
    def _strip_scratch(self, rows: int) -> int:
        """Return the bytes that ``_map`` needs."""

    def transform(self, block: Array, out: Array | None = None) -> Array:
        """Return the features of the rows of a block.

        Parameters
        ----------
        block : ndarray of shape (n, n_features_in)
            Rows; a NaN or infinite entry raises ``NonFiniteError`` with its row and column.
        out : ndarray of shape (n, n_features_out), optional
            Where to put them: of the map's dtype, C-ordered.

        Returns
        -------
        ndarray of shape (n, n_features_out)
        """
        features: Array = np.empty((len(block), self.n_features_out), self.dtype) if out is None else out
        for rows in strips(len(block), self._strip_rows):
            try:
                self._map(block[rows], features[rows])
            except NonFiniteError as error:
                raise error.at(rows.start) from None
        return features

    def workspace(self, rows: int) -> int:
        """Return the bytes that transforming so many rows needs beside the block and the features."""
        return self._strip_scratch(min(rows, self._strip_rows)) + 4096

    @property
    def _strip_rows(self) -> int:
        low, high = _STRIP_ROWS
        width = max(self.n_features_out, self.n_features_in) * self.dtype.itemsize
        return min(max(STRIP_BYTES // width, low), high)

    @property
    def digest(self) -> str:
        """A short digest of all that the features depend on."""
        sha = hashlib.sha256(repr((self.kind, self.dtype.str, self._identity())).encode())
        for name, array in sorted(self.to_arrays().items()):
            sha.update(f"{name}{array.shape}{array.dtype.str}".encode())
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()[:32]

    def _identity(self) -> Any:
        return self.attributes()

    @abstractmethod
    def to_arrays(self) -> dict[str, Array]:
        """Return the map's arrays, by name."""

    @abstractmethod
    def attributes(self) -> dict[str, Any]:
        """Return what else there is, as JSON."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:
        """Return the map that ``to_arrays`` and ``attributes`` described."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes without what is prepared from the fields."""
        return type(self), tuple(getattr(self, each.name) for each in fields(self))  # type: ignore[arg-type]


class Rooted(Protocol):
    """What turns the scatter of raw kernel columns into that of features."""

    def features_of(self, columns: Scatter) -> Scatter:
        """Return the scatter of the features."""


@dataclass(frozen=True)
class FeaturePass:
    """One pass that gives the scatter of kernel features: what to stream, how to multiply, and what is left to do.

    ``scatter = finish(run("scatter", Scatter(features.n_features_out, ...)))`` on ``Mapped(source, features)``.
    """

    features: FeatureMap
    precision: Literal["auto", "float64"]  # "auto": float32 products are as good as for any data
    root: Rooted | None = None  # to be applied to the scatter of raw columns

    def finish(self, scatter: Scatter) -> Scatter:
        """Return the scatter of the features."""
        return scatter if self.root is None else self.root.features_of(scatter)


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of rows: a projection of features, or of raw kernel columns."""

    features: FeatureMap
    matrix: Floats  # features x components
    offset: Floats  # subtracted
    used: int  # leading features

    def transform(self, block: Array) -> Array:
        """Return the scores of the rows of a block, of the features' dtype."""
        dtype = self.features.dtype
        scores = np.empty((len(block), self.matrix.shape[1]), dtype)
        height = self.features._strip_rows
        values: Array = np.empty((min(height, len(block)), self.features.n_features_out), dtype)
        matrix = self.matrix.astype(dtype)
        for rows in strips(len(block), height):
            strip = values[: rows.stop - rows.start]
            try:
                self.features._map(block[rows], strip)
            except NonFiniteError as error:
                raise error.at(rows.start) from None
            scores[rows] = strip[:, : self.used] @ matrix - self.offset
        return scores


def strips(n_rows: int, height: int) -> Iterator[slice]:
    """Yield slices of at most ``height`` rows.

    >>> list(strips(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    for start in range(0, n_rows, height):
        yield slice(start, min(start + height, n_rows))
