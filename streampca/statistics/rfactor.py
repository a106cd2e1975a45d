"""The triangular factor R of the centred rows in one pass: ``R^T R`` is the scatter, but its products are never formed.

Singular values keep all their digits this way: the square of the condition number, which a scatter matrix has, never occurs. Each
strip of rows is centred on its own mean; the row between two means (Chan's formula) is stacked under them. Always in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np

from streampca import buffers
from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import Centre, pivot_of, weighted_centre
from streampca.statistics.triangle import fold_rows, scratch_size

STRIP_ROWS = 1024  # by measurement: from 500 on they are folded at full speed
_LEADING = STRIP_ROWS + 8  # columns a power of two apart would share a few lines of the cache: ten times slower to fill
_MERGED_ROWS = 128  # of a triangle: few enough to make use of its zeros, enough for full speed


class RFactor(Statistic):
    """Count, mean, sums of squares and the R factor of centred rows.

    >>> rows = RFactor(2)
    >>> rows.update(np.array([[0, 1], [6, 1], [0, 5], [6, 5]]))
    >>> rows.count, rows.mean, rows.R.round(12).tolist(), rows.squares
    (4, array([3., 3.]), [[6.0, 0.0], [0.0, 4.0]], array([36., 16.]))
    """

    tolerance = 1e-12

    def __init__(self, n_features: int) -> None:
        self.centre = Centre.empty(n_features)
        self.squares: Floats = np.zeros(n_features)  # sums of squared deviations from the mean
        self._lower: Floats = np.zeros((n_features, n_features))  # R transposed: LAPACK stores by columns
        self._forget_rows()

    def _forget_rows(self) -> None:
        """Have no rows that wait, and no buffers."""
        self._waiting = 0  # rows, already centred, that are still to be folded in
        self._settled = True  # nothing changed since the factor was last brought into its normal form
        self._buffers: tuple[Array, Array] | None = None  # waiting rows (each a column) and LAPACK's scratch, as bytes

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.squares)

    @property
    def R(self) -> Floats:  # noqa: N802
        """The d x d upper triangular factor, with a diagonal that is not negative."""
        self._settle()
        return self._lower.T

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
        return partial(type(self), self.n_features)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        start, stop = 0, len(block)
        if start == stop:
            return
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            pivot = pivot_of(block) if weights is None else weighted_centre(block, weights).pivot
            if not np.isfinite(pivot).all():
                refuse_nonfinite(block)
            while start < stop:
                if STRIP_ROWS - self._waiting < 2:  # a row, and one between the means
                    self._fold()
                strip = slice(start, start + STRIP_ROWS - self._waiting - 1)
                if not self._add_strip(block[strip], pivot, None if weights is None else weights[strip]):
                    refuse_nonfinite(block)
                start = strip.stop

    def _add_strip(self, strip: Array, pivot: Floats, weights: Floats | None) -> bool:
        """Let rows wait, centred on their own mean, and the row between this and the mean so far; return whether sums are finite."""
        columns = self._views()[0][:, self._waiting : self._waiting + len(strip)]
        np.subtract(strip, pivot, out=columns.T, dtype=np.float64, casting="same_kind")
        part = Centre(len(strip), pivot, pivot)
        if weights is not None:
            part = Centre(float(weights.sum()), pivot, pivot, int(np.count_nonzero(weights)))
        if part.count == 0:
            return True
        part.offset = columns @ (np.ones(len(strip)) if weights is None else weights) / part.count
        if not np.isfinite(part.offset).all():
            return False
        if len(strip) > 1:  # one row is its own mean
            columns -= part.offset[:, None]
            if weights is not None:
                columns *= np.sqrt(weights)
            self._wait_for(columns)
        self._join(part)
        return True

    def _join(self, part: Centre) -> None:
        """Join the means; the row between them waits, unless there was none."""
        before = self.centre.count
        if part.count > before > 0:  # the pivot of the heavier part: a few light rows, far away, would be a bad one
            heavier = replace(part, pivot=part.pivot.copy(), offset=part.offset.copy())
            row, self.centre = heavier.join(self.centre), heavier
        else:
            row = self.centre.join(part)
        if before > 0:
            columns = self._views()[0][:, self._waiting : self._waiting + 1]
            columns[:, 0] = row
            self._wait_for(columns)

    def _wait_for(self, columns: Floats) -> None:
        self.squares += np.einsum("ji,ji->j", columns, columns)
        self._waiting += columns.shape[1]
        self._settled = False

    def _fold(self) -> None:
        """Fold the waiting rows into the factor."""
        if self._waiting:
            columns, scratch = self._views()
            fold_rows(self._lower, columns[:, : self._waiting], scratch)
            self._waiting = 0

    def _settle(self) -> None:
        """Bring the factor into its normal form, whatever signs LAPACK left."""
        if self._settled:
            return
        self._fold()
        signs = np.where(self._lower.diagonal() < 0, -1.0, 1.0)
        self._lower *= signs
        self._lower += 0.0  # not -0.0
        self._settled = True

    def _views(self) -> tuple[Floats, Floats]:
        """Return the reused buffers: waiting rows, each a column, and scratch."""
        d = self.n_features
        if self._buffers is None:
            self._buffers = buffers.borrow(8 * d * _LEADING), buffers.borrow(8 * scratch_size(d))
        columns, scratch = (
            buffer[: 8 * size].view(np.float64) for buffer, size in zip(self._buffers, (d * _LEADING, scratch_size(d)), strict=True)
        )
        return columns.reshape(d, _LEADING), scratch

    def merge(self, other: Self) -> None:  # noqa: D102
        if other.centre.count == 0:
            return
        self._settle()  # first: the same order, hence bits, whenever it was done before
        other._settle()
        if self.centre.count == 0:
            self._lower[:], self.squares[:] = other._lower, other.squares
            self.centre.join(other.centre)
            return
        self._fold_triangle(other._lower)
        self.squares += other.squares
        self._settled = False
        self._join(other.centre)
        self._settle()

    def _fold_triangle(self, lower: Floats) -> None:
        """Fold in the rows of another factor, a few at a time, without the zeros on their left."""
        columns, scratch = self._views()
        for start in range(0, self.n_features, _MERGED_ROWS):
            stop = min(start + _MERGED_ROWS, self.n_features)
            strip = columns[start:, : stop - start]
            strip[:] = lower[start:, start:stop]
            fold_rows(self._lower[start:, start:], strip, scratch)

    def release(self) -> None:  # noqa: D102
        self._settle()
        for buffer in self._buffers or ():
            buffers.give_back(buffer)
        self._forget_rows()

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        self._settle()
        return {**self.centre.to_arrays(), "squares": self.squares, "lower": self._lower}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        rfactor = cls.__new__(cls)
        rfactor.centre = Centre.from_arrays(arrays)
        rfactor.squares = arrays["squares"]
        rfactor._lower = np.require(arrays["lower"], np.float64, ["C", "A", "W"])  # LAPACK writes where it points
        rfactor._forget_rows()
        return rfactor

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.centre.nbytes + self.squares.nbytes + self._lower.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features)


def state_bytes(n_features: int) -> int:
    """Return the bytes of a state, without making one.

    >>> state_bytes(1000)
    8024000
    """
    return 8 * n_features * (n_features + 3)


def workspace_bytes(n_features: int) -> int:
    """Return the bytes that updates need beside the state: waiting rows, LAPACK's scratch, samples and vectors.

    >>> workspace_bytes(1000) // 2**20
    12
    """
    return 8 * (n_features * _LEADING + scratch_size(n_features)) + 8 * n_features * (2 * 256 + 16) + 2**17
