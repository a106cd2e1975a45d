"""What a report tells of the rows, gathered while something else goes through them: blocks come in any order, several at a time."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from streampca.statistics.base import Array
from streampca.statistics.score_density import ScoreDensity

D = TypeVar("D", bound=ScoreDensity)
_ALL_ROWS = 2**62


class Gathered(Generic[D]):
    """The summaries of stretches of rows, joined where one ends and the next begins.

    Whichever blocks come first, the result has the same bits as one pass in order: without weights all sums are of whole numbers.

    >>> import numpy as np
    >>> gathered = Gathered(ScoreDensity(np.negative, np.ones(2)))
    >>> gathered.add(2, np.ones((3, 2)), -np.ones((3, 2)))
    >>> gathered.complete(5) is None
    True
    >>> gathered.add(0, np.ones((2, 2)), -np.ones((2, 2)))
    >>> gathered.complete(5).rows
    5
    """

    def __init__(self, empty: D) -> None:
        self._empty = empty
        self._runs: dict[int, tuple[int, D]] = {}  # by first row: the row after the last, and the summary
        self._lock = threading.Lock()

    def add(self, start: int, block: Array, scores: Array) -> None:
        """Take in a block that begins at a row, and its scores; called from any thread, for no row twice."""
        with self._lock:
            first = next((first for first, (stop, _) in self._runs.items() if stop == start), start)
            run = self._runs.pop(first)[1] if first < start else self._empty.fresh()
        run.add(block, scores)  # nobody else knows of it meanwhile
        with self._lock:
            self._runs[first] = start + len(block), run
            self._join()

    def _join(self) -> None:
        """Join neighbours: there are hardly more stretches than threads."""
        before: int | None = None
        for first in sorted(self._runs):
            stop, run = self._runs[first]
            if before is not None and self._runs[before][0] == first:
                del self._runs[first]
                self._runs[before][1].merge(run)
                self._runs[before] = stop, self._runs[before][1]
            else:
                before = first

    def complete(self, n_rows: int) -> D | None:
        """Return the summary of all rows, or None if some were not seen."""
        stop, run = self._runs.get(0, (0, None))
        return run if stop == n_rows else None

    def memory(self, workers: int) -> int:
        """Return the bytes that it takes while so many threads add to it."""
        return workers * self._empty.workspace(_ALL_ROWS) + 2 * (workers + 1) * self._empty.nbytes
