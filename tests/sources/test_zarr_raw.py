"""Chunks that are decoded here read as zarr reads them, and damage is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

import streampca as sp
from streampca.errors import CorruptDataError
from streampca.sources import paging

ROWS = np.round(np.random.default_rng(0).normal(size=(53, 7)), 2)
VERSION_2 = {
    "none": None,
    "zlib": numcodecs.Zlib(level=3),
    "gzip": numcodecs.GZip(level=3),
    "zstd": numcodecs.Zstd(level=3),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc("lz4", shuffle=1),
}
VERSION_3: dict[str, list[Any]] = {
    "none": [],
    "gzip": [GzipCodec(level=3)],
    "zstd + crc32c": [ZstdCodec(level=3), Crc32cCodec()],
    "blosc": [BloscCodec(cname="zstd", typesize=8)],
    "crc32c": [Crc32cCodec()],
}


def same_as_zarr(path: Path) -> str:
    """Check any slice of rows, and return how they were read."""
    source, stored = sp.open_source(path), np.asarray(zarr.open_array(path, mode="r")[:])
    for rows in (slice(None), slice(0, 8), slice(5, 19), slice(48, 53)):
        np.testing.assert_array_equal(source.read(rows), stored[rows])
    return str(source.details()["reader"])


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i2"])
@pytest.mark.parametrize("name", VERSION_2)
def test_version_2(tmp_path: Path, name: str, dtype: str) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(8, 3), dtype=dtype, zarr_format=2, compressors=VERSION_2[name])
    array[:] = ROWS.astype(dtype)
    assert same_as_zarr(tmp_path / "x.zarr").startswith("direct")


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("name", VERSION_3)
def test_version_3(tmp_path: Path, name: str, endian: Any) -> None:
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=ROWS.shape, chunks=(8, 3), dtype="f8", serializer=BytesCodec(endian=endian), compressors=VERSION_3[name]
    )
    array[:] = ROWS
    assert same_as_zarr(tmp_path / "x.zarr").startswith("direct")


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("name", ["none", "zstd + crc32c"])
def test_shards_with_holes(tmp_path: Path, name: str, location: Any) -> None:
    sharding = ShardingCodec(chunk_shape=(4, 7), codecs=[BytesCodec(), *VERSION_3[name]], index_location=location)
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=ROWS.shape, chunks=(16, 7), dtype="f8", serializer=sharding, compressors=None, fill_value=-1.0
    )
    array[4:20], array[48:] = ROWS[4:20], ROWS[48:]  # chunks of shards, and a whole shard, are never written
    assert same_as_zarr(tmp_path / "x.zarr").startswith("direct")


def test_what_is_left_to_zarr(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(8, 3), dtype="f8", filters=[TransposeCodec(order=(1, 0))])
    array[:] = ROWS
    assert same_as_zarr(tmp_path / "x.zarr").startswith("zarr")


@pytest.mark.parametrize("place", [0, 20, -3])
def test_a_flipped_byte_is_noticed(tmp_path: Path, place: int) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(8, 7), dtype="f8", compressors=VERSION_3["zstd + crc32c"])
    array[:] = ROWS
    file = tmp_path / "x.zarr" / "c" / "2" / "0"
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptDataError, match=r"chunk at \(16, 0\).*crc32c"):
        sp.open_source(tmp_path / "x.zarr").read(slice(None))


def test_a_shard_without_its_index_is_named(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(4, 7), shards=(16, 7), dtype="f8")
    array[:] = ROWS
    file = tmp_path / "x.zarr" / "c" / "1" / "0"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(CorruptDataError, match=r"chunk at \(16, 0\)"):
        sp.open_source(tmp_path / "x.zarr").read(slice(16, 20))


def test_what_is_larger_than_memory_is_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "total_memory", lambda: 1)
    monkeypatch.setattr("streampca.sources.zarr_raw.total_memory", lambda: 1)
    array = zarr.create_array(tmp_path / "x.zarr", shape=ROWS.shape, chunks=(8, 3), dtype="f8")
    array[:] = ROWS
    same_as_zarr(tmp_path / "x.zarr")
    np.save(tmp_path / "x.npy", ROWS)
    np.testing.assert_array_equal(sp.open_source(tmp_path / "x.npy").read(slice(3, 50)), ROWS[3:50])
