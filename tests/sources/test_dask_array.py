from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import DataError, UsageError
from streampca.sources import open_array, open_source
from streampca.sources.dask_array import DaskArraySource, LazyRows, _segments
from tests.sources.conformance import QUICK, Case, SourceTests, assert_reads, numbers


class TestChunkedBothWays(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(29, 6)
        array = da.from_array(data, chunks=((10, 10, 9), (4, 2)))
        return Case(lambda: DaskArraySource(array), data)


class TestRaggedBigEndian(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(29, 6, ">f4")
        array = da.from_array(data, chunks=((3, 1, 0, 20, 5), 6))
        return Case(lambda: open_source(array), data)


def test_unknown_chunks_are_computed() -> None:
    data = numbers(20, 3)
    array = da.from_array(data, chunks=(6, 3))
    some = array[array[:, 0] > 0]
    source = open_source(some)
    assert_reads(source, data[data[:, 0] > 0])
    assert np.isnan(some.shape[0])  # the user's array is left alone


def test_selections_are_made_by_dask() -> None:
    data = numbers(7, 20)
    array = da.from_array(data, chunks=(4, 6))
    source = open_source(array, samples_axis=1, columns=["c", -1], rows="2:18:3", feature_names=list("abcdefg"))
    assert isinstance(source, DaskArraySource)
    assert_reads(source, data.T[2:18:3][:, [2, 6]])
    assert source.info.feature_names == ("c", "g")
    for wrong in ({"columns": [0, 0]}, {"columns": [20]}, {"rows": "5:5"}, {"rows": "::-1"}, {"dataset": "X"}, {"feature_names": ["a"]}):
        with pytest.raises(UsageError):
            open_source(array, **wrong)


def test_lazy_rows_are_one_block() -> None:
    data = numbers(29, 6)
    source = open_source(da.from_array(data, chunks=(10, 4)))
    lazy = source.lazy_rows(5, 25)
    assert lazy is not None
    assert lazy.numblocks == (1, 1)
    np.testing.assert_array_equal(lazy.compute(), data[5:25])
    some = open_source(source, columns=[1, 0], rows="4::2").lazy_rows(1, 5)
    assert some is not None
    np.testing.assert_array_equal(some.compute(), data[4::2][1:5, [1, 0]])
    assert open_source(data).lazy_rows(0, 3) is None


@QUICK
@given(heights=st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_segments_keep_every_cut(heights: list[int]) -> None:
    cuts, at = set(), 0
    for segment in _segments(heights):
        assert segment.start == at
        at = segment.stop
        cuts |= {*range(segment.start, segment.stop, segment.chunk_rows), segment.stop}
    expected = {0, *np.cumsum(heights).tolist()} if sum(heights) else set()
    assert cuts == expected


def test_masked_and_sparse_blocks() -> None:
    data = numbers(10, 2)
    masked = da.ma.masked_greater(da.from_array(data, chunks=(4, 2)), 0)
    assert_reads(DaskArraySource(masked), np.where(data > 0, np.nan, data))


@pytest.mark.parametrize("array", [da.ones(3), da.ones((2, 2, 2)), da.ones((0, 2)), da.ones((2, 2), dtype=complex)])
def test_what_is_no_table_is_refused(array: da.Array) -> None:
    with pytest.raises(DataError):
        open_source(array)


# ---------------------------------------------------------------------------------------- any source as a Dask array


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, np.ndarray]:
    data = numbers(1000, 8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=data, chunks=(30, 8))
    return tmp_path / "x.h5", data


def test_open_array(stored: tuple[Path, np.ndarray]) -> None:
    path, data = stored
    array = open_array(path)
    assert isinstance(array, da.Array)
    assert (array.shape, array.dtype, array.numblocks) == (data.shape, data.dtype, (1, 1))
    array = open_array(path, block_rows=100)
    assert set(array.chunks[0]) == {90, 100}  # cut where the file is cut
    for scheduler in ("threads", "synchronous"):
        np.testing.assert_array_equal(array.compute(scheduler=scheduler), data)
    assert array.name == open_array(path, block_rows=100).name != open_array(path).name
    assert isinstance(array._meta, np.ndarray)
    np.testing.assert_allclose(array.mean(0).compute(), data.mean(0))


def test_open_array_with_views(stored: tuple[Path, np.ndarray]) -> None:
    path, data = stored
    np.testing.assert_array_equal(open_array(path, columns=[3, 1], rows="::7").compute(), data[::7, [3, 1]])
    np.testing.assert_array_equal(open_array(path, samples_axis=1).compute(), data.T)


@pytest.mark.parametrize(
    "key", [5, -1, np.s_[::3], np.s_[::-1], np.s_[10:400:7, 2], np.s_[[1, 500, 3]], np.s_[:, [4, 0]], np.s_[5:5], np.s_[7, 3]]
)
def test_dask_may_index_it(stored: tuple[Path, np.ndarray], key: Any) -> None:
    path, data = stored
    for fuse in (False, True):
        with dask.config.set({"optimization.fuse.active": fuse}):
            np.testing.assert_array_equal(open_array(path, block_rows=90)[key].compute(), data[key])


def test_lazy_rows_index_like_numpy() -> None:
    data = numbers(20, 3)
    lazy = LazyRows(open_source(data))
    for key in (np.s_[3, :], np.s_[3:9, 1:], np.s_[::4, :], np.s_[15:2:-3, ::-1], np.s_[5:5, :]):
        np.testing.assert_array_equal(lazy[key], data[key])


def test_open_array_of_a_dask_array_is_that_array() -> None:
    array = da.ones((6, 3), chunks=(2, 3))
    assert open_array(array).name == array.name
    assert open_array(open_source(array, feature_names=["a", "b", "c"])).name == array.name
    with pytest.raises(UsageError, match="block_rows"):
        open_array(np.ones((3, 3)), block_rows=0)


def test_on_a_cluster(stored: tuple[Path, np.ndarray]) -> None:
    path, data = stored
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None, host="127.0.0.1") as cluster,
        distributed.Client(cluster),
    ):
        np.testing.assert_array_equal(open_array(path, block_rows=90).compute(), data)
        source = open_source(da.from_array(data, chunks=(300, 4)))
        lazy = source.lazy_rows(10, 700)
        assert lazy is not None
        np.testing.assert_array_equal(lazy.compute(), data[10:700])


def test_start_up_is_light(tmp_path: Path) -> None:
    code = """
import sys, types
package = types.ModuleType("streampca")  # without what the top-level package imports
package.__path__ = ["streampca"]
sys.modules["streampca"] = package
import streampca.sources
heavy = {"dask", "h5py", "zarr"} & set(sys.modules)
assert not heavy, heavy
import numpy as np
np.save(sys.argv[1], np.ones((3, 2)))
assert streampca.sources.open_source(sys.argv[1]).info.n_rows == 3
assert not {"dask", "h5py", "zarr"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.npy")], check=True, cwd=Path(__file__).parents[2])
