"""Moments of the observed entries of every column, of rows with missing ones (NaN). NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np

from streampca.statistics.base import Array, Floats, Statistic
from streampca.statistics.posterior import FEWEST_ROWS, MOST_ROWS, refuse_infinite

_STRIP_BYTES = 2**20


class ObservedMoments(Statistic):
    """Count, mean and variance of the observed entries of every column.

    >>> moments = ObservedMoments(2)
    >>> moments.update(np.array([[1e8, np.nan], [1e8 + 2, 5.0]]))
    >>> moments.counts.tolist(), moments.mean.tolist(), moments.variance.tolist()
    ([2.0, 1.0], [100000001.0, 5.0], [1.0, 0.0])
    """

    tolerance = 1e-12
    allows_nan = True

    def __init__(self, n_features: int) -> None:
        self.counts: Floats = np.zeros(n_features)
        self.pivot: Floats = np.zeros(n_features)
        self.offset: Floats = np.zeros(n_features)  # the mean is pivot + offset: see Centre
        self.squares: Floats = np.zeros(n_features)  # sums of squared deviations from the mean

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.counts)

    @property
    def mean(self) -> Floats:
        """Mean of the observed entries of each column; 0 where there are none."""
        return self.pivot + self.offset

    @property
    def variance(self) -> Floats:
        """Variance of the observed entries of each column, with their number as divisor; 0 where there are none."""
        result: Floats = self.squares / np.where(self.counts > 0, self.counts, 1.0)
        return result

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        height = self._strip_rows()
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(block), height):
                strip = block[start : start + height].astype(np.float64, order="C")
                w = np.ones(len(strip)) if weights is None else weights[start : start + height]
                self._join(*_column_moments(strip, w))
                if not np.isfinite(self.squares).all():
                    refuse_infinite(block)

    def _join(self, counts: Floats, pivot: Floats, offset: Floats, squares: Floats) -> None:
        """Fold in moments by Chan's formula, column by column."""
        first = (self.counts == 0) & (counts > 0)
        self.pivot[first], self.offset[first] = pivot[first], offset[first]
        total = self.counts + counts
        share = counts / np.where(total > 0, total, 1.0)
        delta = np.where(counts > 0, (pivot - self.pivot) + (offset - self.offset), 0.0)
        self.squares += squares + delta * delta * (self.counts * share)
        self.offset += delta * share
        self.counts = total

    def merge(self, other: Self) -> None:  # noqa: D102
        self._join(other.counts, other.pivot, other.offset, other.squares)

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {"counts": self.counts, "pivot": self.pivot, "offset": self.offset, "squares": self.squares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        moments = cls.__new__(cls)
        moments.counts, moments.pivot = arrays["counts"], arrays["pivot"]
        moments.offset, moments.squares = arrays["offset"], arrays["squares"]
        return moments

    @property
    def nbytes(self) -> int:  # noqa: D102
        return 4 * self.counts.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return 8 * self.n_features * (4 * min(rows, self._strip_rows()) + 16)

    def _strip_rows(self) -> int:
        return int(np.clip(_STRIP_BYTES // (8 * self.n_features), FEWEST_ROWS, MOST_ROWS))


def _column_moments(strip: Floats, w: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return counts, pivots, offsets and squared deviations of the observed entries of a few rows. Overwrites them."""
    missing = np.isnan(strip)
    counted = ~missing & (w > 0)[:, None]
    first = np.argmax(counted, axis=0)
    pivot = np.where(counted.any(axis=0), strip[first, np.arange(strip.shape[1])], 0.0)
    strip -= pivot
    np.copyto(strip, 0.0, where=missing)
    counts = w @ ~missing
    offset = (w @ strip) / np.where(counts > 0, counts, 1.0)
    strip -= offset
    np.copyto(strip, 0.0, where=missing)
    np.multiply(strip, strip, out=strip)
    return counts, pivot, offset, w @ strip
