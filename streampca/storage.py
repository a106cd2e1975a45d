"""Named arrays and JSON attributes in a Zarr v3 group, with checksums: the form of models, states and checkpoints.

Written in one step (see ``staging``) and byte-for-byte reproducible. Reading trusts nothing: metadata is checked
against the declaration and the files on disk before anything is decoded, and no code from the file is run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import CorruptDataError, DataError, SourceNotFoundError, UsageError
from streampca.memory import KIB, MIB, format_bytes
from streampca.staging import StrPath, output_error, staged

Array = NDArray[Any]
Json = Any

CHUNK_BYTES = 16 * MIB
ZSTD_LEVEL = 1
_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
)
_CODECS = (["bytes", "zstd", "crc32c"], ["bytes", "crc32c"])
_MAX_RATIO = 4096  # decoded bytes per stored byte, beyond 1 MiB; arrays that shrink more are stored uncompressed
_MAX_METADATA = 256 * MIB
_MAX_CHUNK = 64 * MIB
_NAME = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")
_FLOAT_KEY = "__float__"  # JSON has no NaN: {"__float__": "nan"} stands for it
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


# --- JSON -----------------------------------------------------------------------------------------------------


def to_json(value: Any, where: str = "attributes") -> Json:
    """Return a value as plain JSON: NumPy scalars and tuples converted, NaN and infinities made explicit.

    >>> to_json({"k": np.int64(3), "tol": float("nan")})
    {'k': 3, 'tol': {'__float__': 'nan'}}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT_KEY: str(value)}
    if isinstance(value, Mapping):
        return {_key(key, where): to_json(value[key], f"{where}[{key!r}]") for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [to_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise UsageError(
        f"{where} holds a {type(value).__name__}, which JSON cannot: use numbers, text, lists and mappings, and store arrays as arrays"
    )


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str) or key == _FLOAT_KEY:
        raise UsageError(f"{where} has the key {key!r}, but keys must be text other than {_FLOAT_KEY!r}")
    return key


def from_json(value: Json) -> Any:
    """Return what ``to_json`` was given, with lists for tuples.

    >>> from_json({"tol": {"__float__": "-inf"}})
    {'tol': -inf}
    """
    if isinstance(value, dict):
        if value.keys() == {_FLOAT_KEY}:
            return _SPECIAL[value[_FLOAT_KEY]]
        return {key: from_json(item) for key, item in value.items()}
    return [from_json(item) for item in value] if isinstance(value, list) else value


def _canonical_digest(value: Json) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


# --- writing --------------------------------------------------------------------------------------------------


def write_arrays(
    path: StrPath,
    arrays: Mapping[str, Array],
    attributes: Mapping[str, Any],
    *,
    kind: str,
    version: int,
    overwrite: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
    name: str | None = None,
) -> None:
    """Store named arrays and attributes as one Zarr group that appears complete or not at all.

    Parameters
    ----------
    path
        The group's folder, for example ``model.zarr``.
    arrays
        Real numeric arrays of any shape. A name may contain ``/``: nested groups.
    attributes
        JSON values; NumPy scalars are converted.
    kind, version
        What is stored (``"pca-model"``) and the version of its layout; checked by ``read_arrays``.
    overwrite
        Whether an existing store is replaced.
    chunk_bytes
        Bytes of a chunk, at most: about three of them are in memory beside the arrays.
    name
        What the store is called in failpoints.

    Raises
    ------
    UsageError
        A name, dtype or attribute that cannot be stored.
    OutputError
        The target exists or cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "m.zarr"
    >>> write_arrays(path, {"mean": np.zeros(3)}, {"k": 2}, kind="demo", version=1)
    >>> read_arrays(path, kind="demo", max_version=1)
    ({'mean': array([0., 0., 0.])}, {'k': 2}, 1)
    """
    _check_names(arrays)
    native = {name: _native(arrays[name], name) for name in sorted(arrays)}
    header = _header(native, to_json(attributes), kind, version)
    with staged(path, overwrite, name=name) as partial:
        try:
            _write_group(partial, native, header, chunk_bytes)
        except OSError as error:
            raise output_error(error, path) from error


def _check_names(names: Mapping[str, Any]) -> None:
    for name in names:
        if not _is_valid_name(name):
            raise UsageError(f"{name!r} is no name for a stored array: use letters, digits and ._+- , with / between nested groups")
        nested = [parent for parent in _parents(name) if parent in names]
        if nested:
            raise UsageError(f"{nested[0]!r} cannot be an array and hold the array {name!r} too: rename one of them")


def _is_valid_name(name: str) -> bool:
    parts = name.split("/")
    return bool(_NAME.fullmatch(name)) and not any(set(part) == {"."} or part.startswith("__") or part == "zarr.json" for part in parts)


def _parents(name: str) -> list[str]:
    """Return the groups above an array.

    >>> _parents("a/b/c")
    ['a', 'a/b']
    """
    parts = name.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _native(array: Array, name: str) -> Array:
    """Return the array in C order and native bytes (a copy only if needed)."""
    if np.asarray(array).dtype.newbyteorder("=").name not in _DTYPES:
        raise UsageError(f"the array {name!r} has dtype {np.asarray(array).dtype}, which cannot be stored: use one of {', '.join(_DTYPES)}")
    return np.asarray(array, dtype=np.asarray(array).dtype.newbyteorder("="), order="C")


def _sha256(array: Array) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def _header(arrays: Mapping[str, Array], attributes: Json, kind: str, version: int) -> dict[str, Json]:
    declared = {name: {"shape": list(a.shape), "dtype": a.dtype.name, "sha256": _sha256(a)} for name, a in arrays.items()}
    ours: dict[str, Json] = {"kind": kind, "version": int(version), "arrays": declared}
    return {"streampca": ours | {"sha256": _canonical_digest([ours, attributes])}, "attributes": attributes}


def _write_group(folder: Path, arrays: Mapping[str, Array], header: dict[str, Json], chunk_bytes: int) -> None:
    import zarr

    zarr.create_group(folder, zarr_format=3, attributes=header)
    for name, array in arrays.items():
        _write_array(folder, name, array, chunk_bytes, compress=True)
        if array.nbytes > _plausible_bytes(_stored_bytes(folder / name)):
            _write_array(folder, name, array, chunk_bytes, compress=False)
    for group in sorted({group for name in arrays for group in _parents(name)}):
        if not (folder / group / "zarr.json").exists():
            zarr.create_group(folder, path=group, zarr_format=3)


def _write_array(folder: Path, name: str, array: Array, chunk_bytes: int, compress: bool) -> None:
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    chunks = chunk_shape(array.shape, array.dtype.itemsize, chunk_bytes)
    stored = zarr.create_array(
        folder,
        name=name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=chunks,
        filters=None,
        compressors=[ZstdCodec(level=ZSTD_LEVEL), Crc32cCodec()] if compress else [Crc32cCodec()],
        fill_value=0,
        zarr_format=3,
        overwrite=not compress,
        config={"write_empty_chunks": True},  # a missing chunk is always an error
    )
    for _, where in _chunks(array.shape, chunks):  # one by one, so that at most two chunks are in memory beside the array
        stored[where] = array[where]


def chunk_shape(shape: tuple[int, ...], itemsize: int, limit: int = CHUNK_BYTES) -> tuple[int, ...]:
    """Return the largest chunk of whole trailing axes that is at most ``limit`` bytes.

    >>> chunk_shape((10_000, 4_000), 8, limit=2**24)
    (524, 4000)
    >>> chunk_shape((0, 3), 8)
    (1, 3)
    """
    room = max(limit // itemsize, 1)
    chunks: list[int] = []
    for length in reversed(shape):
        chunks.append(max(min(length, room), 1))
        room = max(room // chunks[-1], 1)
    return tuple(reversed(chunks))


def _chunks(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yield the key of each chunk and the part of the array that it holds.

    >>> list(_chunks((3,), (2,)))
    [('c/0', (slice(0, 2, None),)), ('c/1', (slice(2, 4, None),))]
    """
    grid = [range(-(-length // chunk)) for length, chunk in zip(shape, chunks, strict=True)]
    for index in itertools.product(*grid):
        yield "/".join(["c", *map(str, index)]), tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))


# --- reading --------------------------------------------------------------------------------------------------


def read_arrays(path: StrPath, *, kind: str, max_version: int) -> tuple[dict[str, Array], dict[str, Any], int]:
    """Return the arrays, attributes and layout version that ``write_arrays`` stored, every checksum verified.

    Parameters
    ----------
    path
        The group's folder.
    kind
        What must be stored there.
    max_version
        The newest layout that the caller understands.

    Raises
    ------
    SourceNotFoundError
        There is nothing at ``path``.
    DataError
        It is not a store of this kind, or a newer version of streampca wrote it.
    CorruptDataError
        Something is missing, changed or implausible.
    """
    attributes = _load_header(path)
    ours = attributes["streampca"]
    _check_kind(path, ours, kind, max_version)
    _check_header_digest(path, ours, attributes.get("attributes"))
    declared = _declared_arrays(path, ours)
    _check_nodes(Path(path), declared)
    layouts = {name: _check_array(Path(path), name, shape, dtype) for name, (shape, dtype, _) in declared.items()}
    arrays = {name: _read_array(Path(path), name, *declared[name], layouts[name]) for name in declared}
    return arrays, _user_attributes(path, attributes), ours["version"]


def read_attributes(path: StrPath, kind: str | None = None) -> dict[str, Any]:
    """Return the attributes of a store without reading its arrays.

    The keys ``kind``, ``version`` and ``arrays`` (shape and dtype of each) come beside ``attributes``.
    """
    header = _load_header(path)
    ours = header["streampca"]
    _check_kind(path, ours, kind, None)
    arrays = {name: {"shape": shape, "dtype": dtype.name} for name, (shape, dtype, _) in _declared_arrays(path, ours).items()}
    return {"kind": ours["kind"], "version": ours["version"], "arrays": arrays, "attributes": _user_attributes(path, header)}


def stored_kind(path: StrPath) -> str | None:
    """Return what is stored at ``path``, or None if it is not one of ours.

    >>> stored_kind("/tmp") is None
    True
    """
    try:
        kind = _load_header(path)["streampca"].get("kind")
    except DataError:
        return None
    return kind if isinstance(kind, str) else None


def _load_header(path: StrPath) -> dict[str, Json]:
    """Return the attributes of the root group if they are ours."""
    where = os.fspath(path)
    if not Path(path).exists():
        raise SourceNotFoundError(f"there is no file or folder {where}")
    metadata = _load_json(Path(path) / "zarr.json") if (Path(path) / "zarr.json").is_file() else {}
    if metadata.get("zarr_format") != 3 or metadata.get("node_type") != "group":
        raise DataError(f"{where} is not a Zarr v3 group: give a folder that streampca wrote")
    attributes = metadata.get("attributes")
    if not isinstance(attributes, dict) or not isinstance(attributes.get("streampca"), dict):
        raise DataError(f"{where} is a Zarr group, but not one that streampca wrote")
    return attributes


def _load_json(file: Path) -> dict[str, Json]:
    try:
        if file.stat().st_size > _MAX_METADATA:
            raise CorruptDataError(
                f"{file} has {format_bytes(file.stat().st_size)}, more than the {format_bytes(_MAX_METADATA)} of any metadata"
            )
        value = json.loads(file.read_bytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise CorruptDataError(f"{file} is not readable metadata: {error}") from error
    if not isinstance(value, dict):
        raise CorruptDataError(f"{file} is not readable metadata: it holds a {type(value).__name__}")
    return value


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


def _check_kind(path: StrPath, ours: dict[str, Json], kind: str | None, max_version: int | None) -> None:
    where, found, version = os.fspath(path), ours.get("kind"), ours.get("version")
    if not isinstance(found, str) or type(version) is not int or version < 0:
        raise CorruptDataError(f"{where} does not say what it is (kind {found!r}, version {version!r})")
    if kind is not None and found != kind:
        raise DataError(f"{where} holds a {found!r}, but a {kind!r} is needed here")
    if max_version is not None and version > max_version:
        raise DataError(
            f"{where} has layout version {version} of {found!r}, and this streampca knows up to {max_version}: update streampca"
        )


def _check_header_digest(path: StrPath, ours: dict[str, Json], attributes: Json) -> None:
    try:
        found = _canonical_digest([{key: item for key, item in ours.items() if key != "sha256"}, attributes])
    except (ValueError, RecursionError):  # 1e999 reads as infinity
        found = ""
    if ours.get("sha256") != found:
        raise CorruptDataError(f"{os.fspath(path)}: the attributes fail their checksum; restore the file from a copy or make it again")


def _user_attributes(path: StrPath, header: dict[str, Json]) -> dict[str, Any]:
    try:
        attributes = from_json(header.get("attributes"))
    except (KeyError, TypeError, RecursionError) as error:
        raise CorruptDataError(f"{os.fspath(path)} has attributes that streampca did not write: {error!r}") from error
    if not isinstance(attributes, dict):
        raise CorruptDataError(f"{os.fspath(path)} has no attributes")
    return attributes


_Declared = dict[str, tuple[tuple[int, ...], np.dtype[Any], str]]


def _declared_arrays(path: StrPath, ours: dict[str, Json]) -> _Declared:
    """Return shape, dtype and checksum of each declared array, checked to be sane."""
    entries = ours.get("arrays")
    if not isinstance(entries, dict):
        raise CorruptDataError(f"{os.fspath(path)} declares no arrays")
    return {name: _declaration(f"{os.fspath(path)}: the array {name!r}", name, entry) for name, entry in entries.items()}


def _declaration(where: str, name: str, entry: Json) -> tuple[tuple[int, ...], np.dtype[Any], str]:
    if not _is_valid_name(name) or not isinstance(entry, dict):
        raise CorruptDataError(f"{where} is not declared as streampca does")
    shape, dtype, sha256 = entry.get("shape"), entry.get("dtype"), entry.get("sha256")
    if not isinstance(shape, list) or not _is_shape(shape):
        raise CorruptDataError(f"{where} declares the shape {shape!r}")
    if dtype not in _DTYPES:
        raise CorruptDataError(f"{where} declares the dtype {dtype!r}, which is not a plain number")
    if not isinstance(sha256, str):
        raise CorruptDataError(f"{where} has no checksum")
    return tuple(shape), np.dtype(dtype), sha256


def _is_shape(shape: Json, least: int = 0) -> bool:
    return isinstance(shape, list) and len(shape) <= 32 and all(type(n) is int and least <= n < 2**62 for n in shape)


def _check_nodes(folder: Path, declared: _Declared) -> None:
    """Refuse arrays and groups that are not declared, and name those that are missing."""
    expected = set(declared) | {group for name in declared for group in _parents(name)}
    found = {file.parent.relative_to(folder).as_posix() for file in folder.rglob("zarr.json")} - {"."}
    for name in sorted(found - expected):
        raise CorruptDataError(f"{folder} holds {name!r}, which it does not declare")
    for name in sorted(set(declared) - found):
        raise CorruptDataError(f"{folder}: the array {name!r} is missing")


def _check_array(folder: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Check an array's metadata and files against its declaration, before anything is allocated; return its chunk shape."""
    where = f"{folder}: the array {name!r}"
    metadata = _load_json(folder / name / "zarr.json")
    chunks, codecs = _layout(where, metadata)
    found = (metadata.get("zarr_format"), metadata.get("node_type"), metadata.get("shape"), metadata.get("data_type"))
    if found != (3, "array", list(shape), dtype.name):
        raise CorruptDataError(
            f"{where} is declared with shape {shape} and dtype {dtype.name}, but stored as {found[2]!r} and {found[3]!r}"
        )
    if len(chunks) != len(shape) or math.prod(chunks) * dtype.itemsize > _MAX_CHUNK:
        raise CorruptDataError(f"{where} has chunks of {chunks} for the shape {shape}, which streampca does not write")
    _check_plausible(where, folder / name, shape, chunks, dtype)
    chunk_bytes = math.prod(chunks) * dtype.itemsize
    for key, _ in _chunks(shape, chunks):
        _check_chunk(where, folder / name / key, chunk_bytes, "zstd" in codecs)
    return chunks


def _layout(where: str, metadata: dict[str, Json]) -> tuple[tuple[int, ...], list[str]]:
    """Return the chunk shape and the codecs if they are of the kind that we write."""
    try:
        codecs = [codec["name"] for codec in metadata["codecs"]]
        endian = metadata["codecs"][0].get("configuration", {}).get("endian", "little")
        grid, keys = metadata["chunk_grid"], metadata["chunk_key_encoding"]
        chunks = grid["configuration"]["chunk_shape"]
        plain = (grid["name"], keys["name"], keys.get("configuration", {}).get("separator", "/"), endian)
        extras = metadata.get("storage_transformers")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise CorruptDataError(f"{where} has incomplete metadata: {error!r}") from error
    if codecs not in _CODECS:
        raise CorruptDataError(f"{where} uses the codecs {codecs}, but only bytes, zstd and crc32c, in this order, are decoded")
    if plain != ("regular", "default", "/", "little") or extras or not _is_shape(chunks, least=1):
        raise CorruptDataError(f"{where} has a chunk layout that streampca does not write: {plain}, {chunks!r}")
    return tuple(chunks), codecs


def _check_plausible(where: str, folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Compare the declared size with the files on disk, so that a lie about the shape costs nothing."""
    n_bytes = math.prod(shape) * dtype.itemsize
    n_chunks = math.prod(-(-length // chunk) for length, chunk in zip(shape, chunks, strict=True))
    n_files = len(_chunk_files(folder))
    if n_chunks > n_files:
        raise CorruptDataError(
            f"{where} has {n_files} of {n_chunks} chunks: some are missing; restore the file from a copy or make it again"
        )
    stored = _stored_bytes(folder)
    if n_bytes > _plausible_bytes(stored):
        raise CorruptDataError(
            f"{where} declares {format_bytes(n_bytes)} (shape {shape}), which is implausible for the {format_bytes(stored)} stored"
        )


def _plausible_bytes(stored: int) -> int:
    return _MAX_RATIO * stored + MIB


def _chunk_files(folder: Path) -> list[Path]:
    chunks = folder / "c"
    return [chunks] if chunks.is_file() else [file for file in chunks.rglob("*") if file.is_file()]


def _stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in _chunk_files(folder))


def _check_chunk(where: str, file: Path, n_bytes: int, compressed: bool) -> None:
    """Check that a chunk file is there and decodes to the right size: a decompression bomb is never inflated."""
    if not file.is_file():
        raise CorruptDataError(f"{where}: the chunk {file.name} is missing ({file}); restore the file from a copy or make it again")
    with file.open("rb") as stream:
        start = stream.read(18)
    found = _zstd_content_size(start) if compressed else file.stat().st_size - 4
    if found != n_bytes or file.stat().st_size > n_bytes + n_bytes // 128 + 4 * KIB:
        raise CorruptDataError(f"{where}: the chunk {file} is corrupt: it would decode to {found} bytes instead of {n_bytes}")


def _zstd_content_size(start: bytes) -> int | None:
    """Return the decoded size that a Zstandard frame declares (RFC 8878, 3.1.1.1), or None.

    >>> _zstd_content_size(bytes.fromhex("28b52ffd2008"))
    8
    """
    if len(start) < 6 or start[:4] != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = start[4]
    single_segment = bool(descriptor & 0x20)
    offset = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if width == 0 or len(start) < offset + width:
        return None
    return int.from_bytes(start[offset : offset + width], "little") + (256 if width == 2 else 0)


def _read_array(folder: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], sha256: str, chunks: tuple[int, ...]) -> Array:
    import zarr

    where = f"{folder}: the array {name!r}"
    result: Array = np.empty(shape, dtype)
    try:
        stored = zarr.open_array(folder, path=name, mode="r", zarr_format=3)
        for _, part in _chunks(shape, chunks):
            result[part] = stored[part]
    except (ValueError, RuntimeError, TypeError, KeyError, OSError) as error:
        raise CorruptDataError(f"{where} cannot be decoded ({error}); restore the file from a copy or make it again") from error
    if _sha256(result) != sha256:
        raise CorruptDataError(f"{where} fails its checksum; restore the file from a copy or make it again")
    return result
