"""A dask.distributed cluster: groups of shards are folded on the workers and merged here, in order.

A lost worker's shards are computed again by Dask; the same shards in the same order give the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition
from typing import Any
from uuid import uuid4

from distributed import CancelledError, Client, WorkerPlugin, get_worker
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from streampca.blocks import Partition
from streampca.engine.ledger import Total, Written
from streampca.engine.parts import Parts
from streampca.engine.process import enter_pass, in_pass, leave_pass
from streampca.engine.scheduler import Compute, Write
from streampca.engine.tasks import Array, BlockRows, fold_shard, work_through
from streampca.errors import InterruptedRunError, SourceNotFoundError
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.statistics.base import Statistic

RETRIES = 3
_STOP_SECONDS = 0.5  # between two looks at the wish to stop
_LOST = (CancelledError, CommClosedError, KilledWorker, TimeoutError)
Shards = list[tuple[int, int]]


@dataclass(frozen=True)
class Cluster:
    """A cluster, reached through a client."""

    client: Client
    at_once: int | None = None  # tasks that a worker works on at the same time, if fewer than it has threads

    @property
    def workers(self) -> int:
        """Tasks that the worker with most threads works on at the same time."""
        most = max(self._threads(), default=1)
        return most if self.at_once is None else min(most, self.at_once)

    def limited_to(self, workers: int) -> Cluster:
        """Return the cluster with at most so many tasks at once in a worker: the others wait, and take no memory."""
        return replace(self, at_once=workers) if workers < self.workers else self

    def memory_limit(self) -> int | None:
        """Return the memory of the smallest worker that has a limit."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers if worker.get("memory_limit")]
        return min(limits, default=None)

    def fold(self, statistic: Statistic, source: Source, partition: Partition, observer: Observer, total: Total | None = None) -> Statistic:
        """Submit groups of shards, a bounded number ahead, and merge the groups here in order."""
        total, shards = total or Total(), partition.shards()
        with self._pass(source), self._shared(partial(_fold, statistic.blueprint()), source) as job:
            submit = partial(self._submit_group, job, source, partition)
            done = total.n_shards
            for group, part in self._ahead(shards[done:], partition.group, submit):
                done += len(part)
                total.add(_result(group, part, observer), done)
                del group
                _report(part, source, observer)
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
        """Compute on the workers; write there if any process may, else here, in order."""
        function: Callable[..., Any] = partial(_write, compute, write) if anywhere else partial(_compute, compute)
        written = written or Written()
        shards = written.missing(partition.shards())
        with self._pass(source), self._shared(function, source) as job:
            submit = partial(self._submit_each, job, source, partition)
            for futures, part in self._ahead(shards, partition.group, submit):
                for shard in part:
                    for start, block in _result(futures.pop(0), [shard], observer) or ():
                        write(start, block)
                    written.add(*shard)
                _report(part, source, observer)

    def _threads(self) -> list[int]:
        return list(self.client.nthreads().values())

    def _ahead(self, shards: Shards, size: int, submit: Callable[[Shards], Any]) -> Iterator[tuple[Any, Shards]]:
        """Yield what was submitted for each group, in order, keeping every worker busy with the next ones."""
        groups = [shards[start : start + size] for start in range(0, len(shards), size)]
        ahead = 1 + -(-2 * sum(self._threads()) // size)
        pending: deque[Any] = deque()
        for index, group in enumerate(groups):
            while len(pending) < ahead and index + len(pending) < len(groups):
                pending.append(submit(groups[index + len(pending)]))
            yield pending.popleft(), group

    @contextmanager
    def _shared(self, function: Callable[..., Any], source: Source) -> Iterator[Any]:
        """Put what all tasks need on the cluster once; a lost copy is made again, unlike scattered data.

        It is taken back even if the traceback of an error still refers to it.
        """
        job = self.client.submit(_same, Job(function, None if _is_lazy(source) else source, self.at_once), pure=False, retries=RETRIES)
        try:
            yield job
        finally:
            job.release()

    def _submit_each(self, job: Any, source: Source, partition: Partition, shards: Shards) -> list[Any]:
        return [self._submit(job, source, partition, shard) for shard in shards]

    def _submit_group(self, job: Any, source: Source, partition: Partition, shards: Shards) -> Any:
        group = None
        for shard in shards:
            state = self._submit(job, source, partition, shard, weighted=source.info.weighted)
            group = state if group is None else self.client.submit(_merged, group, state, pure=False, retries=RETRIES)
        return group

    def _submit(self, job: Any, source: Source, partition: Partition, shard: tuple[int, int], *, weighted: bool = False) -> Any:
        """Submit a task on the blocks of a shard; rows of a Dask array are scheduled by the cluster itself, with weights if need be."""
        blocks = partition.blocks(*shard)
        if not _is_lazy(source):
            return self.client.submit(_on_source, job, blocks, pure=False, retries=RETRIES)
        parts = [self.client.compute(source.lazy_rows(start, stop), retries=RETRIES) for start, stop in blocks]
        weights = [self._submit_weights(source, *rows) for rows in blocks] if weighted else None
        return self.client.submit(_on_parts, job, parts, blocks, source.info.feature_names, weights, pure=False, retries=RETRIES)

    def _submit_weights(self, source: Source, start: int, stop: int) -> Any:
        """Put the weights of a block on the cluster: computed there if they are a Dask array, else as they are."""
        lazy = source.lazy_weights(start, stop)
        if lazy is not None:
            return self.client.compute(lazy, retries=RETRIES)
        return self.client.submit(_same, source.weights(slice(start, stop)), pure=False, retries=RETRIES)

    @contextmanager
    def _pass(self, source: Source) -> Iterator[None]:
        """Hold every worker, also one that joins later, and this process, which merges, at one BLAS thread.

        Say what it means when the cluster is lost, or when a worker does not see what this process sees.
        """
        plugin = InPass()
        try:
            self.client.register_plugin(plugin)
            with in_pass():
                yield
        except _LOST as error:
            what = f"{type(error).__name__}: {error}"
            raise InterruptedRunError(f"the Dask cluster was lost in mid-pass ({what}): run again when it is back") from error
        except UnseenError as error:
            self._unregister(plugin)
            source.check_unchanged()  # it may be gone for everybody
            raise InterruptedRunError(
                f"a Dask worker does not see what this process sees ({error}): every worker must have the files under the same path, "
                "on a shared file system. Run again when they have, or without the cluster"
            ) from error
        except BaseException:
            self._unregister(plugin)
            raise
        self._unregister(plugin)

    def _unregister(self, plugin: InPass) -> None:
        """Let the workers go, if there is still somebody to ask: a scheduler that is gone would be waited for."""
        if self.client.status == "running":
            with suppress(*_LOST):
                self.client.unregister_worker_plugin(plugin.name)


class InPass(WorkerPlugin):
    """Keeps a worker ready for tasks of a pass while it is registered."""

    def __init__(self) -> None:
        self.name = f"streampca-pass-{uuid4().hex}"

    def setup(self, worker: Any) -> None:
        """Begin."""
        enter_pass()

    def teardown(self, worker: Any) -> None:
        """End."""
        leave_pass()


@dataclass(frozen=True)
class Job:
    """What all tasks of a pass share; the source is None where each task is given its rows."""

    function: Callable[..., Any]
    source: Source | None
    at_once: int | None


class UnseenError(SourceNotFoundError):
    """A worker does not see a file."""


_turn = Condition()
_working = 0  # tasks that this process works on


@contextmanager
def _slot(at_once: int | None) -> Iterator[None]:
    """Wait until fewer than ``at_once`` tasks are worked on in this process, and be one of them within the block."""
    global _working
    with _turn:
        _turn.wait_for(lambda: at_once is None or _working < at_once)
        _working += 1
    try:
        yield
    finally:
        with _turn:
            _working -= 1
            _turn.notify_all()


def _result(future: Any, shards: Shards, observer: Observer) -> Any:
    """Wait for a result, but not if asked to stop: what is under way on the workers is given up."""
    while not future.done():
        if observer.stop_requested():
            raise InterruptedRunError(f"stopped on request at row {shards[0][0]}: run again")
        with suppress(TimeoutError):  # its own too: that is raised below
            return future.result(timeout=_STOP_SECONDS)
    return future.result()


def _report(shards: Shards, source: Source, observer: Observer) -> None:
    rows = sum(stop - start for start, stop in shards)
    observer.advanced(rows, rows * source.info.row_bytes)
    if observer.stop_requested():
        raise InterruptedRunError(f"stopped on request at row {shards[-1][1]}: run again")


def _is_lazy(source: Source) -> bool:
    return source.lazy_rows(0, 1) is not None


def _same(value: Any) -> Any:
    return value


def _on_source(job: Job, blocks: BlockRows) -> Any:
    with _slot(job.at_once):
        try:
            return job.function(job.source, blocks)
        except FileNotFoundError as error:
            raise UnseenError(f"worker {get_worker().address}: {error}") from None


def _on_parts(
    job: Job,
    parts: list[Array],
    blocks: BlockRows,
    names: tuple[str, ...] | None,
    weights: list[Array] | None,
) -> Any:
    with _slot(job.at_once):
        return job.function(Parts(parts, blocks, names, weights), blocks)


def _fold(blueprint: Callable[[], Statistic], source: Source, blocks: BlockRows) -> Statistic:
    return fold_shard(blueprint, source, blocks, Observer())


def _write(compute: Compute, write: Write, source: Source, blocks: BlockRows) -> None:
    work_through(source, blocks, lambda start, block: write(start, compute(block)), Observer())


def _compute(compute: Compute, source: Source, blocks: BlockRows) -> list[tuple[int, Array]]:
    results: list[tuple[int, Array]] = []
    work_through(source, blocks, lambda start, block: results.append((start, compute(block))), Observer())
    return results


def _merged(first: Statistic, second: Statistic) -> Statistic:
    """Merge into a copy: a state may be needed again when a worker is lost."""
    result = first.copy()
    result.merge(second)
    return result
