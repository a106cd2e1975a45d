from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

from streampca.blocks import Partition, Segment
from streampca.errors import ChangedDataError
from streampca.sources import ArraySource, Columns, ManySource, Rows, Source, open_source
from streampca.sources.many import SideBySide
from streampca.sources.raw_chunks import RawChunks
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers

DATA = numbers(23, 37, "f4")


def turned(source: Source) -> Source:
    result = source.transposed()
    assert result is not None
    return result


def hdf5(path: Path, data: np.ndarray = DATA, **layout: Any) -> str:
    other = path.with_suffix(".tmp")
    with h5py.File(other, "w") as file:
        file.create_dataset("X", data=data, **layout).attrs["columns"] = [f"f{i}" for i in range(data.shape[1])]
    return str(other.rename(path))


def store(path: Path, data: np.ndarray = DATA, **options: Any) -> str:
    zarr.create_array(path, shape=data.shape, dtype=data.dtype, overwrite=True, **options)[:] = data
    return str(path)


def npy(path: Path, data: np.ndarray = DATA) -> str:
    np.save(path, data)
    return str(path)


class TestInMemory(SourceTests):
    def make(self, folder: Path) -> Case:
        return Case(lambda: turned(ArraySource(DATA)), DATA.T)


class TestHDF5(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.h5"
        hdf5(path, chunks=(5, 8), compression="gzip")
        return Case(lambda: turned(open_source(path)), DATA.T, lambda: hdf5(path, DATA + 1))


class TestHDF5SamplesAreColumns(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.h5"
        hdf5(path, chunks=(5, 8))
        return Case(lambda: turned(open_source(path, samples_axis=1)), DATA, lambda: hdf5(path, DATA + 1))


class TestZarr(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.zarr"
        store(path, chunks=(5, 8))
        return Case(lambda: turned(open_source(path)), DATA.T, lambda: store(path, DATA + 1, chunks=(5, 8)))


class TestNpy(SourceTests):
    def make(self, folder: Path) -> Case:
        path = folder / "x.npy"
        np.save(path, DATA)
        return Case(lambda: turned(open_source(path)), DATA.T, lambda: np.save(path, DATA[:-1]))


class TestDask(SourceTests):
    def make(self, folder: Path) -> Case:
        array = da.from_array(DATA, chunks=((10, 1, 12), (30, 7)))
        return Case(lambda: turned(open_source(array)), DATA.T)


class TestManyFiles(SourceTests):
    def make(self, folder: Path) -> Case:
        cuts = np.split(DATA, [10, 11, 19])
        for index, part in enumerate(cuts):
            hdf5(folder / f"{index}.h5", part, chunks=(1, 4 + index))
        return Case(lambda: turned(open_source(folder / "*.h5")), DATA.T, lambda: hdf5(folder / "2.h5", cuts[2] + 1))


LAYOUTS: dict[str, Callable[[Path, np.ndarray], Any]] = {
    "hdf5": lambda folder, data: hdf5(folder / "x.h5", data),
    "hdf5 ragged": lambda folder, data: hdf5(folder / "x.h5", data, chunks=(5, 8)),
    "hdf5 gzip": lambda folder, data: hdf5(folder / "x.h5", data, chunks=(7, 37), compression="gzip", shuffle=True),
    "hdf5 taller": lambda folder, data: hdf5(folder / "x.h5", data, chunks=(30, 4), maxshape=(None, None)),
    "zarr 2": lambda folder, data: store(folder / "x.zarr", data, chunks=(4, 10), zarr_format=2),
    "zarr 3": lambda folder, data: store(folder / "x.zarr", data, chunks=(23, 3)),
    "shards": lambda folder, data: store(folder / "x.zarr", data, chunks=(3, 5), shards=(6, 10)),
    "npy": lambda folder, data: npy(folder / "x.npy", data),
    "npy Fortran": lambda folder, data: npy(folder / "x.npy", np.asfortranarray(data)),
    "memory": lambda folder, data: data,
    "dask": lambda folder, data: da.from_array(data, chunks=((4, 0, 19), (5, 8, 24))),
    "many": lambda folder, data: [
        store(folder / "a.zarr", data[:9], chunks=(2, 6)),
        hdf5(folder / "b.h5", data[9:10], chunks=(1, 4)),
        ArraySource(data[10:]),
    ],
}


@pytest.mark.parametrize("staging", [None, 100])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["f8", "i2", ">f4", "?"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(tmp_path: Path, layout: str, dtype: str, axis: int, staging: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if staging is not None:
        monkeypatch.setattr("streampca.sources.stored.STAGING", staging)
        monkeypatch.setattr("streampca.sources.views.SLAB", staging)
    data = numbers(23, 37, dtype)
    given_data = LAYOUTS[layout](tmp_path, data)
    if axis == 1 and isinstance(given_data, list):
        pytest.skip("the parts of this one are stacked along the other axis")
    source = open_source(given_data, samples_axis=axis)
    other = turned(source)
    expected = data if axis else data.T
    assert_reads(other, expected)
    for block_rows in (1, 5, 12):
        for start, stop in Partition(other.info.segments, block_rows, 100).blocks(0, len(expected)):
            np.testing.assert_array_equal(other.read(slice(start, stop)), expected[start:stop])
    assert other.info.feature_names is None
    assert other.info.bytes_decoded == source.info.bytes_decoded
    other.check_unchanged()
    assert_reads(turned(other), expected.T)
    assert other.info.fingerprint != source.info.fingerprint


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.startswith(("hdf5", "zarr", "shards", "npy"))])
@pytest.mark.parametrize("axis", [0, 1])
def test_facts_are_those_of_the_other_axis(tmp_path: Path, layout: str, axis: int) -> None:
    given_data = LAYOUTS[layout](tmp_path, DATA)
    other, opened = turned(open_source(given_data, samples_axis=axis)).info, open_source(given_data, samples_axis=1 - axis).info
    names = ["n_rows", "n_features", "dtype", "segments", "bytes_stored", "fingerprint", "in_memory", "prefetches", "read_scratch"]
    for name in [*names, "chunk_features"]:
        assert getattr(other, name) == getattr(opened, name), name
    assert other.description.endswith("(transposed)")


@pytest.mark.parametrize("layout", ["hdf5 ragged", "hdf5 gzip", "hdf5 taller", "zarr 2", "zarr 3"])
@pytest.mark.parametrize("axis", [0, 1])
def test_each_chunk_is_decoded_once_per_slab(tmp_path: Path, layout: str, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, ...]] = []
    load = RawChunks._load_or_refuse

    def counted(self: RawChunks, place: tuple[int, ...], starts: list[int], flat: Any) -> bool:
        decoded.append(place)
        return load(self, place, starts, flat)

    monkeypatch.setattr(RawChunks, "_load_or_refuse", counted)
    monkeypatch.setattr("streampca.sources.stored.STAGING", 500)
    other = turned(open_source(LAYOUTS[layout](tmp_path, DATA), samples_axis=axis))
    info = other.info
    for start, stop in Partition(info.segments, info.chunk_rows, info.chunk_rows).blocks(0, info.n_rows):
        other.read(slice(start, stop))
    assert decoded
    assert len(set(decoded)) == len(decoded)


def test_many_files_are_cut_where_all_of_them_are(tmp_path: Path) -> None:
    for index, width in enumerate((4, 6)):
        hdf5(tmp_path / f"{index}.h5", DATA[index : index + 5], chunks=(5, width))
    source = turned(open_source(tmp_path / "*.h5"))
    assert isinstance(source, SideBySide)
    assert source.info.segments == (Segment(0, 37, 12),)
    assert source.info.chunk_features == 5
    assert source.info.read_scratch > max(part.info.read_scratch for part in source.sources)
    assert source.info.description.startswith("2 files, ")
    assert source.details()["files"] == 2
    assert isinstance(source.transposed(), ManySource)
    parts = (ArraySource(DATA), Rows(open_source(tmp_path / "0.h5"), 1, 4))
    assert turned(ManySource(parts)).info.segments == (Segment(0, 37, 4),)
    ragged = ManySource((ArraySource(DATA), open_source(da.from_array(DATA, chunks=(23, (5, 9, 23))))))
    assert turned(ragged).info.segments == (Segment(0, 37, 37),)


@pytest.mark.parametrize("columns", ["2:30", "1::7", [5], [0, 1, 2], list(range(37))])
def test_even_columns_become_rows(tmp_path: Path, columns: Any) -> None:
    for source in (open_source(hdf5(tmp_path / "x.h5", chunks=(5, 8)), columns=columns), open_source(DATA, columns=columns)):
        assert_reads(turned(source), source.read(slice(None)).T)
        turned(source).check_unchanged()
        assert isinstance(turned(source), Rows)


@pytest.mark.parametrize("columns", [[1, 0], [0, 1, 3], [5, 3, 1], [0, 2, 3]])
def test_other_columns_cannot_be_turned(columns: list[int]) -> None:
    assert open_source(DATA, columns=columns).transposed() is None
    assert ManySource((ArraySource(DATA[:, :3]), Columns(ArraySource(DATA), (2, 1, 0)))).transposed() is None


@pytest.mark.parametrize("rows", ["2:20", "1::7", "5:6"])
def test_rows_become_columns(tmp_path: Path, rows: str) -> None:
    source = open_source(hdf5(tmp_path / "x.h5", chunks=(5, 8)), rows=rows, columns="3:20:4", feature_names=[f"g{i}" for i in range(37)])
    assert source.info.feature_names == ("g3", "g7", "g11", "g15", "g19")
    other = turned(source)
    assert_reads(other, source.read(slice(None)).T)
    assert other.info.feature_names is None
    assert_reads(turned(other), source.read(slice(None)))


def test_data_that_changed_before_or_after_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    hdf5(path)
    source = open_source(path)
    other = turned(source)
    time.sleep(0.02)
    hdf5(path, DATA + 1)
    with pytest.raises(ChangedDataError):
        other.check_unchanged()
    with pytest.raises(ChangedDataError):
        source.transposed()


def test_a_source_that_cannot_is_none() -> None:
    class Plain(ArraySource):
        transposed = Source.transposed  # type: ignore[assignment]

    source = Plain(DATA)
    assert source.transposed() is Rows(source, 0, 5).transposed() is ManySource((source, ArraySource(DATA))).transposed() is None
