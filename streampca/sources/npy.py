"""NumPy's own ``.npy`` files, in C or Fortran order.

Rows are read with ``pread`` straight into the block, never mapped: a map of a huge file counts as resident
memory while it is touched, and the process is killed (SIGBUS) if the file shrinks under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy_format

from streampca.errors import CorruptDataError, DataError
from streampca.sources import files
from streampca.sources.base import Array, SourceInfo, digest
from streampca.sources.paging import Paging
from streampca.sources.raw_chunks import read_exactly
from streampca.sources.stored import Cells, StoredSource, Table, stored_table

Header = tuple[tuple[int, ...], bool, np.dtype[Any], int]  # shape, Fortran order, dtype, offset of the data


@dataclass(frozen=True)
class NpySource(StoredSource):
    """The rows of a ``.npy`` file. A file in Fortran order is a C-ordered table with its axes swapped."""

    path: str
    offset: int

    def current_fingerprint(self) -> str:
        """Return the fingerprint of the file as it is now."""
        return _fingerprint(self.path, self.table)

    def details(self) -> dict[str, Any]:
        """Return storage facts."""
        return {"format": "npy", "layout": "contiguous", "chunks": None, "filters": [], "checksum": "unprotected", "compression_ratio": 1.0}

    def _describe_as(self, table: Table) -> SourceInfo:
        return _describe(self.path, table, self.info.bytes_stored)

    def _fill(self, cells: Cells, out: Array) -> None:
        row_bytes = self.table.shape[1] * out.itemsize
        rows, columns = cells
        whole = columns.stop - columns.start == self.table.shape[1]
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                start = self.offset + rows.start * row_bytes
                if whole:
                    read_exactly(file.fileno(), start, out)
                    Paging(file.fileno()).turn(start, start + out.nbytes)
                else:
                    for index, row in enumerate(range(rows.start, rows.stop)):
                        read_exactly(file.fileno(), self.offset + row * row_bytes + columns.start * out.itemsize, out[index])
        except FileNotFoundError:
            raise files.not_found(self.path) from None
        except (OSError, ValueError) as error:
            raise self.undecodable(cells, error) from error
        if not self.table.dtype.isnative:
            out.byteswap(inplace=True)


def open_npy(path: str, dataset: str | None = None, samples_axis: int = 0) -> NpySource:
    """Open a ``.npy`` file: parse its header and check its size."""
    if dataset:
        raise DataError(f"{path} is a .npy file with one array: there is no dataset {dataset!r} in it")
    size = files.stat(path).st_size
    with Path(path).open("rb") as file:
        shape, fortran, dtype, offset = _header(file, path, size)
    stored_table(shape, dtype, None, samples_axis, path)  # refuse in the user's orientation
    needed = offset + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise CorruptDataError(f"{path} is truncated: it has {size} bytes, but shape {shape} of {dtype} needs {needed}")
    swapped = (shape[::-1], 1 - samples_axis) if fortran else (shape, samples_axis)
    table = stored_table(swapped[0], dtype, None, swapped[1], path)
    return NpySource(table=table, pinned=_describe(path, table, size), path=path, offset=offset)


def _header(file: BinaryIO, path: str, size: int) -> Header:
    try:
        version = npy_format.read_magic(file)
        if version == (3, 0):  # written only for records with names outside Latin-1
            raise DataError(f"{path} holds records (.npy format 3.0), not real numbers")
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except DataError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise CorruptDataError(f"{path} ({size} bytes) is not a .npy file or its header is damaged: {error}") from error
    if dtype.hasobject:
        raise DataError(f"{path} holds pickled Python objects, which are never loaded: save it as numbers")
    return shape, fortran, dtype, file.tell()


def _describe(path: str, table: Table, size: int) -> SourceInfo:
    return SourceInfo(
        n_rows=table.n_rows,
        n_features=table.n_features,
        dtype=table.native,
        segments=table.segments(),
        bytes_stored=size,
        fingerprint=_fingerprint(path, table),
        prefetches=table.samples_axis == 0,
        read_scratch=table.staging_bytes if table.samples_axis else 0,
        description=path,
    )


def _fingerprint(path: str, table: Table) -> str:
    status = files.stat(path)
    return digest("npy", Path(path).name, status.st_size, status.st_mtime_ns, table.shape, table.dtype.str, table.samples_axis)
