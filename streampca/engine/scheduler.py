"""Where tasks run: the protocol that Dask's threads and a cluster share, and the choice between them.

Both run the same shards and add them in the same order, so they give the same bits.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import dask

from streampca.blocks import Partition
from streampca.engine.ledger import Total, Written
from streampca.engine.tasks import Array
from streampca.errors import InterruptedRunError, UsageError
from streampca.events import Observer
from streampca.memory import MIB
from streampca.sources.base import Source
from streampca.statistics.base import Statistic

Compute = Callable[[Array], Array]
Write = Callable[[int, Array], None]

_SMALL_STATES = 64 * MIB  # together
_SYNCHRONOUS = ("sync", "synchronous", "single-threaded")
_LOCAL = ("threads", "threading", *_SYNCHRONOUS)


class Scheduler(Protocol):
    """Runs the shards of a partition."""

    @property
    def workers(self) -> int:
        """Number of tasks that run at once in one process."""

    def fold(self, statistic: Statistic, source: Source, partition: Partition, observer: Observer, total: Total | None = None) -> Statistic:
        """Return the statistic of all rows; ``total`` holds that of the first shards, and takes in the others group by group."""

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
        """Compute something of every block and write it; ``anywhere``: any process may write; ``written``: what is there already."""

    def limited_to(self, workers: int) -> Scheduler:
        """Return the same with at most so many tasks at once in this process."""

    def memory_limit(self) -> int | None:
        """Return the memory of the smallest process that runs tasks, if it is not this one."""


def choose_scheduler(client: Any = None, workers: int | None = None) -> Scheduler:
    """Return the scheduler to use: the given client, the one active in this process, or local threads.

    ``dask.config.set(scheduler="threads")`` (or ``"synchronous"``, or ``num_workers=...``) is honoured.
    """
    from streampca.engine.threads import Threads

    configured = dask.config.get("scheduler", None)
    if configured in ("processes", "multiprocessing"):
        raise UsageError("Dask's 'processes' scheduler is not supported: use 'threads', or a distributed Client")
    client = client or (None if configured in _LOCAL else _active_client())
    if client is not None:
        from streampca.engine.cluster import Cluster

        return Cluster(client)
    if configured in _SYNCHRONOUS:
        return Threads(1)
    return Threads(workers or dask.config.get("num_workers", None) or cpu_count())


def connect(address: str | None = None, file: str | None = None, timeout: str = "30s") -> Any:
    """Return a client of a running scheduler, by address or scheduler file."""
    from distributed import Client

    try:
        # Not as the default client: one that finds no scheduler would stay it, and be taken for a cluster.
        return Client(address=address, scheduler_file=None if address else file, timeout=timeout, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        where = address or file
        raise InterruptedRunError(f"no Dask scheduler answers at {where} ({error}): is it running, and reachable from here?") from error


def cpu_count() -> int:
    """Return the number of processors that this process may use (affinity and cgroup quota)."""
    from dask.system import CPU_COUNT

    return max(int(CPU_COUNT), 1) if CPU_COUNT else (os.cpu_count() or 1)


def window(workers: int, state_bytes: int = 0) -> int:
    """Return how many shards may be under way or waiting for their turn to be merged: more if their states are small."""
    return 2 * workers + 2 if (2 * workers + 2) * state_bytes <= _SMALL_STATES else workers + 1


def live_states(workers: int, state_bytes: int = 0) -> int:
    """Return how many states may exist at once in a process: being folded, waiting for a merge, the group and the total."""
    return window(workers, state_bytes) + 2


def _active_client() -> Any:
    distributed = sys.modules.get("distributed")  # not imported means that there is no client
    if distributed is None:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None
