from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.core import error_message
from distributed.protocol import pickle

import streampca as sp
from streampca import errors
from streampca.blocks import Partition
from streampca.engine import Engine, Scheduler, choose_scheduler, connect
from streampca.engine.cluster import Cluster, Job, _on_source
from streampca.engine.threads import Threads
from streampca.errors import InterruptedRunError, MemoryBudgetError, SourceNotFoundError, UsageError
from streampca.events import Observer
from streampca.memory import GIB
from streampca.statistics import Scatter
from tests.engine.conformance import EngineTests, by_hand, cut, wait_until
from tests.engine.scripted import Counter, Failing, Scripted, Sum, Telling, Unseen, blas_threads, table
from tests.statistics.conformance import bits


class TestCluster(EngineTests):
    @pytest.fixture
    def scheduler(self, client: Client) -> Scheduler:
        return Cluster(client)

    def test_a_persisted_dask_array(self, scheduler: Scheduler, client: Client) -> None:
        rows = table(3000, 6, "float32")
        source = sp.open_source(client.persist(da.from_array(rows, chunks=(50, 4))))
        assert bits(self.run(scheduler, Scatter(6), source)) == bits(by_hand(Scatter(6), sp.open_source(rows), cut(source)))

    def test_an_error_that_goes_away_is_not_seen(self, scheduler: Scheduler, tmp_path: Path) -> None:
        source = Failing(3000, row=1555, marker=str(tmp_path / "failed"))
        assert bits(self.run(scheduler, Sum(), source)) == bits(by_hand(Sum(), Scripted(3000), cut(source)))
        assert (tmp_path / "failed").exists()

    def test_workers_have_one_blas_thread_only_in_a_pass(self, scheduler: Scheduler, client: Client) -> None:
        before = client.run(blas_threads)
        self.run(scheduler, Sum(), Scripted(300))
        assert client.run(blas_threads) == before

    def test_nothing_stays_on_the_cluster(self, scheduler: Scheduler, client: Client) -> None:
        self.run(scheduler, Sum(), Scripted(3000))
        with pytest.raises(OSError, match="cannot read"):
            self.run(scheduler, Sum(), Failing(3000, row=1555))
        wait_until(lambda: not any(client.has_what().values()), 10)

    def test_what_it_tells_the_planner(self, scheduler: Scheduler) -> None:
        assert (scheduler.workers, scheduler.memory_limit()) == (1, 2 * GIB)

    def test_a_worker_that_does_not_see_the_file(self, scheduler: Scheduler) -> None:
        """It is an interruption, which keeps what was done, but only if the file is there for this process."""
        with pytest.raises(InterruptedRunError, match=r"worker tcp://127\.0\.0\.1:\d+: no such file: /data/x\.h5.*shared file system"):
            self.run(scheduler, Sum(), Unseen(300, pid=os.getpid()))
        gone = Unseen(300)
        with pytest.raises(SourceNotFoundError, match="no such file"):
            scheduler.fold(Sum(), gone, cut(gone), Observer())

    def test_what_does_not_fit_in_a_worker_is_refused(self, scheduler: Scheduler) -> None:
        source = sp.open_source(da.zeros((20_000, 12_000), chunks=(1000, 12_000)))
        with pytest.raises(MemoryBudgetError, match=r"80% of the 2\.00 GiB of the smallest Dask worker.*dask worker --memory-limit \d+MiB"):
            sp.PCA(solver="covariance", memory="64GiB").plan_for(source, scheduler=scheduler)

    def test_many_shards_are_scheduled_in_reasonable_time(self, scheduler: Scheduler) -> None:
        source = Scripted(500)
        began = time.perf_counter()
        result: Any = scheduler.fold(Sum(), source, Partition(source.info.segments, 1, 1), Observer())
        seconds = time.perf_counter() - began
        print(f"{seconds:.1f} s for 500 shards")
        assert seconds < 20
        assert result.total[0] == pytest.approx(source.read(slice(None)).sum())


class TestChoice:
    def test_the_active_client_is_used(self, client: Client) -> None:
        assert choose_scheduler() == Cluster(client)

    def test_dask_config_comes_first(self, client: Client) -> None:
        with dask.config.set(scheduler="threads", num_workers=3):
            assert choose_scheduler() == Threads(3)
        with dask.config.set(scheduler="synchronous"):
            assert choose_scheduler() == Threads(1)

    def test_without_a_client(self) -> None:
        with dask.config.set(num_workers=5):
            assert choose_scheduler() == Threads(5)
        assert choose_scheduler(workers=7) == Threads(7)

    def test_processes_are_not_supported(self) -> None:
        with dask.config.set(scheduler="processes"), pytest.raises(UsageError, match="distributed Client"):
            choose_scheduler()

    def test_by_address(self, local_cluster: LocalCluster) -> None:
        with connect(local_cluster.scheduler_address) as client:
            assert len(client.nthreads()) == 2

    def test_nobody_answers(self, tmp_path: Path) -> None:
        with pytest.raises(InterruptedRunError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1") as caught:
            connect("tcp://127.0.0.1:1", timeout="1s")
        assert caught.value.exit_code == 75


class TestLostWorkers:
    @pytest.fixture
    def own_client(self) -> Iterator[Client]:
        """A cluster to be harmed, whose nannies start workers again."""
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit=0) as cluster,
            Client(cluster) as client,
        ):
            yield client

    def test_a_killed_worker_changes_no_bit(self, own_client: Client, tmp_path: Path) -> None:
        source = Telling(2400, seconds=0.01, folder=str(tmp_path))
        partition = cut(source, 10, 40)
        killed: list[int] = []

        def kill() -> None:
            """Kill the worker that has read some rows in mid-pass."""
            wait_until(lambda: len(list(tmp_path.iterdir())) > 60, 30)
            pid = int(max(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime).name.partition("-")[0])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

        workers = set(own_client.run(os.getpid).values())
        killer = threading.Thread(target=kill)
        killer.start()
        observer = Counter()
        result = Engine(source, partition, Cluster(own_client), observer).run("scatter", Scatter(3))
        killer.join()
        assert set(killed) < workers
        assert len(list(tmp_path.iterdir())) > 240  # some blocks were read again, by another process
        assert bits(result) == bits(by_hand(Scatter(3), Scripted(2400), partition))
        assert observer.rows == 2400

    def test_a_lost_scheduler_is_an_interruption(self, own_client: Client, tmp_path: Path) -> None:
        source = Telling(2400, seconds=0.02, folder=str(tmp_path))

        def close() -> None:
            wait_until(lambda: len(list(tmp_path.iterdir())) > 10, 30)
            own_client.shutdown()

        closer = threading.Thread(target=close)
        closer.start()
        began = time.monotonic()
        with pytest.raises(InterruptedRunError, match="run again") as caught:
            Engine(source, cut(source, 10, 40), Cluster(own_client)).run("sum", Sum())
        assert caught.value.exit_code == 75
        assert time.monotonic() - began < 30
        closer.join()


def test_numpy_is_the_same_on_the_workers(client: Client) -> None:
    """What the equality of bits rests on, and what a mixed cluster would not have."""
    assert set(client.run(lambda: np.__version__).values()) == {np.__version__}


def test_a_worker_has_no_more_tasks_at_once_than_its_memory_allows(client: Client) -> None:
    """A worker of four threads, as it is seen by its tasks."""
    running: list[int] = []
    most: list[int] = []

    def work(source: Any, blocks: Any) -> None:
        running.append(1)
        most.append(len(running))
        meeting.wait(20)
        running.pop()

    for at_once, together in ((2, 2), (None, 4)):
        most.clear()
        meeting = threading.Barrier(together)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _, limit=at_once: _on_source(Job(work, None, limit), []), range(12)))
        assert max(most) == together
    assert Cluster(client).limited_to(3) == Cluster(client)
    assert Cluster(client, at_once=4).workers == 1


def test_every_error_comes_back_from_a_worker() -> None:
    for kind in [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)]:
        with pytest.raises(kind) as caught:
            raise kind(*((0.0, 1, 2) if kind is errors.NonFiniteError else ("x",)))
        back = pickle.loads(error_message(caught.value)["exception"].data)  # as a worker sends it
        assert (type(back), str(back)) == (kind, str(caught.value))
