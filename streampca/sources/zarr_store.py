"""Zarr arrays, versions 2 and 3: folders, zip files and fsspec URLs. The only source that imports zarr.

In a sharded array the unit of reading is the inner chunk, which zarr fetches from its shard by byte range; only
where a whole shard is small (4 MiB decoded or less) is the shard the unit, so that its index is not read again and again.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import zarr
from zarr.buffer.cpu import NDBuffer
from zarr.storage import FsspecStore, LocalStore, ZipStore

from streampca.errors import ChangedDataError, CorruptDataError, DataError, StreamPCAError
from streampca.memory import MIB
from streampca.sources import files
from streampca.sources.base import Array, SourceInfo, digest
from streampca.sources.choose import Candidate, no_such_dataset, only_table
from streampca.sources.handles import HandleCache
from streampca.sources.names import NAME_KEYS, as_names, sibling_keys
from streampca.sources.raw_chunks import RawChunks
from streampca.sources.stored import STAGING, Cells, StoredSource, Table, not_applied, stored_table
from streampca.sources.zarr_raw import open_raw

SMALL_SHARD = 4 * MIB
_MOST_LOOKED_AT = 4096  # files or folders, of an array that may have millions
_CHECKED = ("crc32", "adler32", "fletcher32", "gzip", "zlib", "checksum")


class Handle(NamedTuple):
    """An open array and the store it reads from."""

    store: Any
    array: Any
    raw: RawChunks | None = None  # reads without zarr's event loop, where it can
    reader: str = ""  # which of the two, and why


_HANDLES: HandleCache[Handle] = HandleCache()


@dataclass(frozen=True)
class ZarrSource(StoredSource):
    """The rows of one Zarr array. ``uri`` is the store: a folder, a zip file or a URL; ``key`` the array in it."""

    uri: str
    key: str

    def current_fingerprint(self) -> str:
        """Return the fingerprint of the array as it is now."""
        handle = _open_array(self.uri, self.key)
        return _fingerprint(handle.array, self.uri, self.key, self.table.samples_axis)

    def missing_chunks(self) -> int:
        """Return how many chunks (shards, if the array is sharded) are not stored, and so read as the fill value."""
        return _missing_chunks(self._handle().array)

    def details(self) -> dict[str, Any]:
        """Return storage facts."""
        handle = self._handle()
        return {**_details(handle.array, self.info, self.key), "reader": handle.reader}

    def release(self) -> None:
        """Close the store in this process."""
        _HANDLES.drop((self.uri, self.key))

    def _row_tiles(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        return self.table.tiles(start, stop)  # zarr decodes many chunks at once: tiles bound how many

    def _describe_as(self, table: Table) -> SourceInfo:
        return _describe(self._handle(), self.uri, self.key, table, _at(self.uri, self.key))

    def _fill(self, cells: Cells, out: Array) -> None:
        handle = self._handle()
        try:
            stored, target = self.table.in_storage(cells, out)
            if handle.raw is not None:
                handle.raw.fill(stored, target)
            else:
                handle.array.get_basic_selection(stored, out=NDBuffer.from_numpy_array(target))
        except (MemoryError, StreamPCAError):
            raise
        except Exception as error:  # each codec has its own
            raise self.undecodable(cells, error) from error

    def _handle(self) -> Handle:
        return _HANDLES.get((self.uri, self.key), _stamp(self.uri, self.key), self._open)

    def _open(self) -> Handle:
        handle = _open_array(self.uri, self.key)
        shape = tuple(handle.array.shape)
        if not self.table.fits(shape, handle.array.dtype):
            raise ChangedDataError(
                f"{self.info.description} changed: it was {self.table.shape} {self.table.dtype} when it was opened, "
                f"now it is {shape} {handle.array.dtype}: run again when nothing writes to it"
            )
        raw, reader = open_raw(handle.array, _local_folder(self.uri, self.key))
        return handle._replace(raw=raw, reader=reader)


def open_zarr(uri: str, dataset: str | None = None, samples_axis: int = 0) -> ZarrSource:
    """Open an array of a Zarr store, the only 2-D numeric one if none is named, and pin what is there."""
    key = _find(uri, dataset)
    handle = _open_array(uri, key)
    where = f"{uri}::{key}" if key else uri
    array = handle.array
    table = stored_table(array.shape, array.dtype, _unit(array), samples_axis, where)
    return ZarrSource(table=table, pinned=_describe(handle, uri, key, table, where), uri=uri, key=key)


# ------------------------------------------------------------------------------------------ opening, finding


def _open_store(uri: str) -> Any:
    if "://" in uri:
        return FsspecStore.from_url(uri, read_only=True)
    files.stat(uri)
    return ZipStore(uri, mode="r") if uri.lower().endswith(".zip") else LocalStore(uri, read_only=True)


def _open_node(uri: str, key: str) -> tuple[Any, Any]:
    """Return the store and the array or group at ``key``, or None for a node that is not there."""
    try:
        store = _open_store(uri)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unstable data types, stray files: not ours to tell
            return store, zarr.open(store, path=key, mode="r")
    except StreamPCAError:
        raise
    except FileNotFoundError:
        return None, None
    except Exception as error:  # JSON, zip, codec and network errors
        raise CorruptDataError(f"{_at(uri, key)} cannot be opened as Zarr ({type(error).__name__}: {error})") from error


def _open_array(uri: str, key: str) -> Handle:
    store, array = _open_node(uri, key)
    if not isinstance(array, zarr.Array):
        raise ChangedDataError(f"{_at(uri, key)} is no longer a Zarr array")
    return Handle(store, array)


def _find(uri: str, dataset: str | None) -> str:
    """Return the key of the array that is meant."""
    _, root = _open_node(uri, "")
    if root is None:
        raise DataError(f"{uri} is not a Zarr store: there is no zarr.json, .zarray or .zgroup in it")
    key = (dataset or "").strip("/")
    if isinstance(root, zarr.Array):
        if key:
            raise no_such_dataset(key, [], f"{uri}, which is a single array")
        return ""
    if dataset is None and root.attrs.get("encoding-type") == "anndata":
        key = "X"
    node = _member(root, key)
    if node is None:
        raise no_such_dataset(key, _candidates(uri, root, ""), uri)
    if isinstance(node, zarr.Array):
        return key
    _refuse_sparse(node, _at(uri, key))
    return only_table(_candidates(uri, node, key), _at(uri, key))


def _member(root: Any, key: str) -> Any | None:
    if not key:
        return root
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return root[key]
        except (KeyError, ValueError):  # ValueError: "..", or broken metadata
            return None


def _candidates(uri: str, group: Any, key: str) -> list[Candidate]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            members = sorted(group.members(max_depth=None), key=lambda member: str(member[0]))
    except Exception as error:
        raise CorruptDataError(f"{_at(uri, key)} has broken metadata ({type(error).__name__}: {error})") from error
    arrays = [(f"{key}/{name}".strip("/"), node) for name, node in members if isinstance(node, zarr.Array)]
    return [Candidate(name, node.shape, str(node.dtype), node.dtype.kind in "biuf") for name, node in arrays]


def _refuse_sparse(group: Any, where: str) -> None:
    encoding = str(group.attrs.get("encoding-type", ""))
    if encoding[:3] in ("csr", "csc"):
        raise DataError(f"{where} is a sparse matrix ({encoding}), but only dense tables can be read: store it as a dense array")


def _at(uri: str, key: str) -> str:
    return f"{uri}::{key}" if key else uri


# ------------------------------------------------------------------------------------------ facts


def _unit(array: Any) -> tuple[int, ...]:
    """Return the chunk that reads are aligned to: the inner chunk, or the shard if it is small."""
    shards = array.shards
    if shards is not None and math.prod(shards) * array.dtype.itemsize <= SMALL_SHARD:
        return tuple(shards)
    return tuple(array.chunks)


def _describe(handle: Handle, uri: str, key: str, table: Table, where: str) -> SourceInfo:
    at_once = int(zarr.config.get("async.concurrency")) * table.chunk_bytes
    in_flight = max(table.chunk_bytes, min(STAGING, at_once))
    staging = table.staging_bytes if table.samples_axis else 0
    direct = open_raw(handle.array, _local_folder(uri, key))[0] is not None  # else, measured: what zarr's threads keep, encoded and decoded
    return SourceInfo(
        n_rows=table.n_rows,
        n_features=table.n_features,
        dtype=table.native,
        segments=table.segments(),
        bytes_stored=_bytes_stored(handle.array, uri, key),
        fingerprint=_fingerprint(handle.array, uri, key, table.samples_axis),
        feature_names=_feature_names(handle, uri, key, table),
        prefetches=direct,
        read_scratch=(3 * table.chunk_bytes if direct else 5 * in_flight) + staging,
        chunk_features=table.chunk_features,
        description=where,
    )


def _local_folder(uri: str, key: str) -> Path | None:
    """Return the array's folder if the store is one, else None."""
    return None if "://" in uri or uri.lower().endswith(".zip") else Path(uri, key)


def _bytes_stored(array: Any, uri: str, key: str) -> int:
    """Return the bytes on disk, estimated from the first 4096 files where there are more.

    Of a zip file or a remote store, the decoded bytes: a bound that costs nothing.
    """
    folder = _local_folder(uri, key)
    if folder is None:
        return int(array.nbytes)
    sizes = list(islice(_file_sizes(folder), _MOST_LOOKED_AT))
    n_objects: int = math.prod(-(-n // chunk) for n, chunk in zip(array.shape, array.shards or array.chunks, strict=True))
    return sum(sizes) if len(sizes) < _MOST_LOOKED_AT else sum(sizes) * max(n_objects, len(sizes)) // len(sizes)


def _file_sizes(folder: Path) -> Iterator[int]:
    for entry in _entries(folder):
        if entry.is_dir():
            yield from _file_sizes(Path(entry.path))
        else:
            yield entry.stat().st_size


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _stamp(uri: str, key: str) -> object:
    """Return what differs when the array was replaced."""
    if "://" in uri:
        return None
    folder = _local_folder(uri, key)
    if folder is None:
        return files.stamp(uri)
    documents = [folder / name for name in ("zarr.json", ".zarray")]
    return tuple(files.stamp(str(document)) for document in documents if document.exists())


def _fingerprint(array: Any, uri: str, key: str, samples_axis: int) -> str:
    document = json.dumps(array.metadata.to_dict(), sort_keys=True, default=str)
    folder = _local_folder(uri, key)
    if "://" in uri:
        times: object = None
    else:
        times = files.stamp(uri)[1:] if folder is None else _newest_change(folder)
    return digest("zarr", document, times, key, array.shape, samples_axis)


def _newest_change(folder: Path) -> int:
    """Return the newest time of the array's metadata and of its chunk folders, which change when a chunk is written."""
    newest = [folder.stat().st_mtime_ns]
    newest += [path.stat().st_mtime_ns for path in (folder / "zarr.json", folder / ".zarray") if path.exists()]
    level = [folder]
    for _ in range(2):  # "c/0/0" of version 3: the folders are two levels deep
        entries = islice((entry for parent in level for entry in _entries(parent)), _MOST_LOOKED_AT)
        level = [Path(entry.path) for entry in entries if entry.is_dir()]
        newest += [path.stat().st_mtime_ns for path in level]
    return max(newest)


def _missing_chunks(array: Any) -> int:
    grid = array.shards or array.chunks
    expected: int = math.prod(-(-n // chunk) for n, chunk in zip(array.shape, grid, strict=True))
    inner: int = math.prod(grid) // math.prod(array.chunks)
    return max(expected - int(array.nchunks_initialized // inner), 0)


def _details(array: Any, info: SourceInfo, key: str) -> dict[str, Any]:
    codecs = [_codec(codec) for codec in (*array.filters, *array.compressors)]
    return {
        "format": f"zarr v{array.metadata.zarr_format}",
        "dataset": key,
        "layout": "sharded" if array.shards else "chunked",
        "chunks": array.chunks,
        "shards": array.shards,
        "filters": codecs,
        "checksum": _checksum(codecs),
        "fill_value": array.fill_value.item() if hasattr(array.fill_value, "item") else array.fill_value,
        "compression_ratio": round(info.bytes_decoded / info.bytes_stored, 3) if info.bytes_stored else None,
        "not_applied": not_applied(array.attrs),
    }


def _codec(codec: Any) -> dict[str, Any]:
    """Return name and options of a codec of either version."""
    if hasattr(codec, "to_dict"):
        document = codec.to_dict()
        return {"name": document["name"], "options": dict(document.get("configuration", {}))}
    document = dict(codec.get_config())
    return {"name": document.pop("id"), "options": document}


def _checksum(codecs: list[dict[str, Any]]) -> str:
    """Say which codec would notice a flipped byte."""
    for codec in codecs:
        if codec["options"].get("checksum") is True:
            return f"{codec['name']} with checksum"
        if any(word in codec["name"] for word in _CHECKED):
            return f"{codec['name']} is checked when decoding"
    return "unprotected"


# ------------------------------------------------------------------------------------------ names


def _feature_names(handle: Handle, uri: str, key: str, table: Table) -> tuple[str, ...] | None:
    for values in _name_values(handle, uri, key, table):
        names = as_names(values, table.n_features)
        if names is not None:
            return names
    return None


def _name_values(handle: Handle, uri: str, key: str, table: Table) -> Iterator[Any]:
    """Yield what may be the feature names: attributes, a sibling array, xarray's coordinate, AnnData's index."""
    attributes = handle.array.attrs
    yield from (attributes[name] for name in NAME_KEYS if name in attributes)
    if not key:
        return  # an array at the root of its store has no siblings
    folder, _, name = key.rpartition("/")
    _, root = _open_node(uri, "")
    dimensions = getattr(handle.array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS") or ()
    coordinate = dimensions[1 - table.samples_axis] if len(dimensions) == 2 else None
    for sibling in (*sibling_keys(name), coordinate):
        if sibling and sibling != name:
            yield _strings(_member(root, f"{folder}/{sibling}".strip("/")), table.n_features)
    if key == "X" or key.startswith("layers/"):
        var = _member(root, "var")
        index = var.attrs.get("_index", "_index") if isinstance(var, zarr.Group) else None
        yield _strings(_member(root, f"var/{index}"), table.n_features) if index else None


def _strings(node: Any, length: int) -> Any | None:
    """Return the strings of a 1-D string array of this length, else None."""
    if not isinstance(node, zarr.Array) or node.shape != (length,) or node.dtype.kind not in "SUOT":
        return None
    try:
        return node[:]
    except Exception:  # names that cannot be decoded are no names; the table is judged on its own
        return None
