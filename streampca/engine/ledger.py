"""What a pass leaves behind so that it can go on after an interruption: what the engine asks of a ledger, wherever that keeps it.

Groups of shards are added to the total in a fixed order, so a total that was stored after any group and is gone on with has the same
bits as one that was never interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from streampca.statistics.base import Statistic


@dataclass(frozen=True)
class Kept:
    """The total of the first ``n_shards`` shards of a pass."""

    n_shards: int
    state: Any


class Ledger(Protocol):
    """Keeps totals of passes, by the name of the pass."""

    def resume(self, name: str, kind: type[Statistic]) -> Kept | None:
        """Return what is kept of a pass, if anything."""

    def progress(self, name: str, n_shards: int, state: Statistic) -> None:
        """Take note of a total, or leave it if the last note is not long ago. Called from any thread, for one pass at a time."""

    def interrupted(self, name: str, n_shards: int, state: Statistic) -> None:
        """Take note of a total at once: the process is about to end."""

    def finished(self, name: str, n_shards: int, state: Statistic) -> None:
        """Take note of the total of all shards, if it is worth its while."""


def _leave(n_shards: int, state: Statistic) -> None:
    """Keep nothing."""


@dataclass
class Total:
    """The running total of a pass, and how many shards are in it."""

    n_shards: int = 0
    state: Any = None
    keep: Callable[[int, Statistic], None] = _leave

    def add(self, state: Statistic, n_shards: int) -> None:
        """Add the sums of a group, after which there are so many shards in the total."""
        whole, self.state = self.state, None  # a total that is being changed is not one to keep
        if whole is None:
            whole = state
        else:
            whole.merge(state)
        self.state, self.n_shards = whole, n_shards
        self.keep(n_shards, whole)


def _forget(start: int, stop: int) -> None:
    """Tell nobody."""


@dataclass
class Written:
    """Which rows of an output are there already, and whom to tell of more."""

    ranges: list[tuple[int, int]] = field(default_factory=list)
    tell: Callable[[int, int], None] = _forget
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def missing(self, shards: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the shards that are not there yet.

        >>> Written([(0, 20)]).missing([(0, 10), (10, 20), (20, 30)])
        [(20, 30)]
        """
        return [shard for shard in shards if not any(a <= shard[0] and shard[1] <= b for a, b in self.ranges)]

    def add(self, start: int, stop: int) -> None:
        """Take note of rows that have just been written."""
        with self._lock:
            self.tell(start, stop)
