"""Dask's threaded scheduler in this process: the default."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Condition
from typing import Any

from dask.base import compute as dask_compute
from dask.delayed import delayed
from dask.local import get_sync
from dask.threaded import get

from streampca.blocks import Partition
from streampca.engine.ledger import Total, Written
from streampca.engine.process import in_pass
from streampca.engine.scheduler import Compute, Write, window
from streampca.engine.tasks import fold_shard, work_through
from streampca.errors import InterruptedRunError
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.statistics.base import Statistic

_WAVE_GROUPS = 16  # groups in one Dask graph: Dask's cost of a chain grows with the square of its length


@dataclass(frozen=True)
class Threads:
    """So many of Dask's threads in this process."""

    workers: int = 1

    def limited_to(self, workers: int) -> Threads:
        """Return at most so many threads."""
        return Threads(min(workers, self.workers))

    def memory_limit(self) -> int | None:
        """Return None: the tasks run in this process."""
        return None

    def fold(self, statistic: Statistic, source: Source, partition: Partition, observer: Observer, total: Total | None = None) -> Statistic:
        """Run waves of shards as Dask graphs whose own edges bound the number of live states."""
        watch, total = _Watch(observer), total or Total()
        fold = delayed(partial(_fold, statistic.blueprint(), source, partition, watch), pure=False)
        add = delayed(partial(_add, watch, total), pure=False)
        shards = partition.shards()
        wave, ahead = _WAVE_GROUPS * partition.group, window(self.workers, statistic.nbytes)
        for start in range(total.n_shards, len(shards), wave):
            self._compute([self._graph(fold, add, shards, range(start, min(start + wave, len(shards))), partition.group, ahead)], watch)
        return statistic.fresh() if total.state is None else total.state

    def each(
        self,
        compute: Compute,
        write: Write,
        anywhere: bool,
        source: Source,
        partition: Partition,
        observer: Observer,
        written: Written | None = None,
    ) -> None:
        """Run every shard as one task that reads, computes and writes its blocks."""
        watch, written = _Watch(observer), written or Written()
        task = delayed(partial(_write, compute, write, source, partition, watch, written), pure=False)
        self._compute([task(shard) for shard in written.missing(partition.shards())], watch)

    def _compute(self, tasks: list[Any], watch: _Watch) -> Any:
        scheduler = get if self.workers > 1 else get_sync  # by name, Dask would import its distributed scheduler first
        with in_pass(), watch:
            return dask_compute(*tasks, scheduler=scheduler, num_workers=self.workers)

    def _graph(self, fold: Any, add: Any, shards: list[tuple[int, int]], wave: range, size: int, ahead: int) -> Any:
        """Return the graph that adds the shards of a wave to the total: within groups in order, then group by group.

        A shard waits until the one ``ahead`` places before it has been merged, and all before that, and the last of a
        group with its group: back-pressure without a barrier.
        """
        merge, done = delayed(_merge_into, pure=False), delayed(_done, pure=False)
        merged: deque[Any] = deque([None] * ahead, maxlen=ahead)
        added = None
        for begin in wave[::size]:
            group, end = None, min(begin + size, wave.stop)
            for index in range(begin, end):
                state = fold(shards[index], merged[0])
                group = state if group is None else merge(group, state)
                merged.append(done(group, merged[-1]))
            added = add(group, end, added)
            merged[-1] = done(added, merged[-1])
        return added


class _Held:
    """A state on its way from task to task: who takes it is its only owner, whatever Dask's threads still refer to."""

    def __init__(self, state: Statistic) -> None:
        self._state: Any = state

    def take(self) -> Any:
        state, self._state = self._state, None
        return state


class _Watch(Observer):
    """Tells the observer what tasks tell; when one has failed, stops the others, for which Dask does not wait."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._running, self._failed = 0, False
        self._changed = Condition()

    def advanced(self, rows: int, n_bytes: int) -> None:
        self._observer.advanced(rows, n_bytes)

    def stop_requested(self) -> bool:
        return self._failed or self._observer.stop_requested()

    @contextmanager
    def task(self) -> Iterator[None]:
        """Be a running task within the block."""
        with self._changed:
            if self._failed:
                raise InterruptedRunError("stopped because another task has failed")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def __enter__(self) -> None:
        """Begin a Dask graph."""

    def __exit__(self, kind: object, *_: object) -> None:
        """After a failure, wait until the other tasks have come to the end of their blocks."""
        with self._changed:
            self._failed = kind is not None
            self._changed.wait_for(lambda: not self._failed or self._running == 0)


def _fold(
    blueprint: Callable[[], Statistic], source: Source, partition: Partition, watch: _Watch, shard: tuple[int, int], after: None
) -> _Held:
    with watch.task():
        return _Held(fold_shard(blueprint, source, partition.blocks(*shard), watch))


def _write(
    compute: Compute, write: Write, source: Source, partition: Partition, watch: _Watch, written: Written, shard: tuple[int, int]
) -> None:
    with watch.task():
        work_through(source, partition.blocks(*shard), lambda start, block: write(start, compute(block)), watch)
        written.add(*shard)


def _add(watch: _Watch, total: Total, group: _Held, n_shards: int, before: None) -> None:
    """Add a group to the total; as a task that is waited for, so that a total is never left half added."""
    with watch.task():
        total.add(group.take(), n_shards)


def _merge_into(first: _Held, second: _Held) -> _Held:
    """Merge in place: within one process each state is consumed once."""
    state = first.take()
    state.merge(second.take())
    return _Held(state)


def _done(state: _Held | None, before: None) -> None:
    """Stand for 'this has been merged' without holding the state."""
