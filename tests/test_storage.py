from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streampca import storage
from streampca.errors import CorruptDataError, DataError, OutputError, SourceNotFoundError, UsageError
from streampca.storage import chunk_shape, from_json, read_arrays, read_attributes, stored_kind, to_json, write_arrays

DTYPES = st.one_of(hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64)))
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
NAMES = st.sampled_from(["mean", "a.b", "state/scatter", "state/n", "x/y/z", "c", "+-_"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SAMPLE: dict[str, np.ndarray] = {
    "components": np.linspace(-1, 1, 60).reshape(5, 12),
    "state/scatter": np.arange(9, dtype=np.float32).reshape(3, 3),
    "n": np.array(7),
    "empty": np.zeros((0, 4)),
    "mask": np.array([True, False, True]),
}


def write(path: Path, arrays: dict[str, Any] | None = None, attributes: dict[str, Any] | None = None, **options: Any) -> Path:
    given: dict[str, Any] = {"kind": "pca-model", "version": 2} | options
    write_arrays(path, SAMPLE if arrays is None else arrays, {"k": 5, "names": ["a", "ü"]} if attributes is None else attributes, **given)
    return path


def read(path: Path) -> dict[str, np.ndarray]:
    return read_arrays(path, kind="pca-model", max_version=2)[0]


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape
        assert found[name].dtype == array.dtype.newbyteorder("=")
        assert found[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()


def files(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "m.zarr")


# --- round trip ---


@given(st.dictionaries(NAMES, ARRAYS, max_size=3), st.dictionaries(st.text(), JSON, max_size=3))
@settings(max_examples=60, deadline=None)
def test_round_trip_is_bit_exact(arrays: dict[str, np.ndarray], attributes: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "m.zarr", arrays, attributes, version=1)
        found, found_attributes, version = read_arrays(path, kind="pca-model", max_version=3)
        assert_same(found, arrays)
        assert json.dumps(found_attributes, sort_keys=True) == json.dumps(attributes, sort_keys=True)
        assert version == 1


def test_several_chunks_along_both_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = np.random.default_rng(0).normal(size=(3, 1000))
    tall = np.random.default_rng(1).normal(size=(1000, 7))
    monkeypatch.setattr(storage, "chunk_shape", lambda shape, itemsize, limit: chunk_shape(shape, itemsize, 800))
    arrays = {"wide": wide, "tall": tall, "fortran": np.asfortranarray(tall), "strided": tall[::3, ::2]}
    write(tmp_path / "m.zarr", arrays)
    assert sum(1 for file in (tmp_path / "m.zarr" / "wide" / "c").rglob("*") if file.is_file()) == 30
    assert_same(read(tmp_path / "m.zarr"), arrays)


def test_a_square_matrix_larger_than_one_chunk(tmp_path: Path) -> None:
    scatter = np.random.default_rng(0).integers(0, 3, size=(1700, 1700)).astype(float)
    write(tmp_path / "m.zarr", {"scatter": scatter})
    assert sorted(each.name for each in (tmp_path / "m.zarr" / "scatter" / "c").iterdir()) == ["0", "1"]
    assert_same(read(tmp_path / "m.zarr"), {"scatter": scatter})


def test_a_large_matrix_of_zeros_can_be_read_again(tmp_path: Path) -> None:
    """It shrinks so much that it looks like a decompression bomb, so it is stored as it is."""
    zeros = np.zeros((2000, 1000))
    write(tmp_path / "m.zarr", {"group/zeros": zeros})
    assert_same(read(tmp_path / "m.zarr"), {"group/zeros": zeros})


@pytest.mark.parametrize("limit", [8, 100, 10_000])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (100, 100), (5, 0, 3), (20, 30, 40)])
def test_chunks_are_bounded(shape: tuple[int, ...], limit: int) -> None:
    chunks = chunk_shape(shape, 8, limit)
    assert len(chunks) == len(shape)
    assert 8 * np.prod(chunks, dtype=int) <= limit


def test_special_floats_in_attributes(tmp_path: Path) -> None:
    attributes = {"a": [np.nan, np.inf, -np.inf, np.float32(0.5)], "b": {"c": (np.int8(3), np.True_)}}
    write(tmp_path / "m.zarr", {}, attributes)
    found = read_arrays(tmp_path / "m.zarr", kind="pca-model", max_version=2)[1]
    np.testing.assert_array_equal(found["a"], [np.nan, np.inf, -np.inf, 0.5])
    assert found["b"] == {"c": [3, True]}
    json.loads((tmp_path / "m.zarr" / "zarr.json").read_text(), parse_constant=pytest.fail)


@given(st.floats())
def test_json_round_trip_of_floats(value: float) -> None:
    assert repr(from_json(json.loads(json.dumps(to_json(value))))) == repr(value)


def test_the_bytes_are_reproducible(tmp_path: Path) -> None:
    first = write(tmp_path / "a.zarr")
    backwards = dict(reversed(SAMPLE.items()))
    second = write(tmp_path / "b.zarr", backwards, {"names": ["a", "ü"], "k": np.int64(5)})
    assert files(first) == files(second)


@pytest.mark.parametrize("value", [np.zeros(3), b"x", {1: 2}, {"__float__": "nan"}, {1, 2}, object(), 1j])
def test_attributes_that_are_not_json(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UsageError, match=r"attributes\['x'\]"):
        write(tmp_path / "m.zarr", {}, {"x": value})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "..", "a/../b", "a b", "zarr.json", "__x", "a\\b"])
def test_names_that_cannot_be_stored(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no name"):
        write(tmp_path / "m.zarr", {name: np.zeros(3)})


def test_an_array_cannot_hold_another(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'a' cannot be an array and hold"):
        write(tmp_path / "m.zarr", {"a": np.zeros(3), "a/b": np.zeros(3)})


@pytest.mark.parametrize("dtype", ["O", "U3", "c16", "M8[s]", "i4,f8", "longdouble"])
def test_dtypes_that_cannot_be_stored(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(UsageError, match="which cannot be stored"):
        write(tmp_path / "m.zarr", {"a": np.zeros(3, dtype)})


def test_existing_stores(path: Path) -> None:
    before = files(path)
    with pytest.raises(OutputError, match="--overwrite"):
        write(path, {})
    assert files(path) == before
    write(path, {}, overwrite=True)
    assert read(path) == {}
    assert [each.name for each in path.parent.iterdir()] == ["m.zarr"]


# --- a quick look ---


def test_a_quick_look(path: Path) -> None:
    found = read_attributes(path)
    assert (found["kind"], found["version"]) == ("pca-model", 2)
    assert found["arrays"]["components"] == {"shape": (5, 12), "dtype": "float64"}
    assert found["attributes"] == {"k": 5, "names": ["a", "ü"]}
    assert read_attributes(path, kind="pca-model") == found
    with pytest.raises(DataError, match="'pca-model', but a 'state'"):
        read_attributes(path, kind="state")


def test_stored_kind(path: Path, tmp_path: Path) -> None:
    assert stored_kind(path) == "pca-model"
    assert stored_kind(tmp_path) is None
    assert stored_kind(tmp_path / "none") is None
    (tmp_path / "file").write_bytes(b"\x89HDF")
    assert stored_kind(tmp_path / "file") is None
    (path / "zarr.json").write_text("{")
    assert stored_kind(path) is None


# --- what is refused ---


def test_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError) as caught:
        read(tmp_path / "m.zarr")
    assert caught.value.exit_code == 65
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    "metadata", [None, {"zarr_format": 3, "node_type": "array"}, {"zarr_format": 3, "node_type": "group", "attributes": {}}]
)
def test_not_ours(tmp_path: Path, metadata: Any) -> None:
    (tmp_path / "x").mkdir()
    if metadata is not None:
        (tmp_path / "x" / "zarr.json").write_text(json.dumps(metadata))
    with pytest.raises(DataError, match="not"):
        read(tmp_path / "x")


def test_another_kind_names_both(path: Path) -> None:
    with pytest.raises(DataError, match="holds a 'pca-model', but a 'ppca-model' is needed"):
        read_arrays(path, kind="ppca-model", max_version=2)


def test_a_newer_version(path: Path) -> None:
    with pytest.raises(DataError, match=r"layout version 2 .* 1: update"):
        read_arrays(path, kind="pca-model", max_version=1)


def test_any_flipped_byte_is_an_error_or_changes_nothing(path: Path) -> None:
    rng = np.random.default_rng(0)
    attributes = read_attributes(path)["attributes"]
    for name, content in files(path).items():
        positions = range(len(content)) if "/c" in name else rng.choice(len(content), 60, replace=False)
        for position in positions:
            broken = bytearray(content)
            broken[position] ^= 1 << rng.integers(8)
            (path / name).write_bytes(broken)
            try:
                found, found_attributes, _ = read_arrays(path, kind="pca-model", max_version=2)
            except DataError:
                continue
            assert "/c" not in name, f"a change of {name} at {position} was not noticed"
            assert_same(found, SAMPLE)
            assert found_attributes == attributes
        (path / name).write_bytes(content)
    assert_same(read(path), SAMPLE)


def test_any_missing_or_truncated_file_is_an_error(path: Path) -> None:
    for name, content in files(path).items():
        if name == "state/zarr.json":  # a group without metadata is a group by name
            continue
        (path / name).unlink()
        with pytest.raises(DataError):
            read(path)
        for length in {0, 1, len(content) // 2, len(content) - 1}:
            (path / name).write_bytes(content[:length])
            with pytest.raises(DataError):
                read(path)
        (path / name).write_bytes(content)


def test_swapped_chunks_fail_the_checksum(tmp_path: Path) -> None:
    path = write(tmp_path / "m.zarr", {"a": np.zeros(3), "b": np.ones(3)})
    shutil.copy(path / "a/c/0", path / "b/c/0")
    with pytest.raises(CorruptDataError, match="'b' fails its checksum"):
        read(path)


# --- hostile metadata, with checksums that are right ---


def edit_header(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    metadata = json.loads((path / "zarr.json").read_text())
    header = metadata["attributes"]
    change(header["streampca"])
    ours = {key: item for key, item in header["streampca"].items() if key != "sha256"}
    header["streampca"]["sha256"] = storage._canonical_digest([ours, header["attributes"]])
    (path / "zarr.json").write_text(json.dumps(metadata))


def edit_array(path: Path, name: str, **changes: Any) -> None:
    metadata = json.loads((path / name / "zarr.json").read_text())
    (path / name / "zarr.json").write_text(json.dumps(metadata | changes))


def declare(path: Path, name: str, **changes: Any) -> None:
    edit_header(path, lambda ours: ours["arrays"][name].update(changes))


@pytest.mark.parametrize("chunks", [[5, 12], [1000, 1000], [10**6, 10**6], [10**12, 10**12]])
def test_a_huge_shape_is_refused_without_allocating(path: Path, chunks: list[int]) -> None:
    shape = [10**12, 10**12]
    declare(path, "components", shape=shape)
    edit_array(path, "components", shape=shape, chunk_grid={"name": "regular", "configuration": {"chunk_shape": chunks}})
    with pytest.raises(CorruptDataError, match="chunks"):
        read(path)


def test_a_decompression_bomb_is_not_inflated(path: Path) -> None:
    shape = [4000, 2000]
    declare(path, "components", shape=shape)
    edit_array(path, "components", shape=shape, chunk_grid={"name": "regular", "configuration": {"chunk_shape": shape}})
    (path / "components/c/0/0").write_bytes(numcodecs.Zstd().encode(np.zeros(shape)))
    with pytest.raises(CorruptDataError, match=r"61\.0 MiB .* is implausible"):
        read(path)


def test_a_chunk_larger_than_declared_is_not_inflated(path: Path) -> None:
    (path / "components/c/0/0").write_bytes(numcodecs.Zstd().encode(np.zeros(10**7)))
    with pytest.raises(CorruptDataError, match="would decode to 80000000 bytes instead of 480"):
        read(path)


def test_a_frame_without_a_size_is_not_inflated(path: Path) -> None:
    (path / "components/c/0/0").write_bytes(bytes.fromhex("28b52ffd0058") + bytes(30))
    with pytest.raises(CorruptDataError, match="would decode to None bytes"):
        read(path)


@pytest.mark.parametrize("shape", [[-1, 12], [5.0, 12], "5", None, [True, 12], [1] * 33, [2**63]])
def test_impossible_shapes(path: Path, shape: Any) -> None:
    declare(path, "components", shape=shape)
    with pytest.raises(CorruptDataError, match="declares the shape"):
        read(path)


@pytest.mark.parametrize("dtype", ["object", "|O", "str", "complex128", None, ["f8"], "datetime64"])
def test_object_dtypes_are_refused(path: Path, dtype: Any) -> None:
    declare(path, "components", dtype=dtype)
    with pytest.raises(CorruptDataError, match="declares the dtype"):
        read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [12, 5]},
        {"shape": [60]},
        {"data_type": "int64"},
        {"data_type": "object"},
        {"data_type": {"name": "numpy.datetime64"}},
        {"node_type": "group"},
        {"zarr_format": 2},
        {"codecs": [{"name": "bytes"}, {"name": "numcodecs.pickle"}]},
        {"codecs": [{"name": "sharding_indexed"}]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}, {"name": "crc32c"}]},
        {"codecs": []},
        {"codecs": None},
        {"codecs": ["bytes", "zstd", "crc32c"]},
        {"codecs": [{"name": "bytes", "configuration": 3}, {"name": "crc32c"}]},
        {"chunk_grid": {"name": "rectangular"}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 12]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 12]}}},
        {"chunk_key_encoding": {"name": "v2"}},
        {"storage_transformers": [{"name": "x"}]},
    ],
)
def test_array_metadata_other_than_declared(path: Path, changes: dict[str, Any]) -> None:
    edit_array(path, "components", **changes)
    with pytest.raises(CorruptDataError, match="components"):
        read(path)


def test_undeclared_arrays_are_refused(path: Path) -> None:
    shutil.copytree(path / "n", path / "state" / "extra")
    with pytest.raises(CorruptDataError, match="'state/extra', which it does not declare"):
        read(path)


def test_a_missing_array_is_named(path: Path) -> None:
    shutil.rmtree(path / "mask")
    with pytest.raises(CorruptDataError, match="'mask' is missing"):
        read(path)


@pytest.mark.parametrize("name", ["../../secret", "/etc", "a/../n", "", "__x"])
def test_declared_names_stay_inside(path: Path, name: str) -> None:
    edit_header(path, lambda ours: ours["arrays"].update({name: dict(ours["arrays"]["n"])}))
    with pytest.raises(CorruptDataError, match="not declared as streampca does"):
        read(path)


@pytest.mark.parametrize(
    "changes", [{"arrays": None}, {"arrays": {"n": 3}}, {"kind": 3}, {"version": "2"}, {"version": True}, {"version": -1}]
)
def test_nonsense_in_the_header(path: Path, changes: dict[str, Any]) -> None:
    edit_header(path, lambda ours: ours.update(changes))
    with pytest.raises(CorruptDataError):
        read(path)


@pytest.mark.parametrize("text", ["NaN", "1e999", "[" * 100_000, "1" * 5000, '{"__float__": "exec"}', "3", "\udcff"])
def test_nonsense_in_the_attributes(path: Path, text: str) -> None:
    content = (path / "zarr.json").read_text()
    marker = content.replace('"k": 5', '"k": ' + text)
    assert marker != content
    (path / "zarr.json").write_bytes(marker.encode(errors="surrogateescape"))
    with pytest.raises(CorruptDataError):
        read(path)


@pytest.mark.parametrize("value", [{"__float__": "exec"}, {"__float__": ["nan"]}, {"__float__": None}])
def test_special_floats_are_only_the_three(path: Path, value: Any) -> None:
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["attributes"]["attributes"] = {"x": value}
    (path / "zarr.json").write_text(json.dumps(metadata))
    edit_header(path, lambda ours: None)
    with pytest.raises(CorruptDataError, match="streampca did not write"):
        read(path)
