"""Dask's threaded scheduler in this process: the default."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dask.base import compute as dask_compute
from dask.delayed import delayed

from streampca.blocks import Partition
from streampca.engine.process import in_pass
from streampca.engine.scheduler import Compute, Write
from streampca.engine.tasks import fold_shard, work_through
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.statistics.base import Statistic

_WAVE_GROUPS = 32  # groups in one Dask graph: Dask's cost of a chain grows with the square of its length


@dataclass(frozen=True)
class Threads:
    """So many of Dask's threads in this process."""

    workers: int = 1

    def memory_limit(self) -> int | None:
        """Return None: the tasks run in this process."""
        return None

    def fold(self, statistic: Statistic, source: Source, partition: Partition, observer: Observer) -> Statistic:
        """Run waves of shards as Dask graphs whose own edges bound the number of live states."""
        fold = delayed(partial(_fold, statistic.blueprint(), source, partition, observer), pure=False)
        shards = partition.shards()
        wave = _WAVE_GROUPS * partition.group
        total: Any = None
        for start in range(0, len(shards), wave):
            (total,) = self._compute([self._graph(fold, total, shards[start : start + wave], partition.group)])
        return statistic.fresh() if total is None else total

    def each(self, compute: Compute, write: Write, anywhere: bool, source: Source, partition: Partition, observer: Observer) -> None:
        """Run every shard as one task that reads, computes and writes its blocks."""
        task = delayed(partial(_write, compute, write, source, partition, observer), pure=False)
        self._compute([task(shard) for shard in partition.shards()])

    def _compute(self, tasks: list[Any]) -> Any:
        scheduler = "threads" if self.workers > 1 else "synchronous"
        with in_pass():
            return dask_compute(*tasks, scheduler=scheduler, num_workers=self.workers)

    def _graph(self, fold: Any, total: Any, shards: list[tuple[int, int]], size: int) -> Any:
        """Return the graph that adds the shards to the total: within groups in order, then group by group.

        A shard waits until the one ``workers + 1`` places before it has been merged: back-pressure without a barrier.
        """
        merge, done = delayed(_merge_into, pure=False), delayed(_done, pure=False)
        merged: deque[Any] = deque(maxlen=self.workers + 1)
        for begin in range(0, len(shards), size):
            group = None
            for shard in shards[begin : begin + size]:
                state = fold(shard, merged[0] if len(merged) == merged.maxlen else None)
                group = state if group is None else merge(group, state)
                merged.append(done(group))
            total = group if total is None else merge(total, group)
        return total


def _fold(
    blueprint: Callable[[], Statistic], source: Source, partition: Partition, observer: Observer, shard: tuple[int, int], after: None
) -> Statistic:
    return fold_shard(blueprint, source, partition.blocks(*shard), observer)


def _write(compute: Compute, write: Write, source: Source, partition: Partition, observer: Observer, shard: tuple[int, int]) -> None:
    work_through(source, partition.blocks(*shard), lambda start, block: write(start, compute(block)), observer)


def _merge_into(first: Statistic, second: Statistic) -> Statistic:
    """Merge in place: within one process each state is consumed once."""
    first.merge(second)
    return first


def _done(state: Statistic) -> None:
    """Stand for 'this has been merged' without holding the state."""
