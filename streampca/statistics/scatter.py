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

from streampca import buffers
from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import Centre, Repeats, Shift, float32_shift, pivot_of, repeats_of, weighted_centre

Precision = Literal["float32", "float64"]

STRIP_ROWS = 4096  # by measurement: the product of a strip is at full BLAS speed, and 4096 float32 terms keep 5e-8
_PANEL_BYTES = 2**20
_MOST_ROWS = 32
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
        self._sums: Floats = np.zeros((n_features, n_features))
        self._rows: list[tuple[Floats, Floats]] = []  # whose products are still to be added, and subtracted
        self._buffers: tuple[Array, Array] | None = None  # shifted strip and its product, as bytes
        self._repeats: Repeats | None = None  # values that float32 would round alike each time

    @property
    def tolerance(self) -> float:
        """Relative to the square root of the product of two diagonal entries."""
        return 1e-12 if self.precision == "float64" else 1e-6

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self._sums)

    @property
    def scatter(self) -> Floats:
        """The sum of (x - mean)(x - mean)^T."""
        self._settle()
        return self._sums

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of their weights."""
        return self.centre.total

    @property
    def rows(self) -> int:
        """Number of rows of positive weight: all of them without weights."""
        return self.centre.rows

    @property
    def mean(self) -> Floats:
        """Mean of each column."""
        return self.centre.mean

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features, self.precision)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        if len(block) == 0:
            return
        if weights is not None:
            self._update_weighted(block, weights)
            return
        sums = np.zeros(self.n_features)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            if self.precision == "float64":
                pivot = pivot_of(block)
                add = partial(self._add_strip, pivot)
            elif self._suits_float32(block):
                shift = float32_shift(block, self._repeats.common if self._repeats else None)
                pivot = shift.exact
                add = partial(self._add_strip_float32, shift)
            else:
                pivot = pivot_of(block)
                add = partial(self._add_strip_exactly, pivot)
            for start in range(0, len(block), STRIP_ROWS):
                sums += add(block[start : start + STRIP_ROWS])
            if not np.isfinite(sums).all():
                refuse_nonfinite(block)
            self._join(Centre(len(block), pivot, sums / len(block)))

    def _update_weighted(self, block: Array, weights: Floats) -> None:
        """Fold in rows that count by their weights: multiplied by the square root of each, in float64 always."""
        add = self._add_strip if self.precision == "float64" else self._add_strip_exactly
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            part = weighted_centre(block, weights)
            if not np.isfinite(part.pivot).all():
                refuse_nonfinite(block)
            if part.count == 0:
                return
            for start in range(0, len(block), STRIP_ROWS):
                strip = slice(start, start + STRIP_ROWS)
                part.offset += add(part.pivot, block[strip], np.sqrt(weights[strip])) / part.count
            self._join(part)

    def _suits_float32(self, block: Array) -> bool:
        """Return whether a block's products may be rounded to float32; the first block decides for all of a fold."""
        if self._repeats is None:
            self._repeats = repeats_of(block)
        return np.can_cast(block.dtype, np.float32) and not self._repeats.few

    def _join(self, part: Centre) -> None:
        """Centre the part just added on its own mean, then join the two means."""
        within = part.offset * np.sqrt(part.count)
        self._rows.append((self.centre.join(part), within))
        if len(self._rows) == _MOST_ROWS:
            self._settle()

    def _settle(self) -> None:
        """Add the products of the rows that are left, all at once: one by one they would cost a tenth of the time."""
        if not self._rows:
            return
        plus, minus = (np.stack(rows) for rows in zip(*self._rows, strict=True))
        self._rows.clear()
        panel = max(_PANEL_BYTES // plus[0].nbytes, 1)
        for start in range(0, self.n_features, panel):
            columns = slice(start, start + panel)
            self._sums[columns] += plus[:, columns].T @ plus
            self._sums[columns] -= minus[:, columns].T @ minus

    def _add_strip(self, pivot: Floats, strip: Array, roots: Floats | None = None) -> Array:
        """Add the products of a shifted strip, with the square roots of weights if any, to the scatter; return its column sums."""
        shifted, product = self._views(len(strip), pivot.dtype)
        np.subtract(strip, pivot, out=shifted, dtype=shifted.dtype, casting="same_kind")
        if roots is not None:
            shifted *= roots[:, None]
        np.dot(shifted.T, shifted, out=product)
        self._sums += product
        return (np.ones(len(strip)) if roots is None else roots) @ shifted

    def _add_strip_float32(self, shift: Shift, strip: Array) -> Array:
        """Do the same in float32; in float64 if the strip leaves the range of float32."""
        shifted, product = self._views(len(strip), shift.pivot.dtype)
        np.subtract(strip, shift.pivot, out=shifted, dtype=shifted.dtype, casting="same_kind")
        if shift.rest.any():
            shifted -= shift.rest
        np.dot(shifted.T, shifted, out=product)
        if not _within_float32(product.diagonal(), shifted):
            return self._add_strip_exactly(shift.exact, strip)
        self._sums += product
        return np.ones(len(strip), np.float32) @ shifted

    def _add_strip_exactly(self, pivot: Floats, strip: Array, roots: Floats | None = None) -> Array:
        """Do the same in float64 within the buffers for float32: half the rows, half the product at a time."""
        n_features, step, panel = self.n_features, STRIP_ROWS // 2, max(self.n_features // 2, 1)
        sums = np.zeros(n_features)
        for start in range(0, len(strip), step):
            part = strip[start : start + step]
            shifted, product = self._views(len(part), pivot.dtype, panel)
            np.subtract(part, pivot, out=shifted, dtype=shifted.dtype, casting="same_kind")
            if roots is not None:
                shifted *= roots[start : start + step, None]
            for left in range(0, n_features, panel):
                right = min(left + panel, n_features)
                np.dot(shifted[:, left:right].T, shifted, out=product[: right - left])
                self._sums[left:right] += product[: right - left]
            sums += shifted.sum(axis=0) if roots is None else roots[start : start + step] @ shifted
        return sums

    def _views(self, rows: int, dtype: np.dtype[Any], product_rows: int | None = None) -> tuple[Array, Array]:
        """Return the reused buffers as ``rows`` x d and ``product_rows`` x d arrays of a dtype."""
        n_features = self.n_features
        if self._buffers is None:
            itemsize = np.dtype(self.precision).itemsize
            strip_bytes = max(STRIP_ROWS * n_features * itemsize, 8)
            product_bytes = max(n_features * n_features * itemsize, 8 * n_features)
            self._buffers = buffers.borrow(strip_bytes), buffers.borrow(product_bytes)
        strip, product = (buffer[: buffer.size // dtype.itemsize * dtype.itemsize].view(dtype) for buffer in self._buffers)
        product_rows = n_features if product_rows is None else product_rows
        return (
            strip[: rows * n_features].reshape(rows, n_features),
            product[: product_rows * n_features].reshape(product_rows, n_features),
        )

    def merge(self, other: Self) -> None:  # noqa: D102
        self._settle()  # first: the same order of sums, hence bits, whenever it was done before
        self._sums += other.scatter
        self._rows.append((self.centre.join(other.centre), np.zeros(self.n_features)))
        self._settle()

    def release(self) -> None:  # noqa: D102
        self._settle()
        for buffer in self._buffers or ():
            buffers.give_back(buffer)
        self._buffers = None

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {**self.centre.to_arrays(), "scatter": self.scatter, "precision": np.array(np.dtype(self.precision).itemsize, np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        scatter = cls.__new__(cls)
        scatter.precision = "float32" if int(arrays["precision"]) == 4 else "float64"
        scatter.centre = Centre.from_arrays(arrays)
        scatter._sums, scatter._rows = arrays["scatter"], []
        scatter._buffers = scatter._repeats = None
        return scatter

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.centre.nbytes + self._sums.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self.precision)


def state_bytes(n_features: int) -> int:
    """Return the bytes of a scatter state, without making one."""
    return 8 * n_features * (n_features + 2)


def workspace_bytes(n_features: int, precision: Precision) -> int:
    """Return the bytes that updates need beside the state: strip, product, pivot sample and vectors."""
    itemsize = np.dtype(precision).itemsize
    buffers = (STRIP_ROWS + n_features) * n_features * itemsize
    return buffers + 8 * n_features * (2 * 256 + 4 * _MOST_ROWS + 16) + 3 * _PANEL_BYTES


def _within_float32(squares: Array, shifted: Array) -> bool:
    """Return whether float32 products of a strip neither overflowed nor lost small columns to underflow."""
    if not (squares < _FLOAT32_HIGH).all():
        return False
    small = squares < _FLOAT32_LOW
    return not (small.any() and (small & shifted.any(axis=0)).any())
