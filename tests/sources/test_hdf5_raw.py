from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t, h5z
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs.zstd import Zstd

from streampca.errors import ChangedDataError, CorruptDataError, MemoryBudgetError
from streampca.planning import plan_pca
from streampca.sources import hdf5, hdf5_raw, open_source
from tests.sources.conformance import numbers

hdf5plugin = pytest.importorskip("hdf5plugin")

Filters = list[tuple[int, tuple[int, ...]]]
DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET, LZF = 1, 2, 3, 4, 5, 6, 32000
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i2", ">u4", ">i8", ">f2", ">f4", ">f8"]


@dataclass(frozen=True)
class Written:
    """The filters of a dataset, whether they are undone without h5py, and what they are made for."""

    filters: Filters
    direct: bool = True
    kinds: str = "biuf"
    least_item: int = 1
    least_chunk: int = 1


def _plugin(made: Any) -> tuple[int, tuple[int, ...]]:
    return made.filter_id, made.filter_options


def _pipelines() -> Iterator[tuple[str, Written]]:
    shuffle, fletcher, gzip, lzf = (SHUFFLE, ()), (FLETCHER32, ()), (DEFLATE, (4,)), (LZF, ())
    yield "none", Written([])
    yield from ((f"gzip-{level}", Written([(DEFLATE, (level,))])) for level in (0, 1, 9))
    yield "shuffle", Written([shuffle])
    yield "shuffle-gzip", Written([shuffle, gzip])
    yield "gzip-shuffle", Written([gzip, shuffle])
    yield "fletcher32", Written([fletcher])
    yield "shuffle-gzip-fletcher32", Written([shuffle, gzip, fletcher])
    yield "fletcher32-shuffle-gzip", Written([fletcher, shuffle, gzip])
    yield "shuffle-fletcher32-gzip-fletcher32", Written([shuffle, fletcher, gzip, fletcher])
    yield "lzf", Written([lzf])
    yield "shuffle-lzf", Written([shuffle, lzf])
    yield "lzf-fletcher32", Written([lzf, fletcher])
    yield "gzip-lzf", Written([gzip, lzf], direct=False)
    yield "szip", Written([(SZIP, (32 | 128, 4))], direct=False, least_chunk=4)
    yield "nbit", Written([(NBIT, ())], direct=False)
    yield "scaleoffset", Written([(SCALEOFFSET, (2, 0))], direct=False, kinds="iu")
    yield "scaleoffset-float", Written([(SCALEOFFSET, (0, 3))], direct=False, kinds="f", least_item=4)
    yield "bzip2", Written([_plugin(hdf5plugin.BZip2())], direct=False)
    yield from _plugin_pipelines(shuffle, fletcher, gzip)


def _plugin_pipelines(shuffle: Any, fletcher: Any, gzip: Any) -> Iterator[tuple[str, Written]]:
    zstd, lz4, bits = hdf5plugin.Zstd, hdf5plugin.LZ4, hdf5plugin.Bitshuffle
    yield "zstd", Written([_plugin(zstd())])
    yield "shuffle-zstd-fletcher32", Written([shuffle, _plugin(zstd(clevel=19)), fletcher])
    yield from ((f"lz4-{n}", Written([_plugin(lz4(nbytes=n))])) for n in (0, 16, 100))
    yield "fletcher32-lz4", Written([fletcher, _plugin(lz4())])
    yield "bitshuffle-old", Written([(bits.filter_id, ())])
    yield "bitshuffle-gzip", Written([_plugin(bits(cname="none")), gzip])
    for name in ("none", "lz4", "zstd"):
        yield from ((f"bitshuffle-{name}-{n}", Written([_plugin(bits(nelems=n, cname=name))])) for n in (0, 8, 16))
    yield "bitshuffle-lz4-fletcher32", Written([_plugin(bits()), fletcher])
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd"):
        for s in range(3):
            yield f"blosc-{name}-{s}", Written([_plugin(hdf5plugin.Blosc(cname=name, shuffle=s))])
        for s in range(4):  # none, shuffle, bitshuffle, delta
            yield f"blosc2-{name}-{s}", Written([_plugin(hdf5plugin.Blosc2(cname=name, filters=s))])
    yield "blosc-stored", Written([_plugin(hdf5plugin.Blosc(clevel=0))])
    yield "blosc2-stored", Written([_plugin(hdf5plugin.Blosc2(clevel=0))])
    yield "blosc2-small-blocks", Written([(32026, (0, 64, 0, 0, 5, 1, 1))])


PIPELINES = dict(_pipelines())
CHECKED = [name for name in PIPELINES if "gzip-" in name or "-gzip" in name or "fletcher32" in name]
CHECKED = [name for name in CHECKED if PIPELINES[name].direct]
LAYOUTS: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {  # shape, chunks
    "rows": ((24, 7), (4, 7)),
    "columns": ((23, 7), (23, 2)),
    "ragged": ((23, 7), (5, 3)),
    "larger": ((23, 7), (40, 16)),
    "one row": ((1, 7), (1, 7)),
    "one column": ((23, 1), (5, 1)),
    "one cell": ((3, 2), (1, 1)),
}


def create(file: h5py.File, key: str, data: np.ndarray, chunks: tuple[int, ...] | None, filters: Filters, **other: Any) -> h5py.Dataset:
    """Make a dataset with filters in any order; a filter that cannot be applied is skipped and marked so in the chunk's mask."""
    dcpl = h5p.create(h5p.DATASET_CREATE)
    if chunks is not None:
        dcpl.set_chunk(chunks)
    for code, options in filters:
        dcpl.set_filter(code, h5z.FLAG_OPTIONAL, options)
    for name, value in other.get("properties", {}).items():
        getattr(dcpl, name)(value)
    maxshape = tuple(h5s.UNLIMITED if n is None else n for n in other.get("maxshape", data.shape))
    space = h5s.create_simple(data.shape, maxshape)
    dataset = h5py.Dataset(h5d.create(file.id, key.encode(), other.get("type") or h5t.py_create(data.dtype, logical=True), space, dcpl))
    if other.get("write", True):
        dataset[...] = data
    return dataset


def stored_chunk(table: np.ndarray, written: Written) -> tuple[Filters, int, bytes]:
    """Return the filters as HDF5 keeps them, the mask and the bytes of a table that is one chunk."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        dataset = create(file, "X", table, table.shape, written.filters)
        mask, raw = dataset.id.read_direct_chunk((0, 0))
        return [(code, options) for code, _, options, _ in hdf5._filters(dataset)], mask, bytes(raw)


def table(shape: tuple[int, int], dtype: str, seed: int = 0) -> np.ndarray:
    """Return numbers of which a part is the same, so that some chunks compress well and some do not."""
    data = numbers(*shape, dtype, seed)
    data[shape[0] // 2 :, : shape[1] // 2] = 1
    data[-shape[0] // 4 :] = 0
    return data


def open_files_are_forgotten() -> None:
    hdf5._HANDLES._entries.clear()


def assert_same_bytes(path: Path, key: str, direct: bool | None = None, axes: tuple[int, ...] = (0, 1)) -> np.ndarray:
    """Read all rows, some that cut chunks, and one, and compare them with what h5py gives."""
    with h5py.File(path) as file:
        expected = file[key][...]
    for axis in axes:
        source = open_source(path, dataset=key, samples_axis=axis)
        rows, n = (expected.T if axis else expected), expected.shape[axis]
        rows = rows.astype(rows.dtype.newbyteorder("="))
        for part in (slice(0, n), slice(n // 4, n - n // 5), slice(n - 1, n)):
            got = source.read(part)
            assert got.dtype == rows.dtype
            assert got.tobytes() == rows[part].tobytes(), (key, axis, part)
        if direct is not None:
            assert source.details()["reader"].startswith("direct" if direct else "h5py"), key
        source.release()
    return expected


# ---------------------------------------------------------------------------------------- filters, dtypes, layouts


@pytest.mark.parametrize("name", PIPELINES)
def test_every_filter_with_every_dtype(tmp_path: Path, name: str) -> None:
    written = PIPELINES[name]
    dtypes = [dtype for dtype in DTYPES if np.dtype(dtype).kind in written.kinds and np.dtype(dtype).itemsize >= written.least_item]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for dtype in dtypes:
            create(file, dtype, table((23, 7), dtype), (6, 4), written.filters)
    for dtype in dtypes:
        got = assert_same_bytes(tmp_path / "x.h5", dtype, written.direct, axes=(0,))
        assert "scaleoffset" in name or got.tobytes() == table((23, 7), dtype).tobytes()


@pytest.mark.parametrize("name", PIPELINES)
def test_every_filter_with_every_layout(tmp_path: Path, name: str) -> None:
    written = PIPELINES[name]
    dtype = "i4" if written.kinds == "iu" else "f8"
    layouts = {layout: pair for layout, pair in LAYOUTS.items() if math.prod(pair[1]) >= written.least_chunk}
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for layout, (shape, chunks) in layouts.items():
            create(file, layout, table(shape, dtype), chunks, written.filters, maxshape=(None, None))
    for layout in layouts:
        assert_same_bytes(tmp_path / "x.h5", layout, written.direct)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_pipeline_dtype_chunk_and_slice(tmp_path: Path, data: st.DataObject) -> None:
    open_files_are_forgotten()
    before = data.draw(st.sampled_from(["none", "shuffle", "fletcher32"]))
    direct = [
        name for name, written in PIPELINES.items() if written.direct and not ("blosc2" in name and before == "fletcher32")
    ]  # HDF5 cannot
    names = [before, data.draw(st.sampled_from(direct)), data.draw(st.sampled_from(["none", "fletcher32"]))]
    filters = list(dict(each for name in names for each in PIPELINES[name].filters).items())  # a filter comes once
    shape = data.draw(st.tuples(st.integers(1, 40), st.integers(1, 20)))
    chunks = data.draw(st.tuples(st.integers(1, 50), st.integers(1, 25)))
    dtype = data.draw(st.sampled_from(DTYPES))
    with h5py.File(tmp_path / "x.h5", "w", libver=data.draw(st.sampled_from(["earliest", "latest"]))) as file:
        create(file, "X", table(shape, dtype, data.draw(st.integers(0, 9))), chunks, filters, maxshape=(None, None))
    expected = assert_same_bytes(tmp_path / "x.h5", "X")
    start = data.draw(st.integers(0, shape[0] - 1))
    rows = slice(start, data.draw(st.integers(start + 1, shape[0])))
    source = open_source(tmp_path / "x.h5")
    assert source.read(rows).tobytes() == expected.astype(source.info.dtype)[rows].tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_chunks_of_many_blocks(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    data = np.round(rng.standard_normal((700, 300)), 1).astype(dtype)
    data[:100] = rng.standard_normal((100, 300))
    names = [
        "shuffle-gzip",
        "lz4-0",
        "lz4-100",
        "bitshuffle-lz4-0",
        "bitshuffle-zstd-16",
        "blosc-zstd-1",
        "blosc2-zstd-1",
        "blosc2-lz4-2",
        "zstd",
    ]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for name in names:
            create(file, name, data, (600, 170), PIPELINES[name].filters)
    for name in names:
        assert assert_same_bytes(tmp_path / "x.h5", name, direct=True, axes=(0,)).tobytes() == data.tobytes()


# ---------------------------------------------------------------------------------------- unusual storage


@pytest.mark.parametrize("filters", [[], PIPELINES["shuffle-gzip"].filters])
def test_every_chunk_index_of_new_files(tmp_path: Path, filters: Filters) -> None:
    data, early = table((50, 9), "f4"), {"set_alloc_time": h5d.ALLOC_TIME_EARLY}
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        create(file, "fixed array", data, (4, 3), filters)
        create(file, "extensible array", data, (4, 3), filters, maxshape=(None, 9))
        create(file, "b-tree", data, (4, 3), filters, maxshape=(None, None))
        create(file, "implicit", data, (4, 3), filters, properties=early)
        create(file, "single", data, (50, 9), filters)
        for key in ("extensible array", "b-tree"):
            file[key].resize(37, axis=0)
    with h5py.File(tmp_path / "x.h5") as file:
        keys = list(file)
    for key in keys:
        assert (
            assert_same_bytes(tmp_path / "x.h5", key, direct=True).tobytes()
            == data[: 37 if key in ("extensible array", "b-tree") else 50].tobytes()
        )


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_dataset_that_shrank_and_grew(tmp_path: Path, libver: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=libver) as file:
        dataset = create(file, "X", table((40, 12), "f8"), (6, 5), PIPELINES["gzip-1"].filters, maxshape=(None, None))
        dataset.resize((17, 7))
        dataset.resize((31, 9))
    got = assert_same_bytes(tmp_path / "x.h5", "X", direct=True)
    assert not got[17:].any()


@pytest.mark.parametrize("name", ["gzip-1", "shuffle", "lz4-0", "blosc2-lz4-1", "fletcher32"])
def test_edges_that_are_not_filtered(tmp_path: Path, name: str) -> None:
    """HDF5 can leave chunks that stick out of the dataset unfiltered."""
    try:
        set_options = ctypes.CDLL(h5z.__file__).H5Pset_chunk_opts
    except AttributeError:
        pytest.skip("HDF5's own functions cannot be reached through h5py")
    dcpl = h5p.create(h5p.DATASET_CREATE)
    dcpl.set_chunk((6, 5))
    for code, options in PIPELINES[name].filters:
        dcpl.set_filter(code, h5z.FLAG_OPTIONAL, options)
    assert set_options(ctypes.c_int64(dcpl.id), ctypes.c_uint(2)) >= 0
    with h5py.File(tmp_path / "x.h5", "w", libver="latest") as file:
        for key in ("X", "smaller", "larger"):
            space = h5s.create_simple((23, 12), (h5s.UNLIMITED, h5s.UNLIMITED))
            h5py.Dataset(h5d.create(file.id, key.encode(), h5t.NATIVE_DOUBLE, space, dcpl))[...] = table((23, 12), "f8")
        assert file["X"].id.get_chunk_info_by_coord((18, 10)).size == 6 * 5 * 8
        file["smaller"].resize((20, 8))
        file["larger"].resize((29, 16))
    for key in ("X", "smaller", "larger"):
        assert_same_bytes(tmp_path / "x.h5", key, direct=True)


def test_edges_are_left_to_h5py_if_hdf5_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", table((23, 7), "f8"), (6, 5), PIPELINES["gzip-1"].filters)
    monkeypatch.setattr(hdf5_raw, "c_function", lambda *_: None)
    assert_same_bytes(tmp_path / "x.h5", "X", direct=False)


def test_contiguous_compact_and_user_block(tmp_path: Path) -> None:
    data = table((23, 7), ">f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "contiguous", data, None, [])
        create(file, "compact", data, None, [], properties={"set_layout": h5d.COMPACT})
        create(file, "nothing written", data, None, [], write=False)
    for key, direct in (("contiguous", True), ("compact", False), ("nothing written", False)):
        assert_same_bytes(tmp_path / "x.h5", key, axes=(0, 1), direct=direct)
    with h5py.File(tmp_path / "u.h5", "w", userblock_size=1024) as file:
        create(file, "chunked", data, (5, 3), PIPELINES["gzip-1"].filters)
        create(file, "contiguous", data, None, [])
    for key in ("chunked", "contiguous"):
        assert_same_bytes(tmp_path / "u.h5", key)


@pytest.mark.parametrize("dtype", ["?", "i2", ">f4", "f8", "u1"])
def test_chunks_that_were_never_written(tmp_path: Path, dtype: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("X", (23, 7), dtype, chunks=(5, 3), fillvalue=1, compression="gzip")
        dataset[3:8, 2:4] = 0
    assert assert_same_bytes(tmp_path / "x.h5", "X", direct=True).sum() > 0


@pytest.mark.parametrize(
    "name", ["shuffle-gzip", "fletcher32-shuffle-gzip", "shuffle-gzip-fletcher32", "shuffle-zstd-fletcher32", "blosc2-lz4-1"]
)
def test_chunks_with_skipped_filters(tmp_path: Path, name: str) -> None:
    """Of every chunk, other filters are skipped; h5py encodes each in a dataset that has only the rest."""
    filters, data = PIPELINES[name].filters, table((6 * 2 ** len(PIPELINES[name].filters), 4), "f8")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", data, (6, 4), filters, write=False)
        for mask in range(2 ** len(filters)):
            applied = [each for index, each in enumerate(filters) if not mask >> index & 1]
            rows = slice(6 * mask, 6 * mask + 6)
            _, _, raw = stored_chunk(data[rows], Written(applied))
            dataset.id.write_direct_chunk((rows.start, 0), raw, filter_mask=mask)
    assert assert_same_bytes(tmp_path / "x.h5", "X", direct=True).tobytes() == data.tobytes()


@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_blosc2_frames_of_one_dimension(tmp_path: Path, dtype: str) -> None:
    """Older writers, and those that write whole chunks, do not make b2nd."""
    filters, data = PIPELINES["blosc2-zstd-1"].filters, table((24, 8), dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", data, (12, 8), filters, write=False)
        for start in (0, 12):
            flat = create(file, f"flat {start}", data[start : start + 12].ravel(), (96,), filters)
            dataset.id.write_direct_chunk((start, 0), flat.id.read_direct_chunk((0,))[1])
    assert assert_same_bytes(tmp_path / "x.h5", "X", direct=True).tobytes() == data.tobytes()


def test_odd_types_are_left_to_h5py(tmp_path: Path) -> None:
    short, half = h5t.STD_I32LE.copy(), h5t.IEEE_F32LE.copy()
    short.set_precision(24)
    half.set_fields(30, 24, 6, 0, 24)
    half.set_ebias(31)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for key, kind in (("short", short), ("half", half)):
            create(file, key, table((23, 7), "i4"), (5, 3), PIPELINES["gzip-1"].filters, type=kind)
    for key in ("short", "half"):
        assert_same_bytes(tmp_path / "x.h5", key, direct=False)


def test_more_chunks_than_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_raw, "_LARGEST_INDEX", 7)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", table((23, 7), "f8"), (5, 3), PIPELINES["shuffle-gzip"].filters)
        sparse = create(file, "sparse", np.zeros((23, 7)), (5, 3), PIPELINES["gzip-1"].filters, write=False)
        sparse[11, 4] = 1
    for key in ("X", "sparse"):
        assert_same_bytes(tmp_path / "x.h5", key, direct=True)


# ---------------------------------------------------------------------------------------- damage


def damage(path: Path, places: list[int], change: int) -> None:
    with path.open("r+b") as file:
        for place in places:
            file.seek(place)
            (byte,) = file.read(1)
            file.seek(place)
            file.write(bytes([byte ^ change]))


@pytest.mark.parametrize("name", CHECKED)
def test_a_flipped_byte_is_never_read_where_there_is_a_checksum(tmp_path: Path, name: str) -> None:
    path, data = tmp_path / "x.h5", table((24, 8), "f8")
    with h5py.File(path, "w") as file:
        info = create(file, "X", data, (12, 8), PIPELINES[name].filters).id.get_chunk_info_by_coord((12, 0))
    source, rng = open_source(path), np.random.default_rng(0)
    near = [*range(min(12, info.size)), *range(max(info.size - 8, 0), info.size)]
    for place in [*near, *rng.integers(0, info.size, 20)]:
        change = int(rng.integers(1, 256))
        damage(path, [info.byte_offset + int(place)], change)
        source.release()
        try:
            same = source.read(slice(None)).tobytes() == data.tobytes()
        except CorruptDataError as error:
            assert f"{path}::/X: rows 0 to 23 cannot be read" in str(error)  # noqa: PT017
            assert "the chunk at (12, 0): " in str(error)  # noqa: PT017
            assert source.read(slice(0, 12)).tobytes() == data[:12].tobytes()
        else:
            assert same, place  # a bit without a meaning, as the level in the header of gzip
        damage(path, [info.byte_offset + int(place)], change)


@pytest.mark.parametrize("name", [name for name, written in PIPELINES.items() if written.direct])
def test_a_chunk_that_is_cut_off(tmp_path: Path, name: str) -> None:
    data = numbers(12, 8, "f4") if "blosc2" in name else table((12, 8), "f4")
    _, mask, raw = stored_chunk(data, PIPELINES[name])
    cuts = [*range(1, min(len(raw), 20)), *range(20, len(raw) - 1, 50), len(raw) - 1]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", np.zeros((12 * len(cuts), 8), "f4"), (12, 8), PIPELINES[name].filters, write=False)
        for index, cut in enumerate(cuts):
            dataset.id.write_direct_chunk((12 * index, 0), raw[:cut], filter_mask=mask)
    source = open_source(tmp_path / "x.h5")
    for index, cut in enumerate(cuts):
        try:
            got = source.read(slice(12 * index, 12 * index + 12))
        except CorruptDataError as error:
            assert f"x.h5::/X: rows {12 * index} to {12 * index + 11} cannot be read" in str(error)  # noqa: PT017
            assert f"the chunk at ({12 * index}, 0): " in str(error)  # noqa: PT017
        else:
            assert "blosc2" in name  # the trailer of a frame is not needed
            assert got.tobytes() == data.tobytes(), cut


def test_zstd_with_a_checksum(tmp_path: Path) -> None:
    data = table((12, 8), "f8")
    raw = bytes(Zstd(3, checksum=True).encode(data.tobytes()))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", np.zeros((12 * len(raw), 8)), (12, 8), PIPELINES["zstd"].filters, write=False)
        for place in range(len(raw)):
            bad = raw[:place] + bytes([raw[place] ^ (1 + place % 255)]) + raw[place + 1 :]
            dataset.id.write_direct_chunk((12 * place, 0), bad)
    source = open_source(tmp_path / "x.h5")
    for place in range(5, len(raw)):  # before it: the magic number and the header, where a window may be larger than it was
        with pytest.raises(CorruptDataError, match=rf"the chunk at \({12 * place}, 0\)"):
            source.read(slice(12 * place, 12 * place + 12))


def test_an_index_that_points_past_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", table((12, 8), "f8"), (12, 8), PIPELINES["gzip-1"].filters)
    for size, words in ((2**32 - 1, "past the end of the file"), (-(2**40), "the chunk at")):
        monkeypatch.setattr(hdf5_raw.RawDataset, "_look_up", lambda *_, size=size: (2048, size, 0))
        with pytest.raises(CorruptDataError, match=words):
            open_source(tmp_path / "x.h5").read(slice(None))


def test_a_chunk_stored_in_far_more_bytes_than_it_has(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", np.zeros((12, 8)), (12, 8), PIPELINES["zstd"].filters, write=False)
        dataset.id.write_direct_chunk((0, 0), bytes(Zstd().encode(bytes(768))) + struct.pack("<II", 0x184D2A50, 10**6) + bytes(10**6))
    with pytest.raises(CorruptDataError, match=r"stored in 1000.* bytes, but has only 768"):
        open_source(tmp_path / "x.h5").read(slice(None))


def test_a_bomb_names_its_chunk(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = create(file, "X", np.zeros((24, 8)), (12, 8), PIPELINES["shuffle-gzip"].filters, write=False)
        _, _, raw = stored_chunk(np.zeros((1000, 1000)), PIPELINES["shuffle-gzip"])
        dataset.id.write_direct_chunk((12, 0), raw)
    with pytest.raises(CorruptDataError, match=r"the chunk at \(12, 0\).*more than the 768 bytes"):
        open_source(tmp_path / "x.h5").read(slice(None))


def test_a_giant_chunk_is_in_the_plan(tmp_path: Path) -> None:
    chunks = (2**15, 2**14)  # 4 GiB of float64
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", (2**15, 2**14), "f8", chunks=chunks, compression="gzip")
    info = open_source(tmp_path / "x.h5").info
    assert info.read_scratch >= 3 * math.prod(chunks) * 8
    with pytest.raises(MemoryBudgetError):
        plan_pca(info, n_components=2, memory="2GiB")


# ---------------------------------------------------------------------------------------- threads, descriptors, forks


@pytest.mark.parametrize("name", ["none", "shuffle-gzip-fletcher32", "lzf", "bitshuffle-lz4-0", "blosc-zstd-1", "blosc2-zstd-1", "zstd"])
def test_four_threads_read_disjoint_rows(tmp_path: Path, name: str) -> None:
    data = table((400, 50), "f4")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", data, (30, 20), PIPELINES[name].filters)
    source, out = open_source(tmp_path / "x.h5"), np.empty_like(data)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            out[:] = -1
            list(pool.map(lambda start: source.read(slice(start, start + 25), out[start : start + 25]), range(0, 400, 25)))
            assert out.tobytes() == data.tobytes()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_closed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", table((23, 7), "f8"), (5, 3), PIPELINES["gzip-1"].filters)
        for index in range(40):
            create(file, f"{index}", table((23, 7), "f8"), (5, 3), [])
    open_files_are_forgotten()
    source, before = open_source(tmp_path / "x.h5", dataset="X"), descriptors()
    source.read(slice(0, 3))
    assert descriptors() > before
    source.release()
    assert descriptors() == before
    others = [open_source(tmp_path / "x.h5", dataset=f"{index}") for index in range(40)]
    for other in others:
        other.read(slice(0, 3))
    assert descriptors() <= before + 2 * 16
    for other in others:
        other.release()
    assert descriptors() <= before


def test_a_failed_read_leaves_no_descriptor(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", np.zeros((12, 8)), (12, 8), [(DEFLATE, (1,))], write=False).id.write_direct_chunk((0, 0), b"nothing")
    open_files_are_forgotten()
    source, before = open_source(tmp_path / "x.h5"), descriptors()
    with pytest.raises(CorruptDataError):
        source.read(slice(None))
    source.release()
    assert descriptors() == before


@pytest.mark.parametrize("name", ["shuffle-gzip", "blosc-zstd-1", "blosc2-zstd-1"])
def test_a_forked_process_reads_while_the_parent_does(tmp_path: Path, name: str) -> None:
    data = table((200, 20), "f8")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        create(file, "X", data, (30, 20), PIPELINES[name].filters)
    source = open_source(tmp_path / "x.h5")
    source.read(slice(0, 1))
    pid = os.fork()
    if pid == 0:
        same = False
        try:
            same = all(source.read(slice(None)).tobytes() == data.tobytes() for _ in range(3))
            source.release()
        finally:
            os._exit(0 if same else 1)
    assert all(source.read(slice(None)).tobytes() == data.tobytes() for _ in range(3))
    assert os.waitpid(pid, 0)[1] == 0
    assert source.read(slice(None)).tobytes() == data.tobytes()


def test_a_file_replaced_while_it_is_opened(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "w") as file:
            create(file, "X", table((12, 8), "f8"), (12, 8), [])
    before = descriptors()
    with h5py.File(tmp_path / "a.h5") as file, pytest.raises(ChangedDataError, match="was replaced"):
        hdf5_raw.open_raw(file["X"], str(tmp_path / "b.h5"), [])
    assert descriptors() == before
