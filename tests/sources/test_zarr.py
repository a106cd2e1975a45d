from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr import codecs

from streampca.errors import ChangedDataError, CorruptDataError, DataError, SourceNotFoundError
from streampca.sources import open_source
from streampca.sources.zarr_store import ZarrSource
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers


def write(path: Path, data: np.ndarray, version: Any = 3, chunks: tuple[int, int] = (6, 2), **options: Any) -> str:
    array = zarr.create_array(path, shape=data.shape, dtype=data.dtype, chunks=chunks, zarr_format=version, overwrite=True, **options)
    array[:] = data
    return str(path)


def zipped(path: Path, data: np.ndarray, version: Any = 3) -> str:
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_array(store, shape=data.shape, dtype=data.dtype, chunks=(6, 2), zarr_format=version)[:] = data
    return str(path)


class TestVersion2(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.zarr", numbers(41, 5)
        write(path, data, version=2)
        return Case(lambda: open_source(path), data, lambda: zarr.open_array(path).__setitem__((3, 3), 5.0))


class TestVersion3(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.zarr", numbers(41, 5, "f4")
        write(path, data)
        return Case(lambda: open_source(path), data, lambda: zarr.open_array(path).__setitem__((3, 3), 5.0))


class TestSharded(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.zarr", numbers(41, 5)
        write(path, data, chunks=(3, 5), shards=(12, 5))
        return Case(lambda: open_source(path), data, lambda: zarr.open_array(path).resize((50, 5)))


class TestSamplesAreColumns(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.zarr", numbers(5, 41)
        write(path, data, chunks=(2, 6))
        return Case(lambda: open_source(path, samples_axis=1), data.T, lambda: zarr.open_array(path).attrs.put({"a": 1}))


class TestZip(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.zarr.zip", numbers(41, 5)
        zipped(path, data)
        return Case(lambda: open_source(path), data, lambda: zipped(path, data[:-1]))


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "u2", "f2", "f4", "f8", ">f4", ">i2"])
@pytest.mark.parametrize("version", [2, 3])
def test_dtypes(tmp_path: Path, dtype: str, version: Any) -> None:
    data = numbers(23, 5, dtype)
    path = write(tmp_path / "x.zarr", data, version, chunks=(4, 3))
    for axis in (0, 1):
        source = open_source(path, samples_axis=axis)
        assert source.info.dtype == np.dtype(dtype).newbyteorder("=")
        assert_reads(source, data.T if axis else data)


def test_many_tiles_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.sources.stored.STAGING", 100)
    data = numbers(23, 7)
    path = write(tmp_path / "x.zarr", data, chunks=(4, 3))
    assert_reads(open_source(path), data)
    assert_reads(open_source(path, samples_axis=1), data.T)


def test_facts(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.zarr", numbers(100, 8), chunks=(10, 4)))
    assert isinstance(source, ZarrSource)
    assert (source.info.chunk_rows, source.info.chunk_features) == (10, 4)
    assert source.info.bytes_stored == sum(file.stat().st_size for file in (tmp_path / "x.zarr").rglob("*") if file.is_file())
    assert source.info.read_scratch >= 2 * 10 * 4 * 8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streampca.sources.zarr_store._MOST_LOOKED_AT", 6)
        assert open_source(tmp_path / "x.zarr").info.bytes_stored == pytest.approx(source.info.bytes_stored, rel=0.5)
    small = open_source(write(tmp_path / "small.zarr", numbers(100, 8), chunks=(10, 8), shards=(50, 8)))
    assert small.info.chunk_rows == 50
    large = np.zeros((1000, 1024))
    assert open_source(write(tmp_path / "large.zarr", large, chunks=(100, 1024), shards=(1000, 1024))).info.chunk_rows == 100


@pytest.mark.parametrize(
    ("options", "version", "checksum"),
    [
        ({"compressors": None}, 3, "unprotected"),
        ({"compressors": codecs.ZstdCodec()}, 3, "unprotected"),
        ({"compressors": codecs.BloscCodec()}, 3, "unprotected"),
        ({"compressors": codecs.ZstdCodec(checksum=True)}, 3, "zstd with checksum"),
        ({"compressors": codecs.GzipCodec()}, 3, "gzip is checked when decoding"),
        ({"compressors": [codecs.ZstdCodec(), codecs.Crc32cCodec()]}, 3, "crc32c is checked when decoding"),
        ({"compressors": codecs.Crc32cCodec(), "shards": (12, 4)}, 3, "crc32c is checked when decoding"),
        ({"compressors": {"id": "zlib", "level": 1}}, 2, "zlib is checked when decoding"),
        ({"compressors": {"id": "blosc"}}, 2, "unprotected"),
    ],
)
def test_checksums(tmp_path: Path, options: dict, version: Any, checksum: str) -> None:
    data = numbers(24, 4)
    source = open_source(write(tmp_path / "x.zarr", data, version, **options))
    details = source.details()
    assert details["format"] == f"zarr v{version}"
    assert details["checksum"] == checksum
    assert details["layout"] == ("sharded" if "shards" in options else "chunked")
    assert_reads(source, data)
    file = tmp_path / "x.zarr" / ("0.0" if version == 2 else "c/0/0")
    damaged = bytearray(file.read_bytes())
    damaged[30] ^= 0xFF
    file.write_bytes(damaged)
    if checksum != "unprotected":
        with pytest.raises(CorruptDataError, match=r"x\.zarr: rows 0 to \d+ cannot be read"):
            source.read(slice(0, 6))


@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunks(tmp_path: Path, version: Any) -> None:
    source = open_source(write(tmp_path / "x.zarr", numbers(23, 5), version, fill_value=3))
    assert source.missing_chunks() == 0
    (tmp_path / "x.zarr" / ("0.1" if version == 2 else "c/0/1")).unlink()
    assert source.missing_chunks() == 1
    np.testing.assert_array_equal(source.read(slice(0, 6))[:, 2:4], np.full((6, 2), 3.0))
    assert source.details()["fill_value"] == 3


def test_missing_shards(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.zarr", numbers(23, 5), chunks=(2, 5), shards=(6, 5)))
    assert source.missing_chunks() == 0
    shutil.rmtree(tmp_path / "x.zarr/c/3")
    (tmp_path / "x.zarr/c/1/0").unlink()
    assert source.missing_chunks() == 2


# ---------------------------------------------------------------------------------------- stores


def test_urls(tmp_path: Path) -> None:
    data = numbers(20, 3)
    store = zarr.storage.FsspecStore.from_url("memory://streampca-test/x.zarr")
    group = zarr.create_group(store, overwrite=True)
    group.create_array("X", shape=data.shape, dtype=data.dtype, chunks=(6, 3))[:] = data
    for uri in ("memory://streampca-test/x.zarr", "memory://streampca-test/x.zarr::X"):
        assert_reads(open_source(uri), data)
    with pytest.raises(SourceNotFoundError, match="Did you mean 'X'"):
        open_source("memory://streampca-test/x.zarr::group/X")
    with pytest.raises(DataError, match="not a Zarr store"):
        open_source("memory://streampca-test/nothing.zarr")
    with pytest.raises(CorruptDataError, match="Protocol not known"):
        open_source("nosuch://streampca-test/x.zarr")
    write(tmp_path / "x.zarr", data)
    assert_reads(open_source((tmp_path / "x.zarr").as_uri()), data)


def test_an_array_in_a_store_by_its_own_path(tmp_path: Path) -> None:
    data = numbers(20, 3)
    zarr.open_group(tmp_path / "x.zarr", mode="w").create_array("g/X", shape=data.shape, dtype=data.dtype)[:] = data
    assert_reads(open_source(tmp_path / "x.zarr" / "g" / "X"), data)
    (tmp_path / "x.zarr").rename(tmp_path / "folder")
    assert_reads(open_source(tmp_path / "folder"), data)


def test_a_replaced_array_is_opened_again(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.zarr", np.ones((8, 2))))
    source.read(slice(None))
    write(tmp_path / "x.zarr", np.full((9, 2), 2.0), chunks=(4, 2))
    np.testing.assert_array_equal(source.read(slice(None)), np.full((8, 2), 2.0))
    write(tmp_path / "x.zarr", np.ones((8, 3)))
    with pytest.raises(ChangedDataError, match=r"was \(8, 2\) float64.*now it is \(8, 3\)"):
        source.read(slice(None))


# ---------------------------------------------------------------------------------------- which array


def group_of(path: Path, version: Any, **arrays: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in arrays.items():
            group.create_array(name, shape=data.shape, dtype=str if data.dtype.kind == "O" else data.dtype)[...] = data
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_the_only_table_is_found(tmp_path: Path, version: Any) -> None:
    path = group_of(tmp_path / "x.zarr", version, **{"g/X": np.ones((4, 3)), "t": np.ones(4), "c": np.ones((1, 1), complex)})
    for dataset in (None, "g", "/g/X", "g/X/"):
        assert open_source(path, dataset=dataset).info.description == f"{path}::g/X"


@pytest.mark.parametrize("version", [2, 3])
def test_candidates_are_listed(tmp_path: Path, version: Any) -> None:
    arrays = {"g/train": np.ones((4, 3), "f4"), "g/test": np.ones((2, 3)), "h/line": np.ones(2)}
    path = group_of(tmp_path / "x.zarr", version, **arrays)
    with pytest.raises(DataError, match=r"2 2-D numeric datasets: g/test \(2, 3\) float64, g/train \(4, 3\) float32"):
        open_source(path)
    with pytest.raises(DataError, match=r"x.zarr::h holds no 2-D numeric dataset: it has h/line \(2,\) float64"):
        open_source(path, dataset="h")
    with pytest.raises(SourceNotFoundError, match=r"no dataset 'g/tran' in .*x.zarr. Did you mean 'g/train'"):
        open_source(path, dataset="g/tran")
    with pytest.raises(SourceNotFoundError, match="no dataset"):
        open_source(path, dataset="../secret")
    with pytest.raises(DataError, match="1 dimension"):
        open_source(path, dataset="h/line")


def test_a_single_array_has_no_datasets(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="single array"):
        open_source(write(tmp_path / "x.zarr", np.ones((4, 3))), dataset="X")


# ---------------------------------------------------------------------------------------- names

NAMES = np.array(["a", "b", "ü"], dtype=object)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("where", ["@feature_names", "@columns", "features", "X_columns", "xarray", "anndata", "fixed"])
def test_feature_names(tmp_path: Path, version: Any, where: str) -> None:
    arrays = {"xarray": {"band": NAMES}, "anndata": {"var/gene": NAMES}, "fixed": {"columns": NAMES.astype("U3")}}
    path = group_of(tmp_path / "x.zarr", version, **arrays.get(where, {} if where[0] == "@" else {where: NAMES}))
    group = zarr.open_group(path)
    dims: Any = {"dimension_names": ["time", "band"]} if where == "xarray" and version == 3 else {}
    array = group.create_array("X", shape=(4, 3), dtype="f4", **dims)
    if where[0] == "@":
        array.attrs[where[1:]] = list(NAMES)
    if where == "xarray" and version == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["time", "band"]
    if where == "anndata":
        group["var"].attrs["_index"] = "gene"
    assert open_source(path, dataset="X").info.feature_names == ("a", "b", "ü")
    assert open_source(path, dataset="X", samples_axis=1).info.feature_names is None


def test_anndata_means_x(tmp_path: Path) -> None:
    path = group_of(tmp_path / "x.zarr", 2, **{"X": np.ones((4, 3)), "obsm/X_pca": np.ones((4, 2))})
    zarr.open_group(path).attrs["encoding-type"] = "anndata"
    assert open_source(path).info.n_features == 3


# ---------------------------------------------------------------------------------------- broken stores


def test_not_there_or_not_zarr(tmp_path: Path) -> None:
    write(tmp_path / "night_01.zarr", np.ones((4, 3)))
    with pytest.raises(SourceNotFoundError, match=r"Did you mean 'night_01\.zarr'"):
        open_source(tmp_path / "night_1.zarr")
    (tmp_path / "empty.zarr").mkdir()
    with pytest.raises(DataError, match=r"empty\.zarr is not a Zarr store"):
        open_source(tmp_path / "empty.zarr")
    (tmp_path / "x.zip").write_bytes(b"not a zip file")
    with pytest.raises(CorruptDataError, match=r"x\.zip cannot be opened as Zarr"):
        open_source(tmp_path / "x.zip")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("document", ["{broken", "[]", '{"zarr_format": 3, "node_type": "array", "shape": "many"}'])
def test_broken_metadata(tmp_path: Path, version: Any, document: str) -> None:
    write(tmp_path / "x.zarr", np.ones((4, 3)), version)
    (tmp_path / "x.zarr" / ("zarr.json" if version == 3 else ".zarray")).write_text(document)
    with pytest.raises(CorruptDataError, match=r"x\.zarr cannot be opened as Zarr"):
        open_source(tmp_path / "x.zarr")


def test_broken_metadata_inside(tmp_path: Path) -> None:
    path = group_of(tmp_path / "x.zarr", 3, X=np.ones((4, 3)))
    (path / "X" / "zarr.json").write_text("{broken")
    for dataset in (None, "X"):
        with pytest.raises(CorruptDataError, match=r"x\.zarr.*JSONDecodeError"):
            open_source(path, dataset=dataset)


@pytest.mark.parametrize("version", [2, 3])
def test_a_truncated_chunk_is_named(tmp_path: Path, version: Any) -> None:
    path = write(tmp_path / "x.zarr", numbers(23, 5), version)
    file = Path(path, "1.0" if version == 2 else "c/1/0")
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(CorruptDataError, match=r"x\.zarr: rows 6 to 8 cannot be read"):
        open_source(path).read(slice(6, 9))
    with pytest.raises(CorruptDataError, match=r"x\.zarr: rows \d to \d+ cannot be read"):
        open_source(path, samples_axis=1).read(slice(0, 2))


def test_removed_while_reading(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.zarr", numbers(23, 5)))
    source.read(slice(0, 3))
    shutil.rmtree(tmp_path / "x.zarr")
    with pytest.raises(DataError):
        source.read(slice(0, 3))
    with pytest.raises(DataError):
        source.check_unchanged()
