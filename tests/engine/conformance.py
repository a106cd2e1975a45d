"""What every scheduler does alike: the same shards, the same order, the same bits, the same errors."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest

import streampca as sp
from streampca.blocks import Partition
from streampca.engine import Engine, Scheduler, map_rows
from streampca.errors import ChangedDataError, DataError, InterruptedRunError, NonFiniteError
from streampca.sources.base import Source
from streampca.statistics import Moments, Scatter, Statistic
from tests.engine.scripted import Changing, Counter, Failing, Order, Scripted, Slow, Spoilt, Sum, Threads1, blas_threads, table
from tests.statistics.conformance import bits

STATISTICS = [Moments(6), Scatter(6), Scatter(6, "float32")]


def cut(source: Source, block_rows: int = 70, shard_rows: int = 140) -> Partition:
    return Partition(source.info.segments, block_rows, shard_rows)


def by_hand(statistic: Statistic, source: Source, partition: Partition) -> Any:
    """The definition: shards folded from zero, merged in order within groups, groups merged in order."""
    total: Any = None
    shards = partition.shards()
    for start in range(0, len(shards), partition.group):
        group: Any = None
        for shard in shards[start : start + partition.group]:
            state = statistic.fresh()
            for a, b in partition.blocks(*shard):
                state.update(source.read(slice(a, b)), source.weights(slice(a, b)))
            if group is None:
                group = state
            else:
                group.merge(state)
        if total is None:
            total = group
        else:
            total.merge(group)
    return total


class EngineTests(ABC):
    @abstractmethod
    @pytest.fixture
    def scheduler(self) -> Scheduler: ...

    def run(self, scheduler: Scheduler, statistic: Any, source: Source, partition: Partition | None = None, observer: Any = None) -> Any:
        return Engine(source, partition or cut(source), scheduler, observer or Counter()).run("test", statistic)

    # ---------------------------------------------------------------------------------- the same bits

    @pytest.mark.parametrize("statistic", STATISTICS, ids=["moments", "scatter64", "scatter32"])
    @pytest.mark.parametrize("kind", ["memory", "hdf5", "dask", "dask columns"])
    def test_the_bits_are_those_of_a_loop(self, scheduler: Scheduler, statistic: Statistic, kind: str, tmp_path: Path) -> None:
        rows = table(3000, 6, "float32") + np.float32(5)
        chunks = (50, 4) if kind == "dask columns" else (50, 6)
        if kind == "hdf5":
            with h5py.File(tmp_path / "x.h5", "w") as file:
                file.create_dataset("X", data=rows, chunks=chunks, compression="gzip")
        data = {"memory": rows, "hdf5": tmp_path / "x.h5"}.get(kind)
        source = sp.open_source(da.from_array(rows, chunks=chunks) if data is None else data)
        result = self.run(scheduler, statistic, source)
        assert bits(result) == bits(by_hand(statistic, source, cut(source)))
        if kind != "memory":  # whose chunks have another height
            memory = sp.open_source(rows)
            assert bits(result) == bits(by_hand(statistic, memory, cut(source)))

    @pytest.mark.parametrize("statistic", STATISTICS, ids=["moments", "scatter64", "scatter32"])
    @pytest.mark.parametrize("kind", ["memory", "hdf5", "dask", "dask both", "dask columns", "dask of a file", "some rows", "dask rows"])
    def test_weights_reach_the_statistic(self, scheduler: Scheduler, statistic: Statistic, kind: str, tmp_path: Path) -> None:
        rows = table(3000, 6, "float32") + np.float32(5)
        weights = np.random.default_rng(0).integers(0, 3, 3000) * 1.0
        with h5py.File(tmp_path / "x.h5", "w") as file:
            file.create_dataset("X", data=rows, chunks=(50, 6), compression="gzip")
            file.create_dataset("w", data=weights, chunks=(700,))
        array, lazy, path = da.from_array(rows, chunks=(50, 6)), da.from_array(weights, chunks=110), tmp_path / "x.h5"
        source = {
            "memory": lambda: sp.open_source(rows, weights=weights),
            "hdf5": lambda: sp.open_source(path, "X", weights="::w"),
            "dask": lambda: sp.open_source(array, weights=weights),
            "dask both": lambda: sp.open_source(array, weights=lazy),
            "dask columns": lambda: sp.open_source(array.rechunk((50, 4)), weights=lazy),
            "dask of a file": lambda: sp.open_source(array, weights=f"{path}::w"),
            "some rows": lambda: sp.open_source(path, "X", rows="100:2900:3", weights="::w"),
            "dask rows": lambda: sp.open_source(array, rows="100:2900:3", weights=lazy),
        }[kind]()
        chosen = slice(100, 2900, 3) if "rows" in kind else slice(None)
        result = self.run(scheduler, statistic, source)
        memory = sp.open_source(rows[chosen], weights=weights[chosen])
        assert bits(result) == bits(by_hand(statistic, source, cut(source))) == bits(by_hand(statistic, memory, cut(source)))
        repeated = np.repeat(rows[chosen], weights[chosen].astype(int), axis=0)
        assert result.count == len(repeated)
        assert result.rows == np.count_nonzero(weights[chosen])
        np.testing.assert_allclose(result.mean, repeated.mean(axis=0, dtype=np.float64), rtol=1e-12)
        second = result.scatter.diagonal() if isinstance(result, Scatter) else result.squares
        np.testing.assert_allclose(second, repeated.var(axis=0, dtype=np.float64) * len(repeated), rtol=1e-12)

    @pytest.mark.parametrize("kind", ["memory", "dask", "dask both"])
    def test_wrong_weights_are_found_by_their_row(self, scheduler: Scheduler, kind: str) -> None:
        rows, weights = table(1000), np.ones(1000)
        weights[777] = -2
        data: Any = rows if kind == "memory" else da.from_array(rows, chunks=(100, 3))
        source = sp.open_source(data, weights=da.from_array(weights, chunks=90) if kind == "dask both" else weights)
        with pytest.raises(DataError, match=r"the weight of row 777 is -2\.0"):
            self.run(scheduler, Scatter(3), source)

    def test_rows_are_mapped_whatever_their_weights(self, scheduler: Scheduler) -> None:
        rows, found = table(500), np.zeros((500, 3))
        for data in (rows, da.from_array(rows, chunks=(60, 3))):
            source = sp.open_source(data, weights=np.zeros(500))
            put = partial(_put, found)
            map_rows("double", _double, put, source, cut(source, 50, 100), scheduler, Counter(), anywhere=False)
            np.testing.assert_array_equal(found, 2 * rows)
            found[:] = 0

    @pytest.mark.parametrize("n_shards", [1, 2, 7, 8, 9, 64, 300])
    def test_the_order_of_merges_is_fixed(self, scheduler: Scheduler, n_shards: int) -> None:
        source = Scripted(2 * n_shards)
        partition = cut(source, 1, 2)
        assert self.run(scheduler, Order(), source, partition).text == by_hand(Order(), source, partition).text

    def test_no_rows_give_an_empty_statistic(self, scheduler: Scheduler) -> None:
        result = scheduler.fold(Moments(3), Scripted(1), Partition((), 10, 20), Counter())
        assert result.count == 0  # type: ignore[attr-defined]

    def test_the_given_statistic_stays_empty(self, scheduler: Scheduler) -> None:
        statistic = Moments(3)
        assert self.run(scheduler, statistic, Scripted(500)).count == 500
        assert statistic.count == 0

    def test_rows_are_mapped_to_their_places(self, scheduler: Scheduler) -> None:
        source, found = Scripted(500, chunk_rows=50), np.zeros((500, 3))
        partition, observer = cut(source, 50, 100), Counter()
        map_rows("double", _double, lambda start, block: _put(found, start, block), source, partition, scheduler, observer, anywhere=False)
        np.testing.assert_array_equal(found, 2 * source.read(slice(None)))
        assert observer.rows == 500

    # ---------------------------------------------------------------------------------- observers

    @pytest.mark.parametrize("source", [Scripted(1111), Scripted(1111, chunk_rows=40)])
    def test_every_row_is_told_once(self, scheduler: Scheduler, source: Source) -> None:
        observer = Counter()
        self.run(scheduler, Sum(), source, observer=observer)
        assert (observer.rows, observer.n_bytes) == (1111, 1111 * 24)
        assert observer.told == [("started", "test", 1111, 1111 * 24), ("finished", "test")]

    def test_it_stops_on_request(self, scheduler: Scheduler) -> None:
        source, observer = Slow(4000, seconds=0.002), Counter(stop_after=500)
        with pytest.raises(InterruptedRunError) as caught:
            self.run(scheduler, Sum(), source, cut(source, 10, 20), observer)
        assert caught.value.exit_code == 75
        assert 500 <= observer.rows < 4000
        assert observer.told[-1][0] == "started"

    def test_passes_are_remembered(self, scheduler: Scheduler) -> None:
        engine = Engine(Scripted(100), cut(Scripted(100)), scheduler)
        engine.run("one", Sum())
        engine.run("two", Sum())
        assert engine.passes == ["one", "two"]

    # ---------------------------------------------------------------------------------- errors

    @pytest.mark.parametrize(("row", "column"), [(0, 2), (69, 0), (70, 1), (1500, 2), (1999, 0)])
    def test_a_nan_is_found_by_its_row_in_the_whole(self, scheduler: Scheduler, row: int, column: int) -> None:
        with pytest.raises(NonFiniteError, match=rf"row {row}, column {column} \('{'abc'[column]}'\)") as caught:
            self.run(scheduler, Scatter(3), Spoilt(2000, names=("a", "b", "c"), row=row, column=column))
        assert (caught.value.row, caught.value.column) == (row, column)

    def test_a_nan_in_a_dask_array(self, scheduler: Scheduler) -> None:
        rows = table(1000)
        rows[777, 1] = np.nan
        with pytest.raises(NonFiniteError, match="row 777, column 1"):
            self.run(scheduler, Scatter(3), sp.open_source(da.from_array(rows, chunks=(100, 2))))

    def test_masked_entries_of_a_dask_array_are_not_taken_for_values(self, scheduler: Scheduler) -> None:
        rows = np.ma.masked_array(table(1000), mask=False)
        rows[777, 1] = np.ma.masked
        with pytest.raises(NonFiniteError, match="row 777, column 1"):
            self.run(scheduler, Scatter(3), sp.open_source(da.from_array(rows, chunks=(100, 3), asarray=False)))

    def test_the_error_of_a_source_comes_through_and_no_thread_stays(self, scheduler: Scheduler) -> None:
        self.run(scheduler, Sum(), Scripted(3000))  # what Dask keeps alive once and for all
        before = threading.active_count()
        source = Failing(1200, row=5, seconds=0.005)
        with pytest.raises(OSError, match="cannot read row 5"):
            self.run(scheduler, Sum(), source, cut(source, 1, 300))  # the other shards would take 1.5 s each
        wait_until(lambda: not any("read-ahead" in thread.name for thread in threading.enumerate()), 0.5)
        wait_until(lambda: threading.active_count() <= before, 0.5)

    def test_data_that_changes_in_mid_pass_is_refused(self, scheduler: Scheduler, tmp_path: Path) -> None:
        source = Changing(2000, row=1000, marker=str(tmp_path / "changed"))
        observer = Counter()
        with pytest.raises(ChangedDataError, match="run again when nothing writes to it"):
            self.run(scheduler, Sum(), source, observer=observer)
        assert observer.rows == 2000
        with pytest.raises(ChangedDataError):  # and before the next pass
            self.run(scheduler, Sum(), source, observer=observer)
        assert observer.rows == 2000

    # ---------------------------------------------------------------------------------- BLAS

    def test_one_blas_thread_during_a_pass(self, scheduler: Scheduler) -> None:
        before = blas_threads()
        assert self.run(scheduler, Threads1(), Scripted(2000)).total[0] == 1
        assert blas_threads() == before

    def test_blas_threads_come_back_after_an_error(self, scheduler: Scheduler) -> None:
        before = blas_threads()
        with pytest.raises(OSError, match="cannot read"):
            self.run(scheduler, Threads1(), Failing(2000, row=100))
        assert blas_threads() == before

    def test_runs_that_overlap_in_threads(self, scheduler: Scheduler) -> None:
        before, found = blas_threads(), []

        def run(seconds: float) -> None:
            source = Slow(200, seconds=seconds)
            found.append(self.run(scheduler, Threads1(), source, cut(source, 10, 20)).total[0])

        threads = [threading.Thread(target=run, args=(seconds,)) for seconds in (0.01, 0.03, 0.05)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert found == [1, 1, 1]
        assert blas_threads() == before


def wait_until(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)


def _double(block: Any) -> Any:
    return 2 * block


def _put(found: np.ndarray, start: int, block: np.ndarray) -> None:
    found[start : start + len(block)] = block
