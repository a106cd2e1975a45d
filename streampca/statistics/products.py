"""The scatter matrix times a thin basis, in one pass: what subspace iteration, Rayleigh-Ritz and EM ask of the data.

Rows are shifted by a pivot near their mean, so that what is left of the mean is taken out at the end without cancellation.
Products are multiplied strip by strip in ``precision`` and added to ``sums`` of a precision of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streampca import buffers
from streampca.errors import UsageError
from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import check_sum, subtract
from streampca.statistics.scatter import Precision

_STRIP_BYTES = 8 * 2**20
_STRIP_ROWS = (64, 4096)  # at least, so that adding a product to the sums is cheap beside it; at most, for float32's sake
_PANEL_BYTES = 2**20  # of a product: it is added to the sums while it is in the processor's own cache


class Products(Statistic):
    """Count and mean of rows, their total variation, and the centred scatter matrix times a basis.

    Parameters
    ----------
    basis : ndarray of shape (n_features, m)
        What the scatter matrix is multiplied by.
    pivot : ndarray of shape (n_features,)
        A point near the mean.
    scale : ndarray of shape (n_features,), optional
        What each column is divided by.
    precision, sums : {"float64", "float32"}
        Of the products, and of the sums.

    >>> products = Products(np.array([[1.0], [0.0]]), np.zeros(2))
    >>> products.update(np.array([[0.0, 1.0], [2.0, 3.0]]))
    >>> products.mean, products.products.tolist(), products.total
    (array([1., 2.]), [[2.0], [2.0]], 4.0)
    """

    def __init__(
        self, basis: Array, pivot: Floats, scale: Floats | None = None, precision: Precision = "float64", sums: Precision = "float64"
    ) -> None:
        self.precision: Precision = precision
        self._basis: Array | None = np.ascontiguousarray(basis, precision)
        self._pivot: Floats = pivot.astype(precision).astype(np.float64)  # what is subtracted, to the last bit
        self._scale: Floats = np.ones(len(pivot)) if scale is None else scale
        self._unscaled = scale is None
        self._count, self._rows = 0.0, 0
        self._offset: Floats = np.zeros(len(pivot))  # sum of the shifted, scaled rows
        self._scores: Floats = np.zeros(basis.shape[1])  # sum of their products with the basis
        self._total = 0.0  # sum of their squares
        self._sums: Array = np.zeros((len(pivot), basis.shape[1]), sums)
        self._buffer: NDArray[np.uint8] | None = None

    @property
    def tolerance(self) -> float:
        """Relative to the norm of a column of products."""
        return 1e-12 if self.precision == "float64" and self._sums.dtype == np.float64 else 1e-6

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self._offset)

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of their weights."""
        return self._rows if self._count == self._rows else self._count

    @property
    def mean(self) -> Floats:
        """Mean of each column."""
        return self._pivot + self._offset * (self._scale / max(self._count, 1e-300))

    @property
    def products(self) -> Array:
        """The sum of (x - mean)(x - mean)^T, times the basis (n_features x m)."""
        return self._corrected(self._sums.copy())

    def take(self) -> Array:
        """Return the products without a copy; nothing else may be asked afterwards."""
        return self._corrected(self._sums)

    def _corrected(self, sums: Array) -> Array:
        """Take what is left of the mean out of sums, in place."""
        share = self._scores / max(self._count, 1e-300)
        panel = _panel(len(share))
        for start in range(0, self.n_features, panel):
            columns = slice(start, start + panel)
            sums[columns] -= np.outer(self._offset[columns], share)
        return sums

    @property
    def total(self) -> float:
        """The sum of all squared deviations from the mean."""
        return max(self._total - float(self._offset @ self._offset) / self._count, 0.0) if self._count else 0.0

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        sums: Any = self._sums.dtype.name
        return partial(type(self), self._constant_basis(), self._pivot, None if self._unscaled else self._scale, self.precision, sums)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        basis, height = self._constant_basis(), strip_rows(self.n_features, self.precision)
        if weights is not None:
            check_sum(weights)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for start in range(0, len(block), height):
                rows = slice(start, start + height)
                if not self._add_strip(block[rows], basis, None if weights is None else weights[rows]):
                    refuse_nonfinite(block)

    def _constant_basis(self) -> Array:
        """Return the basis, which a restored statistic does not have."""
        if self._basis is None:
            raise UsageError("restored products can be merged and read, but their basis was not stored: more rows cannot be added")
        return self._basis

    def _add_strip(self, strip: Array, basis: Array, weights: Floats | None) -> bool:
        """Fold in a few rows; return whether their sums are finite."""
        shifted = self._shifted(strip)
        squares = np.einsum("ij,ij->i", shifted, shifted)
        if not np.isfinite(squares).all():
            return False
        scores = shifted @ basis
        each: Array = np.ones(len(strip), shifted.dtype)
        if weights is not None:
            each = weights.astype(shifted.dtype)
            scores *= each[:, None]
        self._count += len(strip) if weights is None else float(weights.sum())
        self._rows += len(strip) if weights is None else int(np.count_nonzero(weights))
        self._offset += each @ shifted
        self._scores += scores.sum(axis=0, dtype=np.float64)
        self._total += float((squares if weights is None else squares * weights).sum(dtype=np.float64))
        panel = _panel(scores.shape[1])
        for start in range(0, self.n_features, panel):
            columns = slice(start, start + panel)
            self._sums[columns] += shifted[:, columns].T @ scores
        return True

    def _shifted(self, strip: Array) -> Array:
        """Return the strip, less the pivot and divided by the scale, in the buffer."""
        dtype = np.dtype(self.precision)
        if self._buffer is None:
            self._buffer = buffers.borrow(strip_rows(self.n_features, self.precision) * self.n_features * dtype.itemsize)
        shifted = self._buffer[: strip.size * dtype.itemsize].view(dtype).reshape(strip.shape)
        subtract(strip, self._pivot, shifted)
        if not self._unscaled:
            shifted /= self._scale.astype(dtype)
        return shifted

    def merge(self, other: Self) -> None:  # noqa: D102
        self._count += other._count
        self._rows += other._rows
        self._offset += other._offset
        self._scores += other._scores
        self._total += other._total
        self._sums += other._sums

    def release(self) -> None:  # noqa: D102
        if self._buffer is not None:
            buffers.give_back(self._buffer)
        self._buffer = None

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            "count": np.array(self._count),
            "rows": np.array(self._rows, np.int64),
            "total": np.array(self._total),
            "precision": np.array(np.dtype(self.precision).itemsize, np.int64),
            "pivot": self._pivot,
            "scale": self._scale,
            "offset": self._offset,
            "scores": self._scores,
            "sums": self._sums,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        products = cls.__new__(cls)
        products.precision = "float32" if int(arrays["precision"]) == 4 else "float64"
        products._basis = products._buffer = None
        products._pivot, products._scale, products._unscaled = arrays["pivot"], arrays["scale"], False
        products._count, products._rows, products._total = float(arrays["count"]), int(arrays["rows"]), float(arrays["total"])
        products._offset, products._scores, products._sums = arrays["offset"], arrays["scores"], arrays["sums"]
        return products

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self._sums.nbytes + self._scores.nbytes + 3 * self._offset.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self._sums.shape[1], self.precision)


def state_bytes(n_features: int, width: int, sums: Precision = "float64") -> int:
    """Return the bytes of a state, without making one."""
    return n_features * (width * np.dtype(sums).itemsize + 24) + 8 * width


def workspace_bytes(n_features: int, width: int, precision: Precision) -> int:
    """Return the bytes that updates need beside the state: the shifted strip, its scores, a panel of products, vectors."""
    itemsize, rows = np.dtype(precision).itemsize, strip_rows(n_features, precision)
    return itemsize * (rows * (n_features + 3 * width + 8) + 2 * _panel(width) * width) + 6 * 8 * n_features


def strip_rows(n_features: int, precision: Precision) -> int:
    """Return the rows that are multiplied at once."""
    low, high = _STRIP_ROWS
    return min(max(_STRIP_BYTES // (n_features * np.dtype(precision).itemsize), low), high)


def _panel(width: int) -> int:
    """Return the columns whose products are added at once."""
    return max(_PANEL_BYTES // (8 * max(width, 1)), 64)
