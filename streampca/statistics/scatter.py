"""The scatter matrix in one pass: sum of (x - mean)(x - mean)^T, and with it the covariance.

Each block is shifted by a point near its own mean before it is multiplied, and blocks are joined by Chan's formula, so
neither a large mean nor sorted rows cancel. Sums are float64; with ``precision="float32"`` narrow data is multiplied
in float32 on short strips whose products are added in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Self

import numpy as np

from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import Centre, pivot_of, sample_of

Precision = Literal["float32", "float64"]

STRIP_ROWS = 2048  # by measurement: the product of a strip is at full BLAS speed, and 2048 float32 terms keep 3e-8
_PANEL_BYTES = 2**20
# A strip whose column sums of squares leave this range is multiplied in float64: float32 ends at 3e38 and 1e-38.
_FLOAT32_LOW, _FLOAT32_HIGH = 1e-25, 1e35


class Scatter(Statistic):
    """Count, mean and centred scatter matrix of rows.

    >>> scatter = Scatter(2)
    >>> scatter.update(np.array([[0, 1], [2, 1]]))
    >>> scatter.count, scatter.mean, scatter.scatter.tolist()
    (2, array([1., 1.]), [[2.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self, n_features: int, precision: Precision = "float64") -> None:
        self.precision: Precision = precision
        self.centre = Centre.empty(n_features)
        self.scatter: Floats = np.zeros((n_features, n_features))
        self._buffers: tuple[Array, Array] | None = None  # shifted strip and its product, as bytes

    @property
    def tolerance(self) -> float:
        """Relative to the square root of the product of two diagonal entries."""
        return 1e-12 if self.precision == "float64" else 1e-6

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.scatter)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.centre.count

    @property
    def mean(self) -> Floats:
        """Mean of each column."""
        return self.centre.mean

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features, self.precision)

    def update(self, block: Array) -> None:  # noqa: D102
        if len(block) == 0:
            return
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            pivot: Array = pivot_of(block)
            exactly = self.precision == "float32" and (not np.can_cast(block.dtype, np.float32) or _repeats_values(block, pivot))
            add = self._add_strip_exactly if exactly else self._add_strip
            pivot = pivot if exactly else pivot.astype(self.precision)
            sums = np.zeros(self.n_features)
            for start in range(0, len(block), STRIP_ROWS):
                add(block[start : start + STRIP_ROWS], pivot, sums)
            if not np.isfinite(sums).all():
                refuse_nonfinite(block)
        self._join(Centre(len(block), pivot.astype(np.float64), sums / len(block)))

    def _join(self, part: Centre) -> None:
        """Centre the part just added on its own mean, then join the two means."""
        within = part.offset * np.sqrt(part.count)
        between = self.centre.join(part)
        _add_rank_one(self.scatter, within, -1)
        _add_rank_one(self.scatter, between, +1)

    def _add_strip(self, strip: Array, pivot: Array, sums: Floats) -> None:
        """Add the products of a shifted strip to the scatter and its column sums to ``sums``."""
        shifted, product = self._views(len(strip), pivot.dtype)
        np.subtract(strip, pivot, out=shifted, dtype=shifted.dtype, casting="same_kind")
        np.dot(shifted.T, shifted, out=product)
        if pivot.dtype == np.float32 and not _within_float32(product.diagonal(), shifted):
            self._add_strip_exactly(strip, pivot, sums)
            return
        self.scatter += product
        sums += np.ones(len(strip), pivot.dtype) @ shifted

    def _add_strip_exactly(self, strip: Array, pivot: Array, sums: Floats) -> None:
        """Do in float64, within the same buffers, a strip that float32 cannot hold."""
        n_features, step = self.n_features, STRIP_ROWS // 2
        exact = pivot.astype(np.float64)
        panel = max(n_features // 2, 1)
        for start in range(0, len(strip), step):
            part = strip[start : start + step]
            shifted, product = self._views(len(part), exact.dtype, panel)
            np.subtract(part, exact, out=shifted, dtype=shifted.dtype, casting="same_kind")
            for left in range(0, n_features, panel):
                right = min(left + panel, n_features)
                np.dot(shifted[:, left:right].T, shifted, out=product[: right - left])
                self.scatter[left:right] += product[: right - left]
            sums += shifted.sum(axis=0)

    def _views(self, rows: int, dtype: np.dtype[Any], product_rows: int | None = None) -> tuple[Array, Array]:
        """Return the reused buffers as ``rows`` x d and ``product_rows`` x d arrays of a dtype."""
        n_features = self.n_features
        if self._buffers is None:
            itemsize = np.dtype(self.precision).itemsize
            strip_bytes = max(STRIP_ROWS * n_features * itemsize, 8)
            product_bytes = max(n_features * n_features * itemsize, 8 * n_features)
            self._buffers = np.empty(strip_bytes, np.uint8), np.empty(product_bytes, np.uint8)
        strip, product = (buffer[: buffer.size // dtype.itemsize * dtype.itemsize].view(dtype) for buffer in self._buffers)
        product_rows = n_features if product_rows is None else product_rows
        return (
            strip[: rows * n_features].reshape(rows, n_features),
            product[: product_rows * n_features].reshape(product_rows, n_features),
        )

    def merge(self, other: Self) -> None:  # noqa: D102
        self.scatter += other.scatter
        _add_rank_one(self.scatter, self.centre.join(other.centre), +1)

    def release(self) -> None:  # noqa: D102
        self._buffers = None

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {**self.centre.to_arrays(), "scatter": self.scatter, "precision": np.array(np.dtype(self.precision).itemsize, np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        scatter = cls.__new__(cls)
        scatter.precision = "float32" if int(arrays["precision"]) == 4 else "float64"
        scatter.centre = Centre.from_arrays(arrays)
        scatter.scatter = arrays["scatter"]
        scatter._buffers = None
        return scatter

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.centre.nbytes + self.scatter.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self.precision)


def state_bytes(n_features: int) -> int:
    """Return the bytes of a scatter state, without making one."""
    return 8 * n_features * (n_features + 2)


def workspace_bytes(n_features: int, precision: Precision) -> int:
    """Return the bytes that updates need beside the state: strip, product, pivot sample and vectors."""
    itemsize = np.dtype(precision).itemsize
    buffers = (STRIP_ROWS + n_features) * n_features * itemsize
    return buffers + 8 * n_features * (2 * 256 + 16) + 2 * _PANEL_BYTES


def _repeats_values(block: Array, pivot: Floats) -> bool:
    """Return whether some column repeats values that have more than eight bits, so that float32 sums of products are biased.

    Squares of multiples of one unit are not rounded at random (modulo 4 they are 0 or 1): of integers with a standard deviation
    of 300, or float32 with a mean 20,000 times that, sums over strips were off by 2e-6, all in the same direction.
    Products of eight-bit numbers are exact.
    """
    sample = sample_of(block)
    sample -= pivot
    unit = np.ldexp(1.0, np.frexp(np.abs(sample).max(axis=0))[1] - 8)
    fine = (sample % unit != 0).any(axis=0)
    by_column = np.ascontiguousarray(sample.T[fine])
    del sample
    by_column.sort(axis=1)
    repeats = (by_column[:, 1:] == by_column[:, :-1]).sum(axis=1)
    return bool((repeats > 2).any())


def _within_float32(squares: Array, shifted: Array) -> bool:
    """Return whether float32 products of a strip neither overflowed nor lost small columns to underflow."""
    if not (squares < _FLOAT32_HIGH).all():
        return False
    small = squares < _FLOAT32_LOW
    return not (small.any() and (small & shifted.any(axis=0)).any())


def _add_rank_one(matrix: Floats, row: Floats, sign: int) -> None:
    """Add ``sign * row^T row`` in place, a few rows of the matrix at a time, exactly symmetric."""
    if not row.any():
        return
    panel = max(_PANEL_BYTES // row.nbytes, 1)
    for start in range(0, len(row), panel):
        part = row[start : start + panel, None] * row
        if sign > 0:
            matrix[start : start + panel] += part
        else:
            matrix[start : start + panel] -= part
