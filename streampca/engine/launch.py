"""Clusters that live as long as a run: worker processes on this machine, or SLURM jobs through dask-jobqueue.

Also what is done with a client of any cluster before and around a run: waiting for a worker, saying where it is, Dask's own report.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from streampca.engine.scheduler import cpu_count
from streampca.engine.threads import Threads
from streampca.errors import ConfigError, InterruptedRunError, MissingExtraError, OutputError, UsageError
from streampca.events import Observer
from streampca.memory import format_bytes, parse_bytes

_POLL_SECONDS, _PATIENCE = 0.1, 5.0


@dataclass(frozen=True)
class Expected(Threads):
    """Workers that are not there yet, to plan for: each has so many threads, and so much memory."""

    limit: int | None = None

    def memory_limit(self) -> int | None:
        """Return what each worker will have."""
        return self.limit


def expected_processes(processes: int, threads: int | None) -> Expected:
    """Return what ``local_processes`` would start."""
    from distributed.system import MEMORY_LIMIT

    return Expected(threads or max(cpu_count() // processes, 1), MEMORY_LIMIT // processes)


@contextmanager
def local_processes(processes: int, threads: int | None = None) -> Iterator[Any]:
    """Give a client of worker processes on this machine, which nobody outside can reach."""
    from distributed import Client, LocalCluster

    each = expected_processes(processes, threads)
    with (
        LocalCluster(
            n_workers=processes,
            threads_per_worker=each.workers,
            memory_limit=each.memory_limit(),
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,  # what goes wrong is told in one line
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def expected_jobs(cores: int, memory: str, processes: int) -> Expected:
    """Return what ``slurm_jobs`` would start.

    >>> expected_jobs(cores=8, memory="32GiB", processes=2)
    Expected(workers=4, limit=17179869184)
    """
    return Expected(max(cores // processes, 1), parse_bytes(memory) // processes)


@contextmanager
def slurm_jobs(options: Mapping[str, Any], jobs: int) -> Iterator[Any]:
    """Give a client of a scheduler in this process whose workers are SLURM jobs."""
    from distributed import Client

    if shutil.which("sbatch") is None:
        raise UsageError("there is no sbatch on this machine: run where SLURM jobs can be submitted, or leave out scheduler.slurm")
    logging.getLogger("tornado.application").setLevel(logging.CRITICAL)  # what sbatch refuses is told in one line
    cluster = slurm_cluster(options)
    try:
        cluster.sync(_submit, cluster, jobs)
    except RuntimeError as error:
        with suppress(AssertionError):  # of Dask, about jobs that were never submitted
            cluster.close()
        why = " ".join(str(error).rpartition("stderr:")[2].split())
        raise UsageError(f"SLURM does not take the jobs ({why}): change scheduler.slurm, or run again later") from error
    with cluster, Client(cluster, set_as_default=False) as client:
        yield client


async def _submit(cluster: Any, jobs: int) -> None:
    """Submit jobs and wait until SLURM has taken them, not until they start."""
    cluster.scale(jobs=jobs)
    await cluster


def slurm_cluster(options: Mapping[str, Any]) -> Any:
    """Return dask-jobqueue's cluster, without jobs so far; its dashboard is for this machine only."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise MissingExtraError("SLURM jobs need dask-jobqueue, which is not installed: pip install 'streampca[jobqueue]'") from None
    try:
        return SLURMCluster(**options, scheduler_options={"dashboard_address": "127.0.0.1:0"})
    except ValueError as error:
        raise ConfigError(f"scheduler.slurm: {error}") from None


def wait_for_a_worker(client: Any, observer: Observer, seconds: float) -> None:
    """Return when there is a worker, whose memory and threads the plan needs to know."""
    began, told = time.monotonic(), False
    while not client.nthreads():
        if observer.stop_requested():
            raise InterruptedRunError("stopped on request while waiting for a Dask worker: run again")
        waited, where = time.monotonic() - began, client.scheduler.address
        if waited > seconds:
            raise InterruptedRunError(f"no worker has joined the Dask scheduler at {where} for {seconds:.0f} s: start some, and run again")
        if waited > _PATIENCE and not told:
            observer.noted(f"waiting for a worker to join the Dask scheduler at {where}, at most {seconds:.0f} s")
            told = True
        time.sleep(_POLL_SECONDS)


def describe(client: Any) -> str:
    """Say in one line what a cluster is, and where it can be watched."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limit = min((worker["memory_limit"] for worker in workers if worker.get("memory_limit")), default=None)
    threads = sum(worker["nthreads"] for worker in workers)
    link = None
    with suppress(KeyError):  # a scheduler without a dashboard
        link = client.dashboard_link
    return (
        f"Dask cluster at {client.scheduler.address}: {len(workers)} worker(s), {threads} thread(s)"
        + (f", at least {format_bytes(limit)} each" if limit else "")
        + (f"; dashboard: {link}" if link else "; no dashboard")
    )


@contextmanager
def performance_reported(client: Any, path: str | None) -> Iterator[None]:
    """Have Dask write what the cluster did within the block to an HTML file, unless the block fails."""
    if path is None:
        yield
        return
    from distributed import performance_report

    try:
        client.run_on_scheduler(version, "bokeh")
    except PackageNotFoundError:
        raise MissingExtraError("Dask's performance report needs bokeh, which the scheduler does not have: pip install bokeh") from None
    report = performance_report(path)
    with _writing(path), client.as_current():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        report.__enter__()
    yield
    with _writing(path), client.as_current():
        report.__exit__(None, None, None)


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write the performance report {path}: {error}") from error
