"""Zarr chunks as raw bytes: read from their files and decoded in the reading thread, without zarr's event loop.

For arrays in a local folder, versions 2 and 3, sharded or not, with the codecs that are common; anything else is left to zarr.
Shapes and codecs come from zarr's own metadata objects; nothing here parses metadata.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streampca.memory import total_memory
from streampca.sources.base import Array
from streampca.sources.codecs import codec_step
from streampca.sources.filters import Bytes, Pipeline, Step
from streampca.sources.paging import fetch, forget
from streampca.sources.raw_chunks import Place, RawChunks, read_exactly
from streampca.sources.stored import Cells

_EMPTY = 2**64 - 1  # offset and size of an inner chunk that was not written
_MOST_INDICES = 64  # shard indices kept
_LARGEST_FILE_FACTOR, _HEADERS = 2, 65536  # no codec here makes data larger than that


class RawFolder(RawChunks):
    """An array whose chunks are files of a folder."""

    def __init__(self, array: Any, folder: Path, pipeline: Pipeline) -> None:
        fill_value = 0 if array.fill_value is None else array.fill_value
        super().__init__(tuple(array.shape), tuple(array.chunks), _stored_dtype(array), fill_value)
        self._folder, self._pipeline, self._metadata = str(folder), pipeline, array.metadata
        self._forget = array.nbytes > total_memory()

    def fill(self, cells: Cells, out: Array) -> None:
        """Fill ``out`` with stored cells, and have the system fetch those after them."""
        super().fill(cells, out)
        following = self._next(cells)
        if following is not None:
            for place in self._places(following):
                self._fetch(place)

    def _fetch(self, place: Place) -> None:
        with _opened(self._path(place)) as file:
            if file is not None:
                fetch(file, 0, 0)

    def _load(self, place: Place, flat: Bytes) -> bool:
        with _opened(self._path(place)) as file:
            if file is None:
                return False
            self._decode(file, 0, os.fstat(file).st_size, flat)
        return True

    def _path(self, place: Place) -> str:
        return f"{self._folder}/{self._metadata.encode_chunk_key(place)}"

    def _decode(self, file: int, offset: int, size: int, flat: Bytes) -> None:
        """Fill a whole chunk from stored bytes."""
        if size > _LARGEST_FILE_FACTOR * len(flat) + _HEADERS:
            raise ValueError(f"it is stored in {size} bytes, but has only {len(flat)}")
        if not self._pipeline.steps and size == len(flat):
            read_exactly(file, offset, flat)
        else:
            raw = os.pread(file, size, offset)
            if len(raw) != size:
                raise ValueError(f"the file ends after {len(raw)} of its {size} bytes")
            self._pipeline.decode(raw, 0, flat)
        if self._forget:
            forget(file, offset, size)


class RawShards(RawFolder):
    """An array whose chunks lie in shards: files that hold many chunks and an index of them."""

    def __init__(self, array: Any, folder: Path, pipeline: Pipeline, index: Pipeline, index_first: bool) -> None:
        super().__init__(array, folder, pipeline)
        self._grid = tuple(shard // chunk for shard, chunk in zip(array.shards, array.chunks, strict=True))
        self._index, self._index_first = index, index_first
        self._index_bytes = 16 * math.prod(self._grid) + sum(step.added or 0 for step in index.steps)
        self._indices: OrderedDict[Place, Array] = OrderedDict()

    def _load(self, place: Place, flat: Bytes) -> bool:
        shard = tuple(p // n for p, n in zip(place, self._grid, strict=True))
        inner = tuple(p % n for p, n in zip(place, self._grid, strict=True))
        with _opened(self._path(shard)) as file:
            if file is None:
                return False
            offset, size = (int(each) for each in self._entries(file, shard)[inner])
            if offset == size == _EMPTY:
                return False
            self._decode(file, offset, size, flat)
        return True

    def _fetch(self, place: Place) -> None:
        shard = tuple(p // n for p, n in zip(place, self._grid, strict=True))
        inner = tuple(p % n for p, n in zip(place, self._grid, strict=True))
        if shard not in self._indices:
            return  # its index would have to be waited for
        with _opened(self._path(shard)) as file:
            offset, size = (int(each) for each in self._indices[shard][inner])
            if file is not None and size != _EMPTY:
                fetch(file, offset, size)

    def _entries(self, file: int, shard: Place) -> Array:
        """Return offset and size of each chunk of a shard, from its index, which is kept for the next chunks."""
        known = self._indices.get(shard)
        if known is not None:
            return known
        start = 0 if self._index_first else os.fstat(file).st_size - self._index_bytes
        if start < 0:
            raise ValueError("the shard is shorter than its index")
        entries = np.empty((*self._grid, 2), np.dtype("<u8"))
        self._index.decode(os.pread(file, self._index_bytes, start), 0, entries.reshape(-1).view(np.uint8))
        self._indices[shard] = entries
        while len(self._indices) > _MOST_INDICES:
            with contextlib.suppress(KeyError):  # another thread was faster
                self._indices.popitem(last=False)
        return entries


def open_raw(array: Any, folder: Path | None) -> tuple[RawChunks | None, str]:
    """Return a raw reader of an array, and its description; or None, and why zarr must read it."""
    if folder is None:
        return None, "zarr: not a local folder"
    codecs = _codecs_version_2(array) if array.metadata.zarr_format == 2 else _codecs_version_3(array.metadata.codecs)
    if codecs is None:
        return None, "zarr: a codec or layout that is not decoded here"
    if array.shards is None:
        pipeline = _pipeline(codecs)
        reader: RawChunks | None = None if pipeline is None else RawFolder(array, folder, pipeline)
    else:
        reader, pipeline = _open_shards(array, folder)
    if reader is None or pipeline is None:
        return None, "zarr: a codec or layout that is not decoded here"
    return reader, "direct: raw chunks, " + (" + ".join(pipeline.names) or "no codec")


def _open_shards(array: Any, folder: Path) -> tuple[RawChunks | None, Pipeline | None]:
    (sharding,) = array.metadata.codecs
    inner, index = _codecs_version_3(sharding.codecs), _codecs_version_3(sharding.index_codecs)
    pipeline, index_pipeline = inner and _pipeline(inner), index and _pipeline(index)
    if not isinstance(pipeline, Pipeline) or not isinstance(index_pipeline, Pipeline):
        return None, None
    little = sharding.index_codecs[0].to_dict().get("configuration", {}).get("endian", "little") == "little"
    if not little or any(step.added is None for step in index_pipeline.steps):  # a compressed index has no known size
        return None, None
    return RawShards(array, folder, pipeline, index_pipeline, sharding.index_location.value == "start"), pipeline


def _codecs_version_2(array: Any) -> list[tuple[str, dict[str, Any]]] | None:
    """Return name and options of each codec, or None if the layout is not plain."""
    if array.metadata.order != "C" or array.metadata.filters:
        return None
    if array.metadata.compressor is None:
        return [("bytes", {})]
    config = dict(array.metadata.compressor.get_config())
    return [("bytes", {}), (config.pop("id"), config)]


def _codecs_version_3(codecs: Any) -> list[tuple[str, dict[str, Any]]] | None:
    documents = [codec.to_dict() for codec in codecs]
    named = [(document["name"], dict(document.get("configuration") or {})) for document in documents]
    plain = named[0][0] == "bytes" or [name for name, _ in named] == ["sharding_indexed"]
    return named if plain else None


def _pipeline(codecs: list[tuple[str, dict[str, Any]]]) -> Pipeline | None:
    steps = [codec_step(name, options) for name, options in codecs[1:]]
    compressors = [step for step in steps if step is not None and step.added is None]
    if None in steps or len(compressors) > 1:
        return None
    return Pipeline(tuple(step for step in steps if isinstance(step, Step)))


def _stored_dtype(array: Any) -> np.dtype[Any]:
    """Return the dtype of the bytes: version 3 keeps the byte order in a codec."""
    dtype: np.dtype[Any] = np.dtype(array.dtype)
    if array.metadata.zarr_format == 2:
        return dtype
    codecs = array.metadata.codecs if array.shards is None else array.metadata.codecs[0].codecs
    endian = codecs[0].to_dict().get("configuration", {}).get("endian", "little")
    return dtype.newbyteorder(">" if endian == "big" else "<")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int | None]:
    """Give an open file, or None if there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        os.close(file)
