"""HDF5 chunks as raw bytes: read straight from the file and decoded in the reading thread, without h5py's lock.

h5py decodes under one lock for the whole interpreter, so threads never help there. Whether a dataset can be read this way is
decided once, when it is opened; anything unusual (a filter unknown here, a user block, odd types) is left to h5py.
"""

from __future__ import annotations

import itertools
import math
import os
import weakref
from typing import Any

import h5py
import numpy as np
from h5py import h5t, h5z

from streampca.errors import CorruptDataError
from streampca.sources.base import Array
from streampca.sources.filters import OversizedError, Pipeline, make_pipeline
from streampca.sources.stored import Cells

_LARGEST_INDEX = 2**20  # chunks; 20 bytes of memory each
_UNALLOCATED = -1


class RawDataset:
    """A dataset whose chunks (or contiguous bytes) are read from the file itself."""

    def __init__(self, dataset: h5py.Dataset, path: str, pipeline: Pipeline) -> None:
        self._dataset, self._pipeline = dataset, pipeline
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._stored = np.dtype(dataset.dtype.str)
        self._shape: tuple[int, ...] = dataset.shape
        self._chunks: tuple[int, ...] | None = dataset.chunks
        self._fill_value = dataset.fillvalue
        if self._chunks is None:
            self._offset = int(dataset.id.get_offset())
        else:
            self._grid = tuple(-(-n // c) for n, c in zip(self._shape, self._chunks, strict=True))
            self._index = _chunk_index(dataset, self._grid, self._chunks)

    def fill(self, cells: Cells, out: Array) -> None:
        """Fill ``out`` (native, of the selection's shape) with stored cells."""
        if self._chunks is None:
            self._fill_contiguous(cells, out)
            return
        ranges = [range(cell.start // c, -(-cell.stop // c)) for cell, c in zip(cells, self._chunks, strict=True)]
        for place in itertools.product(*ranges):
            self._fill_from_chunk(place, cells, out)

    def _fill_contiguous(self, cells: Cells, out: Array) -> None:
        """Read whole rows; a byte order other than the machine's is turned in place."""
        row_bytes = self._shape[1] * self._stored.itemsize
        view = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        self._read_exactly(self._offset + cells[0].start * row_bytes, view)
        if not self._stored.isnative:
            view.byteswap(inplace=True)
        if view is not out:
            out[...] = view

    def _fill_from_chunk(self, place: tuple[int, ...], cells: Cells, out: Array) -> None:
        chunks = self._chunks or ()
        starts = [p * c for p, c in zip(place, chunks, strict=True)]
        source, target = [], []
        for start, chunk, n, cell in zip(starts, chunks, self._shape, cells, strict=True):
            low, high = max(start, cell.start), min(start + chunk, n, cell.stop)
            source.append(slice(low - start, high - start))
            target.append(slice(low - cell.start, high - cell.start))
        destination = out[tuple(target)]
        offset, size, mask = self._locate(place)
        if offset == _UNALLOCATED:
            destination[...] = self._fill_value
            return
        direct = destination.shape == chunks and destination.flags.c_contiguous and self._stored.isnative
        chunk_array = destination if direct else np.empty(chunks, self._stored)
        try:
            self._decode(offset, size, mask, chunk_array)
        except OversizedError as error:
            raise self._damaged(starts, error) from error
        except Exception as error:  # whatever a decoder says, HDF5 has the last word
            self._ask_hdf5(starts, cells, source, target, out, error)
            return
        if not direct:
            destination[...] = chunk_array[tuple(source)]

    def _decode(self, offset: int, size: int, mask: int, chunk_array: Array) -> None:
        """Fill a whole chunk from its stored bytes."""
        flat = chunk_array.reshape(-1).view(np.uint8)
        if not self._pipeline.steps and size == len(flat):
            self._read_exactly(offset, flat)
            return
        raw = os.pread(self._file, size, offset)
        if len(raw) != size:
            raise ValueError(f"the file ends after {len(raw)} of its {size} bytes")
        self._pipeline.decode(raw, mask, flat)

    def _ask_hdf5(self, starts: list[int], cells: Cells, source: list[slice], target: list[slice], out: Array, reason: Exception) -> None:
        """Let h5py read one chunk that could not be decoded here (edge chunks may be stored unfiltered)."""
        selection = tuple(slice(start + part.start, start + part.stop) for start, part in zip(starts, source, strict=True))
        try:
            out[tuple(target)] = self._dataset[selection]
        except (OSError, RuntimeError, ValueError) as error:
            raise self._damaged(starts, reason) from error

    def _damaged(self, starts: list[int], reason: Exception) -> CorruptDataError:
        name = f"{self._dataset.file.filename}::{self._dataset.name}"
        where = ", ".join(map(str, starts))
        return CorruptDataError(f"{name}: the chunk at ({where}) cannot be decoded: {reason}. The file is damaged; restore or rewrite it")

    def _locate(self, place: tuple[int, ...]) -> tuple[int, int, int]:
        """Return offset, size and filter mask of a chunk."""
        if self._index is not None:
            position = int(np.ravel_multi_index(place, self._grid))
            offsets, sizes, masks = self._index
            return int(offsets[position]), int(sizes[position]), int(masks[position])
        coordinates = tuple(p * c for p, c in zip(place, self._chunks or (), strict=True))
        info = self._dataset.id.get_chunk_info_by_coord(coordinates)
        return (_UNALLOCATED, 0, 0) if info.byte_offset is None else (int(info.byte_offset), int(info.size), int(info.filter_mask))

    def _read_exactly(self, offset: int, out: Array) -> None:
        view = out.reshape(-1).view(np.uint8).data
        while len(view):
            done = os.preadv(self._file, [view], offset)
            if done == 0:
                raise ValueError(f"the file ends {len(view)} bytes too early")
            view, offset = view[done:], offset + done


def open_raw(dataset: h5py.Dataset, path: str, filters: list[Any]) -> tuple[RawDataset | None, str]:
    """Return a raw reader of a dataset, and its description; or None, and why h5py must read it."""
    if dataset.is_virtual or dataset.ndim != 2:
        return None, "h5py: a virtual dataset"
    if dataset.file.userblock_size or dataset.file.driver != "sec2":
        return None, "h5py: the file has a user block or an unusual driver"
    if not _plain_type(dataset):
        return None, "h5py: the stored type has no equal in NumPy"
    if dataset.chunks is None:
        if dataset.id.get_offset() is None:
            return None, "h5py: no storage is allocated, or it is compact"
        return RawDataset(dataset, path, Pipeline(())), "direct: contiguous bytes"
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    pipeline = make_pipeline([(code, options) for code, _, options, _ in filters], chunk_bytes, h5z.__file__)
    if pipeline is None:
        return None, "h5py: a filter that is not decoded outside HDF5"
    return RawDataset(dataset, path, pipeline), "direct: raw chunks, " + (" + ".join(pipeline.names) or "no filter")


def _plain_type(dataset: h5py.Dataset) -> bool:
    """Return whether the stored bytes are those of the NumPy dtype (HDF5 also knows types with odd bits)."""
    stored = dataset.id.get_type()
    if dataset.dtype == np.bool_:
        return bool(stored.get_size() == 1)
    return bool(dataset.dtype.itemsize <= 8 and stored == h5t.py_create(dataset.dtype))


def _chunk_index(dataset: h5py.Dataset, grid: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[Array, Array, Array] | None:
    """Return offset, size and filter mask of every chunk, or None if there are too many to keep."""
    count = math.prod(grid)
    if count > _LARGEST_INDEX:
        return None
    offsets, sizes, masks = np.full(count, _UNALLOCATED, np.int64), np.zeros(count, np.int64), np.zeros(count, np.uint32)

    def note(info: Any) -> None:
        place = [start // chunk for start, chunk in zip(info.chunk_offset, chunks, strict=True)]
        if any(p >= n for p, n in zip(place, grid, strict=True)):
            return  # left over from when the dataset was larger
        position = place[0] * grid[1] + place[1]
        offsets[position], sizes[position], masks[position] = info.byte_offset, info.size, info.filter_mask

    dataset.id.chunk_iter(note)
    return offsets, sizes, masks
