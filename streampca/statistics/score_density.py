"""How the rows lie in the plane of the first two scores, in one pass and bounded memory: a density, no scores are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np

from streampca.statistics.base import Array, Floats, Statistic

GRID = 80  # cells of the density along each score
REACH = 5.0  # standard deviations from the middle of the density to its edge
ROWS_AT_ONCE = 4096


class ScoreDensity(Statistic):
    """Counts of rows by cells of the plane of the first two scores.

    Parameters
    ----------
    transform : callable
        Returns the scores of a block of rows, and refuses what is not finite.
    deviations : ndarray of shape (2,)
        Standard deviations of the first two scores; 0 where there is none.

    Examples
    --------
    >>> density = ScoreDensity(np.negative, np.ones(2))
    >>> density.update(np.array([[1.0, 0.0], [9.0, 0.0]]))
    >>> density.rows, density.density.sum(), density.outside
    (2, np.float64(1.0), 1.0)
    """

    tolerance = 1e-9

    def __init__(self, transform: Callable[[Array], Array] | None, deviations: Floats) -> None:
        self._transform = transform
        self.deviations: Floats = deviations
        self.rows, self.count, self.outside = 0, 0.0, 0.0
        self.density: Floats = np.zeros((GRID, GRID))  # first score by row, second by column

    @property
    def edges(self) -> tuple[Floats, Floats]:
        """Edges of the cells of the density, along the first and the second score."""
        unit = np.linspace(-REACH, REACH, GRID + 1)
        return unit * self.deviations[0], unit * self.deviations[1]

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        if self._transform is None:
            raise ValueError("a density restored from arrays can be merged and read, not updated: it no longer has its model")
        return partial(type(self), self._transform, self.deviations)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        transform: Any = self._transform
        self.add(block, transform(block), weights)

    def add(self, block: Array, scores: Array, weights: Floats | None = None) -> None:
        """Fold in the rows of a block whose scores are known."""
        for start in range(0, len(block), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            part = None if weights is None else weights[rows]
            self.rows += len(scores[rows])
            self.count += total(part, len(scores[rows]))
            self._count_scores(scores[rows], part)

    def _count_scores(self, scores: Array, weights: Floats | None) -> None:
        """Add rows to the density; those beyond its edges only to their number."""
        places = [self._places(scores, axis) for axis in range(2)]
        inside = (places[0] >= 0) & (places[0] < GRID) & (places[1] >= 0) & (places[1] < GRID)
        kept = None if weights is None else weights[inside]
        self.outside += float(len(scores) - np.count_nonzero(inside)) if weights is None else float(weights[~inside].sum())
        flat = places[0][inside].astype(np.intp) * GRID + places[1][inside].astype(np.intp)
        self.density += np.bincount(flat, kept, GRID * GRID).reshape(GRID, GRID)

    def _places(self, scores: Array, axis: int) -> Floats:
        """Return where the scores lie along an axis, in cells; in the middle where there is no variance."""
        if self.deviations[axis] <= 0:
            return np.full(len(scores), GRID / 2)
        places: Floats = scores[:, axis] * (GRID / (2 * REACH * self.deviations[axis])) + GRID / 2
        return places

    def merge(self, other: Self) -> None:  # noqa: D102
        self.rows += other.rows
        self.count += other.count
        self.outside += other.outside
        self.density += other.density

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            "rows": np.array(self.rows, np.int64),
            "count": np.array(self.count),
            "outside": np.array(self.outside),
            "deviations": self.deviations,
            "density": self.density,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        found = cls.__new__(cls)
        found._transform = None
        found.rows, found.count, found.outside = int(arrays["rows"]), float(arrays["count"]), float(arrays["outside"])
        found.deviations, found.density = arrays["deviations"], arrays["density"]
        return found

    @property
    def nbytes(self) -> int:  # noqa: D102
        return sum(array.nbytes for array in self.to_arrays().values() if array.ndim)

    def workspace(self, rows: int) -> int:
        """Bytes that counting a block of so many rows needs, beside what the transform needs."""
        return 12 * 8 * min(rows, ROWS_AT_ONCE) + 3 * 8 * GRID * GRID


def total(weights: Floats | None, rows: int) -> float:
    """Return the sum of the weights of rows; without weights each counts once."""
    return float(rows) if weights is None else float(weights.sum())
