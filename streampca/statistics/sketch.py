"""A low-rank sketch of the centred rows in one pass: a truncated singular value decomposition, merged a few rows at a time.

The state holds at most ``rank`` rows B with B^T B close to the scatter matrix. New rows are stacked under B and the stack is
turned, by the eigenvectors of its small Gram matrix, into its best ``rank`` rows. One pass gives the leading subspace to
about 1e-3 (1 - MEV); data whose rank is at most ``rank`` is kept exactly. Mean and total variance are exact in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from streampca import buffers
from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import Centre, check_sum, subtract
from streampca.statistics.scatter import Precision

_PANEL_BYTES = 2**20
_PIVOT_ROWS = 8
_LEAST_ROWS = 32  # folded at once: the small eigenproblem costs the same for one row


class Sketch(Statistic):
    """Count, mean and column variations of rows, and at most ``rank`` rows that stand for their scatter.

    Parameters
    ----------
    n_features : int
        Number of columns.
    rank : int
        Rows kept.
    precision : {"float64", "float32"}
        Of the rows kept and of their products; sums are float64.
    scale : ndarray of shape (n_features,), optional
        What each column is divided by.

    >>> sketch = Sketch(3, rank=2)
    >>> sketch.update(np.array([[1.0, 0, 0], [-1, 0, 0], [1, 2, 0], [-1, 2, 0]]))
    >>> np.linalg.norm(sketch.rows, axis=1).round(12).tolist()
    [2.0, 2.0]
    """

    def __init__(self, n_features: int, rank: int, precision: Precision = "float64", scale: Floats | None = None) -> None:
        self.precision: Precision = precision
        self.centre = Centre.empty(n_features)
        self.squares: Floats = np.zeros(n_features)  # sums of squared deviations from the mean, of the scaled columns
        self._scale = scale
        self._rank, self._used = rank, 0
        self._kept: Array | None = np.zeros((rank, n_features), precision)  # None while the rows are in the stack
        self._stack: Array | None = None
        self._buffer: NDArray[np.uint8] | None = None

    @property
    def tolerance(self) -> float:
        """Relative to the largest singular value, for rows of a rank that is kept."""
        return 1e-7 if self.precision == "float64" else 1e-3

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.squares)

    @property
    def count(self) -> int | float:
        """Number of rows, or the sum of their weights."""
        return self.centre.total

    @property
    def mean(self) -> Floats:
        """Mean of each column."""
        return self.centre.mean

    @property
    def rows(self) -> Array:
        """The rows that stand for all: orthogonal, the longest first, the last ones zero if they are fewer than ``rank``."""
        self._leave_stack()
        rows: Any = self._kept
        return np.asarray(rows)

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features, self._rank, self.precision, self._scale)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        height = max(self._rank, _LEAST_ROWS)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for start in range(0, len(block), height):
                rows = slice(start, start + height)
                if not self._add_strip(block[rows], None if weights is None else weights[rows]):
                    refuse_nonfinite(block)

    def _add_strip(self, strip: Array, weights: Floats | None) -> bool:
        """Fold in a few rows, centred on their own mean; return whether their sums are finite."""
        if weights is not None and not weights.any():
            return bool(np.isfinite(strip).all())
        stack, first = self._enter_stack(), self._used
        centred = stack[first : first + len(strip)]
        part = self._centre_strip(strip, weights, centred)
        squares = np.einsum("ij,ij->j", centred, centred)
        if not np.isfinite(squares).all():
            return False
        self.squares += squares
        self._stack_joint(part, first + len(strip))
        return True

    def _centre_strip(self, strip: Array, weights: Floats | None, out: Array) -> Centre:
        """Put the strip into ``out``: centred on its mean, scaled, times the roots of the weights. Return its centre."""
        pivot = self._pivot(strip, weights)
        if np.can_cast(strip.dtype, out.dtype):
            pivot = pivot.astype(out.dtype).astype(np.float64)  # what is subtracted, to the last bit
        subtract(strip, pivot, out)
        count = float(len(strip)) if weights is None else check_sum(weights)
        offset = (np.ones(len(strip)) if weights is None else weights).astype(out.dtype) @ out / count
        out -= offset
        if self._scale is not None:
            out /= self._scale.astype(out.dtype)
        if weights is not None:
            out *= np.sqrt(weights).astype(out.dtype)[:, None]
        rows = len(strip) if weights is None else int(np.count_nonzero(weights))
        return Centre(count, pivot, offset.astype(np.float64), rows)

    def _pivot(self, strip: Array, weights: Floats | None) -> Floats:
        """Return a point near the rows: the mean so far, at first the heaviest row or the mean of a few (exact for constant columns)."""
        if self.centre.count:
            return self.centre.mean
        if weights is not None:
            heaviest: Floats = strip[np.argmax(weights)].astype(np.float64)
            return heaviest
        few = strip[:: -(-len(strip) // _PIVOT_ROWS)].astype(np.float64, order="C")
        first = few[0].copy()
        few -= first
        mean: Floats = first + few.mean(axis=0)
        return mean

    def _stack_joint(self, part: Centre, height: int) -> None:
        """Add the row that joins the means to the stack, then fold its ``height`` rows and this one."""
        row = self.centre.join(part)
        if self._scale is not None:
            row /= self._scale
        self.squares += row**2
        stack = self._enter_stack()
        stack[height] = row
        self._used = fold(stack[: height + 1], self._rank)
        stack[self._used : self._rank] = 0

    def merge(self, other: Self) -> None:  # noqa: D102
        if other.centre.count == 0:
            return
        rows, empty = other.rows[: other._used], self.centre.count == 0
        stack, first = self._enter_stack(), self._used
        stack[first : first + len(rows)] = rows
        self.squares += other.squares
        if empty:  # one row, which has no variance, is not: its mean counts
            self._used = len(rows)
            stack[self._used : self._rank] = 0
            self.centre.join(other.centre)
        else:
            self._stack_joint(other.centre, first + len(rows))
        self._leave_stack()

    def _enter_stack(self) -> Array:
        """Return the buffer of 2 x rank + 1 rows (or more, for short ranks) whose first rows are those kept."""
        if self._stack is None:
            height, dtype = stack_rows(self._rank), np.dtype(self.precision)
            n_bytes = height * self.n_features * dtype.itemsize
            self._buffer = buffers.borrow(n_bytes)
            self._stack = self._buffer[:n_bytes].view(dtype).reshape(height, self.n_features)
            kept: Any = self._kept
            self._stack[: self._rank] = kept
            self._kept = None
        return self._stack

    def _leave_stack(self) -> None:
        """Take the rows kept out of the buffer, and give it back."""
        if self._stack is None or self._buffer is None:
            return
        self._kept = self._stack[: self._rank].copy()
        buffers.give_back(self._buffer)
        self._stack = self._buffer = None

    def release(self) -> None:  # noqa: D102
        self._leave_stack()

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            **self.centre.to_arrays(),
            "squares": self.squares,
            "sketch": self.rows,
            "used": np.array(self._used, np.int64),
            **({} if self._scale is None else {"scale": self._scale}),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        sketch = cls.__new__(cls)
        sketch._kept = arrays["sketch"]
        sketch.precision = "float32" if arrays["sketch"].itemsize == 4 else "float64"
        sketch.centre = Centre.from_arrays(arrays)
        sketch.squares, sketch._scale = arrays["squares"], arrays.get("scale")
        sketch._rank, sketch._used = len(arrays["sketch"]), int(arrays["used"])
        sketch._stack = sketch._buffer = None
        return sketch

    @property
    def nbytes(self) -> int:  # noqa: D102
        scale = 0 if self._scale is None else self._scale.nbytes
        return self.centre.nbytes + self.squares.nbytes + scale + self._rank * self.n_features * np.dtype(self.precision).itemsize

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self._rank, self.precision)


def fold(stack: Array, rank: int) -> int:
    """Replace the first rows of a stack by the best ``rank`` rows for its scatter; return how many are not zero."""
    _, vectors = linalg.eigh(row_products(stack, stack), check_finite=False, overwrite_a=True, driver="evd")
    turn = np.ascontiguousarray(vectors[:, ::-1][:, :rank].T, stack.dtype)
    squares = np.zeros(len(turn))
    panel = _panel(len(stack))
    for start in range(0, stack.shape[1], panel):
        columns = slice(start, start + panel)
        turned = turn @ stack[:, columns]
        squares += np.einsum("ij,ij->i", turned, turned)
        stack[: len(turn), columns] = turned
    # Small rows are what the turn left of them, not what their eigenvalues say, which only know the rounding of the largest.
    least = len(stack) * (4 * np.finfo(stack.dtype).eps) ** 2 * squares.max(initial=0.0)
    return int(np.flatnonzero(squares > least).max(initial=-1)) + 1


def row_products(left: Array, right: Array) -> Floats:
    """Return ``left @ right.T`` for short, wide arrays, added up in float64."""
    products = np.zeros((len(left), len(right)))
    panel = _panel(max(len(left), len(right)))
    for start in range(0, left.shape[1], panel):
        columns = slice(start, start + panel)
        products += left[:, columns] @ right[:, columns].T
    return products


def stack_rows(rank: int) -> int:
    """Return the rows of the stack: those kept, as many new ones or those of another sketch, and the row that joins means."""
    return rank + max(rank, _LEAST_ROWS) + 1


def state_bytes(n_features: int, rank: int, precision: Precision) -> int:
    """Return the bytes of a state, without making one."""
    return n_features * (rank * np.dtype(precision).itemsize + 4 * 8)


def workspace_bytes(n_features: int, rank: int, precision: Precision) -> int:
    """Return the bytes that updates and merges need beside the state: the stack, its small eigenproblem, vectors."""
    rows, itemsize = stack_rows(rank), np.dtype(precision).itemsize
    small = 8 * rows * (6 * rows + 64) + 2 * 8 * rows * _panel(rows)
    return rows * n_features * itemsize + small + 8 * n_features * (2 * _PIVOT_ROWS + 12)


def _panel(rows: int) -> int:
    """Return the columns that are worked on at once."""
    return max(_PANEL_BYTES // (4 * max(rows, 1)), 256)
