"""Count, mean and variance of every column in one pass: shifted by a pivot, merged by Chan's formula, float64 sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np

from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.centre import Centre, pivot_of, weighted_centre

_STRIP_BYTES = 2**20


class Moments(Statistic):
    """First and second central moments by column.

    >>> moments = Moments(1)
    >>> moments.update(np.array([[1e8], [1e8 + 2]]))
    >>> moments.mean, moments.variance(ddof=1)
    (array([1.00000001e+08]), array([2.]))
    """

    tolerance = 1e-12

    def __init__(self, n_features: int) -> None:
        self.centre = Centre.empty(n_features)
        self.squares: Floats = np.zeros(n_features)  # sums of squared deviations from the mean

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.squares)

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

    def variance(self, ddof: int = 0) -> Floats:
        """Variance of each column, with divisor ``count - ddof``."""
        result: Floats = self.squares / (self.count - ddof)
        return result

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        step = self._strip_rows()
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(block), step):
                strip = block[start : start + step]
                finite = self._update_strip(strip) if weights is None else self._update_weighted(strip, weights[start : start + step])
                if not finite:
                    refuse_nonfinite(block)

    def _update_strip(self, strip: Array) -> bool:
        """Fold in a few rows; return whether their sums are finite."""
        pivot = pivot_of(strip)
        shifted = np.subtract(strip, pivot, dtype=np.float64, order="C")
        offset = shifted.mean(axis=0)
        if not np.isfinite(offset).all():
            return False
        shifted -= offset
        self.squares += np.einsum("ij,ij->j", shifted, shifted)
        self.squares += self.centre.join(Centre(len(strip), pivot, offset)) ** 2
        return True

    def _update_weighted(self, strip: Array, weights: Floats) -> bool:
        """Fold in a few rows that count by their weights; return whether their sums are finite."""
        part = weighted_centre(strip, weights)
        finite = bool(np.isfinite(part.pivot).all())
        if part.count == 0 or not finite:
            return finite
        shifted = np.subtract(strip, part.pivot, dtype=np.float64, order="C")
        part.offset = weights @ shifted / part.count
        shifted -= part.offset
        shifted *= np.sqrt(weights)[:, None]
        self.squares += np.einsum("ij,ij->j", shifted, shifted)
        self.squares += self.centre.join(part) ** 2
        return True

    def merge(self, other: Self) -> None:  # noqa: D102
        self.squares += other.squares
        self.squares += self.centre.join(other.centre) ** 2

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {**self.centre.to_arrays(), "squares": self.squares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        moments = cls.__new__(cls)
        moments.centre = Centre.from_arrays(arrays)
        moments.squares = arrays["squares"]
        return moments

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.centre.nbytes + self.squares.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features)

    def _strip_rows(self) -> int:
        return strip_rows(self.n_features)


def state_bytes(n_features: int) -> int:
    """Return the bytes of a state, without making one."""
    return 3 * 8 * n_features


def workspace_bytes(n_features: int) -> int:
    """Return the bytes that updates need beside the state: the shifted strip, copies of the pivot's sample, vectors."""
    rows = strip_rows(n_features)
    return 8 * n_features * (2 * rows + 4 * min(rows, 64) + 16)


def strip_rows(n_features: int) -> int:
    """Return the rows that are worked on at once."""
    return max(_STRIP_BYTES // (8 * n_features), 8)
