"""HDF5 chunks as raw bytes: read straight from the file and decoded in the reading thread, without h5py's lock.

h5py decodes under one lock for the whole interpreter, so threads never help there. Whether a dataset can be read this way is
decided once, when it is opened; anything unusual (a filter unknown here, a user block, odd types) is left to h5py.
"""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from typing import Any

import h5py
import numpy as np
from h5py import h5t, h5z
from h5py._hl.base import phil  # h5py's lock

from streampca.errors import ChangedDataError
from streampca.sources.base import Array
from streampca.sources.filters import Bytes, Pipeline, c_function, make_pipeline
from streampca.sources.paging import Paging
from streampca.sources.raw_chunks import Place, RawChunks, read_exactly
from streampca.sources.stored import Cells

_LARGEST_INDEX = 2**20  # chunks; 20 bytes of memory each
_UNALLOCATED = -1
_NO_FILTERS = -1  # a mask with every bit set
_PARTIAL_CHUNKS_UNFILTERED = 2  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
_MOST_GROWTH, _MOST_HEADERS = 4, 65536  # padding of b2nd's blocks; a stored chunk beyond that is not believed


class RawDataset(RawChunks):
    """A dataset whose chunks (or contiguous bytes) are read from the file itself."""

    def __init__(self, dataset: h5py.Dataset, path: str, pipeline: Pipeline, whole_edges: bool = True) -> None:
        super().__init__(dataset.shape, dataset.chunks or (), np.dtype(dataset.dtype.str), dataset.fillvalue)
        self._dataset, self._pipeline, self._whole_edges = dataset, pipeline, whole_edges
        self._file = _open_same(dataset.file, path)
        weakref.finalize(self, os.close, self._file)
        self._file_bytes = os.fstat(self._file).st_size
        self._paging = Paging(self._file)
        if self._chunks:
            self._grid = tuple(-(-n // c) for n, c in zip(self._shape, self._chunks, strict=True))
            self._index = _chunk_index(dataset, self._grid, self._chunks)
        else:
            self._offset = int(dataset.id.get_offset())

    def fill(self, cells: Cells, out: Array) -> None:
        """Fill ``out`` (native, of the selection's shape) with stored cells."""
        if self._chunks:
            super().fill(cells, out)
        else:
            self._fill_contiguous(cells, out)
        self._paging.turn(*self._stored_range(cells))

    def _fill_contiguous(self, cells: Cells, out: Array) -> None:
        """Read whole rows; a byte order other than the machine's is turned in place."""
        row_bytes = self._shape[1] * self._stored.itemsize
        view = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        read_exactly(self._file, self._offset + cells[0].start * row_bytes, view)
        if not self._stored.isnative:
            view.byteswap(inplace=True)
        if view is not out:
            out[...] = view

    def _stored_range(self, cells: Cells) -> tuple[int, int]:
        """Return where in the file the cells lie, if they lie together; else an empty range."""
        if not self._chunks:
            row_bytes = self._shape[1] * self._stored.itemsize
            return self._offset + cells[0].start * row_bytes, self._offset + cells[0].stop * row_bytes
        spans = [span for span in map(self._look_up, self._places(cells)) if span[0] != _UNALLOCATED]
        start, stop = min((span[0] for span in spans), default=0), max((span[0] + span[1] for span in spans), default=0)
        return (start, stop) if stop - start <= 2 * sum(span[1] for span in spans) else (0, 0)

    def _load(self, place: Place, flat: Bytes) -> bool:
        offset, size, mask = self._locate(place)
        if offset == _UNALLOCATED:
            return False
        self._decode(offset, size, mask, flat)
        return True

    def _decode(self, offset: int, size: int, mask: int, flat: Bytes) -> None:
        """Fill a whole chunk from its stored bytes."""
        if size > self._file_bytes - offset:
            raise ValueError(f"its {size} bytes at offset {offset} go past the end of the file ({self._file_bytes} bytes)")
        if size > _MOST_GROWTH * len(flat) + _MOST_HEADERS:
            raise ValueError(f"it is stored in {size} bytes, but has only {len(flat)}")
        if not self._pipeline.steps and size == len(flat):
            read_exactly(self._file, offset, flat)
        else:
            self._pipeline.decode(os.pread(self._file, size, offset), mask, flat)

    def _locate(self, place: Place) -> tuple[int, int, int]:
        """Return offset, size and filter mask of a chunk."""
        offset, size, mask = self._look_up(place)
        whole = self._whole_edges or all((p + 1) * c <= n for p, c, n in zip(place, self._chunks, self._shape, strict=True))
        return offset, size, mask if whole else _NO_FILTERS

    def _look_up(self, place: Place) -> tuple[int, int, int]:
        if self._index is not None:
            position = int(np.ravel_multi_index(place, self._grid))
            offsets, sizes, masks = self._index
            return int(offsets[position]), int(sizes[position]), int(masks[position])
        coordinates = tuple(p * c for p, c in zip(place, self._chunks, strict=True))
        info = self._dataset.id.get_chunk_info_by_coord(coordinates)
        return (_UNALLOCATED, 0, 0) if info.byte_offset is None else (int(info.byte_offset), int(info.size), int(info.filter_mask))


def _open_same(file: h5py.File, path: str) -> int:
    """Open the file that h5py has open, which may have been replaced in the meantime."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if not os.path.sameopenfile(descriptor, file.id.get_vfd_handle()):
        os.close(descriptor)
        raise ChangedDataError(f"{path} was replaced while it was being opened: run again when nothing writes to it")
    return descriptor


def open_raw(dataset: h5py.Dataset, path: str, filters: list[Any]) -> tuple[RawDataset | None, str]:
    """Return a raw reader of a dataset, and its description; or None, and why h5py must read it."""
    pipeline, description = raw_pipeline(dataset, filters)
    if pipeline is None:
        return None, description
    whole_edges = not pipeline.steps or bool(_filters_edges(dataset))
    return RawDataset(dataset, path, pipeline, whole_edges), description


def raw_pipeline(dataset: h5py.Dataset, filters: list[Any]) -> tuple[Pipeline | None, str]:
    """Return how to decode the raw chunks of a dataset, in words too; or None, and why h5py must read it."""
    if dataset.is_virtual or dataset.ndim != 2:
        return None, "h5py: a virtual dataset" if dataset.is_virtual else "h5py: one dimension"
    if dataset.file.userblock_size or dataset.file.driver != "sec2":
        return None, "h5py: the file has a user block or an unusual driver"
    if not _plain_type(dataset):
        return None, "h5py: the stored type has no equal in NumPy"
    if dataset.chunks is None:
        if dataset.id.get_offset() is None:
            return None, "h5py: no storage is allocated, or it is compact"
        return Pipeline(()), "direct: contiguous bytes"
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    pipeline = make_pipeline([(code, options) for code, _, options, _ in filters], chunk_bytes, h5z.__file__)
    if pipeline is None or (filters and _filters_edges(dataset) is None):
        return None, "h5py: a filter that is not decoded outside HDF5"
    return pipeline, "direct: raw chunks, " + (" + ".join(pipeline.names) or "no filter")


def _filters_edges(dataset: h5py.Dataset) -> bool | None:
    """Return whether chunks at the edges pass the filters too (H5Pset_chunk_opts), or None if HDF5 does not tell."""
    get_options = c_function(h5z.__file__, "H5Pget_chunk_opts", ctypes.c_int, ctypes.c_int64, ctypes.POINTER(ctypes.c_uint))
    if get_options is None:
        return None
    options, properties = ctypes.c_uint(0), dataset.id.get_create_plist()  # closed when the last reference goes
    with phil:
        failed = get_options(properties.id, ctypes.byref(options)) < 0
    return None if failed else not options.value & _PARTIAL_CHUNKS_UNFILTERED


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
