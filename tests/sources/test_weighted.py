from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import ChangedDataError, DataError, SourceNotFoundError, UsageError
from streampca.sources import ArraySource, Columns, ManySource, Rows, Source, Weighted, WithNames, open_array, open_source
from streampca.sources.weighted import ROWS_AT_ONCE
from tests.sources.conformance import QUICK, Case, SourceTests, assert_reads, numbers

N = 41
DATA = numbers(N, 4)
WEIGHTS = np.random.default_rng(1).integers(0, 4, N) * 0.5


def assert_weights(source: Source, expected: np.ndarray) -> None:
    n = len(expected)
    assert source.info.weighted
    for rows in (slice(None), slice(n // 3, n - n // 4), slice(-3, None), slice(2, 2), slice(n, 0)):
        got = source.weights(rows)
        assert got is not None
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, expected[rows])


def write(path: Path, weights: np.ndarray = WEIGHTS, data: np.ndarray = DATA, **layout: Any) -> str:
    other = path.with_suffix(".tmp")
    with h5py.File(other, "w") as file:
        file.create_dataset("X", data=data, chunks=(min(6, len(data)), 2))
        file.create_dataset("w", data=weights, **layout)
    return str(other.rename(path))


class TestVector(SourceTests):
    def make(self, folder: Path) -> Case:
        return Case(lambda: Weighted(ArraySource(DATA), WEIGHTS), DATA)


class TestInTheSameFile(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.h5"
        write(path)
        return Case(lambda: open_source(path, "X", weights="::w"), DATA, lambda: write(path, WEIGHTS + 1))


class TestInAnotherFile(SourceTests):
    def make(self, folder: Path) -> Case:
        np.save(folder / "x.npy", DATA)
        np.save(folder / "w.npy", WEIGHTS)
        weights = folder / "w.npy"
        return Case(lambda: open_source(folder / "x.npy", weights=weights), DATA, lambda: np.save(weights, WEIGHTS + 1))


class TestSomeRows(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.h5"
        write(path)
        return Case(lambda: open_source(path, "X", rows="3:38:4", weights="::w"), DATA[3:38:4], lambda: write(path, WEIGHTS + 1))


# ------------------------------------------------------------------------------------------ where weights come from


def stored(folder: Path, kind: str, values: np.ndarray) -> Any:
    """Store weights, of one dimension or two, in one of many ways; return what open_source takes."""
    heights = tuple(min(7, n) for n in values.shape)
    if kind.startswith("hdf5"):
        layout: dict[str, Any] = {"chunks": heights, "compression": "gzip", "shuffle": True} if kind == "hdf5 gzip" else {}
        with h5py.File(folder / "w.h5", "w") as file:
            file.create_dataset("g/w", data=values, **layout)
        return f"{folder}/w.h5::g/w"
    if kind == "npy":
        np.save(folder / "w.npy", values)
        return folder / "w.npy"
    if kind == "zip":
        with zarr.storage.ZipStore(folder / "w.zarr.zip", mode="w") as store:
            zarr.create_array(store, shape=values.shape, dtype=values.dtype, chunks=heights)[:] = values
        return str(folder / "w.zarr.zip")
    ways: dict[str, dict[str, Any]] = {"zarr 2": {"zarr_format": 2}, "zarr 3": {}, "shards": {"shards": tuple(2 * n for n in heights)}}
    array = zarr.create_array(folder / "w.zarr", name="w", shape=values.shape, dtype=values.dtype, chunks=heights, **ways[kind])
    array[:] = values
    return f"{folder}/w.zarr::w"


KINDS = ["hdf5", "hdf5 gzip", "npy", "zip", "zarr 2", "zarr 3", "shards"]
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"1-D": lambda w: w, "column": lambda w: w[:, None], "row": lambda w: w[None]}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["f8", "i2", ">f4"])
def test_stored_weights(tmp_path: Path, kind: str, shape: str, dtype: str) -> None:
    weights = (2 * WEIGHTS).astype(dtype)
    source = open_source(DATA, weights=stored(tmp_path, kind, SHAPES[shape](weights)))
    assert_weights(source, weights.astype(float))
    assert_weights(pickle.loads(pickle.dumps(source)), weights.astype(float))
    assert_reads(source, DATA)
    source.check_unchanged()
    assert source.missing_chunks() == 0
    source.release()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "make",
    [
        lambda w: w,
        lambda w: w.tolist(),
        lambda w: w > 0.7,
        lambda w: np.ma.masked_array(w),
        lambda w: da.from_array(w, chunks=9),
        lambda w: ArraySource(np.atleast_2d(w)),
    ],
)
def test_weights_in_memory(make: Callable[[np.ndarray], Any], shape: str) -> None:
    given_weights = make(SHAPES[shape](WEIGHTS))
    is_mask = np.asarray(given_weights).dtype == bool if not isinstance(given_weights, Source) else False
    assert_weights(open_source(DATA, weights=given_weights), (WEIGHTS > 0.7) * 1.0 if is_mask else WEIGHTS)


def test_weights_of_data_frames_and_open_datasets(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    assert_weights(open_source(DATA, weights=pandas.Series(WEIGHTS, index=np.arange(N)[::-1])), WEIGHTS)
    write(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5") as file:
        source = open_source(file["X"], weights=file["w"])
    assert_weights(source, WEIGHTS)


def test_a_dataset_of_the_same_files(tmp_path: Path) -> None:
    cuts = np.split(np.arange(N), [10, 11, 30])
    for index, rows in enumerate(cuts):
        write(tmp_path / f"{index}.h5", WEIGHTS[rows], DATA[rows])
    paths = [tmp_path / f"{index}.h5" for index in range(4)]
    for data, dataset in [(f"{tmp_path}/*.h5::X", None), (f"{tmp_path}/*.h5", "X"), (paths, "X"), ([f"{path}::X" for path in paths], None)]:
        source = open_source(data, dataset, weights="::w")
        assert_reads(source, DATA)
        assert_weights(source, WEIGHTS)
    write(tmp_path / "0.h5", WEIGHTS[:11], DATA[:10])
    write(tmp_path / "1.h5", WEIGHTS[11:12], DATA[10:12])  # 12 rows and weights in both, but not in each
    with pytest.raises(DataError, match=r"there are 11 weights in .*0\.h5::/w, but 10 rows in .*0\.h5::/X"):
        open_source(f"{tmp_path}/*.h5::X", weights="::w")


def test_weights_do_not_make_a_table(tmp_path: Path) -> None:
    write(tmp_path / "x.h5")
    with pytest.raises(DataError, match=r"1 dimension\(s\) \(shape \(41,\)\), but a table"):
        open_source(f"{tmp_path}/x.h5::w")
    assert_reads(open_source(tmp_path / "x.h5"), DATA)  # the only table


# ------------------------------------------------------------------------------------------ views


@QUICK
@given(start=st.integers(0, N - 1), length=st.integers(1, N), step=st.integers(1, 12), at=st.tuples(st.integers(0, N), st.integers(0, N)))
def test_weights_go_with_their_rows(start: int, length: int, step: int, at: tuple[int, int]) -> None:
    rows = slice(start, min(start + length, N), step)
    source = open_source(DATA, rows=rows, columns=[2, 0], feature_names=list("abcd"), weights=WEIGHTS)
    assert_weights(source, WEIGHTS[rows])
    np.testing.assert_array_equal(source.weights(slice(*at)), WEIGHTS[rows][slice(*at)])
    assert_reads(source, DATA[rows][:, [2, 0]])


def test_views_of_weighted_sources() -> None:
    source = Weighted(ArraySource(DATA), WEIGHTS)
    assert_weights(Columns(source, (3, 1)), WEIGHTS)
    assert_weights(WithNames(source, tuple("abcd")), WEIGHTS)
    assert_weights(Rows(Rows(source, 2, 40, 3), 1, 12, 2), WEIGHTS[2:40:3][1:12:2])
    both = ManySource((source, ArraySource(DATA), Rows(source, 5, 9)))
    assert_weights(both, np.concatenate([WEIGHTS, np.ones(N), WEIGHTS[5:9]]))
    assert_weights(Rows(both, 30, 86, 5), np.concatenate([WEIGHTS, np.ones(N), WEIGHTS[5:9]])[30:86:5])
    assert source.transposed() is None
    assert Rows(source, 2, 40, 3).transposed() is both.transposed() is None


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_of_a_dask_array(lazy: bool) -> None:
    weights: Any = da.from_array(WEIGHTS, chunks=10) if lazy else WEIGHTS
    source = open_source(da.from_array(DATA, chunks=(9, 3)), rows="2:40:3", columns=[1, 0], feature_names=list("abcd"), weights=weights)
    assert_reads(source, DATA[2:40:3][:, [1, 0]])
    assert_weights(source, WEIGHTS[2:40:3])
    assert source.info.feature_names == ("b", "a")
    rows, some = source.lazy_rows(2, 9), source.lazy_weights(2, 9)
    assert rows is not None
    np.testing.assert_array_equal(rows.compute(), DATA[2:40:3][2:9, [1, 0]])
    assert (some is not None) == lazy
    if some is not None:
        np.testing.assert_array_equal(some.compute()[:, 0], WEIGHTS[2:40:3][2:9])
    assert_reads(open_source(source), DATA[2:40:3][:, [1, 0]])
    np.testing.assert_array_equal(open_array(source).compute(), DATA[2:40:3][:, [1, 0]])


def test_without_weights_there_are_none(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.h5"), "X")
    for each in (source, Rows(source, 1, 5), open_source(DATA, weights=None), open_source(da.ones((5, 2)))):
        assert not each.info.weighted
        assert each.weights(slice(None)) is each.weights(slice(0, 0)) is each.lazy_weights(0, 1) is None
    with pytest.raises(UsageError, match="step 1, not 2"):
        source.weights(slice(0, 4, 2))


# ------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -np.inf])
def test_weights_that_are_no_weights_are_found_when_read(value: float) -> None:
    weights = WEIGHTS.copy()
    weights[[17, 30]] = value
    source = open_source(DATA, weights=weights)
    source.weights(slice(0, 17))
    with pytest.raises(DataError, match=rf"the weight of row 17 is {value} .* finite number of at least 0"):
        source.weights(slice(5, None))
    with pytest.raises(DataError, match="the weight of row 30 is"):
        Rows(source, 20, 41).weights(slice(2, 15))


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        (np.ones(40), DataError, r"there are 40 weights in array in memory .*, but 41 rows in array in memory"),
        (np.ones((2, 41)), DataError, "one number for each row, but .* is a table of 2 x 41"),
        (np.ones((41, 2)), DataError, "is a table of 41 x 2"),
        (np.ones((41, 1, 1)), DataError, "3 dimension"),
        (3.0, DataError, "0 dimension"),
        (np.array(["a"] * 41), DataError, "strings"),
        (np.ones(41, complex), DataError, "complex"),
        (np.ones(0), DataError, "empty"),
        ("nowhere.npy", SourceNotFoundError, "no such file"),
        ("::w", UsageError, "the data was not given by its path"),
        (ArraySource(np.ones((40, 1))), DataError, "40 weights .* 41 rows"),
    ],
)
def test_wrong_weights(weights: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_source(DATA, weights=weights)


def test_weights_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has weights already"):
        open_source(Weighted(ArraySource(DATA), WEIGHTS), weights=WEIGHTS)
    with pytest.raises(UsageError, match="not given by its path"):
        open_source([ArraySource(DATA), f"{write(tmp_path / 'x.h5')}::X"], weights="::w")
    with pytest.raises(SourceNotFoundError, match="no dataset 'v'"):
        open_source(tmp_path / "x.h5", "X", weights="::v")


def test_weights_refer_to_the_rows_that_are_stored() -> None:
    with pytest.raises(DataError, match="before rows are selected"):
        open_source(DATA, rows="0:20", weights=WEIGHTS[:20])


def test_the_fingerprint_knows_every_weight() -> None:
    weights = np.ones(10_000)
    other = weights.copy()
    other[4567] = 0
    rows = ArraySource(np.zeros((10_000, 1)))
    prints = {rows.info.fingerprint, *(Weighted(rows, each).info.fingerprint for each in (weights, other))}
    assert len(prints) == 3
    assert Weighted(rows, weights.copy()).info.fingerprint == Weighted(rows, weights).info.fingerprint


def test_weights_that_change_are_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", WEIGHTS)
    source = open_source(DATA, weights=tmp_path / "w.npy")
    source.check_unchanged()
    time.sleep(0.02)
    np.save(tmp_path / "w.npy", WEIGHTS + 1)
    with pytest.raises(ChangedDataError):
        source.check_unchanged()


def test_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", chunks=(8,))
    plain, source = open_source(path, "X"), open_source(path, "X", weights="::w")
    assert source.info.read_scratch >= plain.info.read_scratch + 16 * N
    assert source.info.segments == plain.info.segments
    assert open_source(DATA, weights=WEIGHTS).info.in_memory
    assert not open_source(DATA, weights=f"{path}::w").info.in_memory
    big = Weighted(ArraySource(np.zeros((2 * ROWS_AT_ONCE, 1), np.int8)), np.zeros(2 * ROWS_AT_ONCE, np.float32))
    assert big.info.read_scratch == ROWS_AT_ONCE * 12


def test_missing_weights_are_counted(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = DATA
        file.create_dataset("w", (N,), "f8", chunks=(10,))
    assert open_source(tmp_path / "x.h5", "X", weights="::w").missing_chunks() == 5
