"""Tables as they lie in storage: chunked or not, samples along either axis, any byte order.

``Table`` is the arithmetic (which stored cells are rows 10 to 20, in tiles of bounded size) and
``StoredSource`` the source built on it: a reader only fills a given array with given stored cells.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from streampca.blocks import Segment, round_to_chunks
from streampca.errors import CorruptDataError, UsageError
from streampca.memory import MIB
from streampca.sources.base import Array, Source, SourceInfo, numeric_dtype, two_dimensional

STAGING = 8 * MIB
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")
Cells = tuple[slice, ...]  # one for each stored axis


@dataclass(frozen=True)
class Table:
    """A 2-D array in storage. ``shape``, ``dtype`` and ``chunks`` are as stored; ``chunks`` is None if contiguous.

    A 1-D array (weights are often stored so) is a table of one column, with ``ndim`` 1.

    >>> table = Table((6, 100), np.dtype(">f4"), (6, 25), samples_axis=1)
    >>> table.n_rows, table.n_features, table.chunk_rows, table.native
    (100, 6, 25, dtype('float32'))
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunks: tuple[int, int] | None = None
    samples_axis: int = 0
    ndim: int = 2

    @property
    def n_rows(self) -> int:
        """Number of samples."""
        return self.shape[self.samples_axis]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.shape[1 - self.samples_axis]

    @property
    def native(self) -> np.dtype[Any]:
        """The dtype in native byte order."""
        return self.dtype.newbyteorder("=")

    @property
    def chunk_rows(self) -> int:
        """Samples in one chunk."""
        return min(self.chunks[self.samples_axis], self.n_rows) if self.chunks else 1

    @property
    def chunk_features(self) -> int:
        """Features in one chunk; 0 if all of them are stored together."""
        return min(self.chunks[1 - self.samples_axis], self.n_features) if self.chunks else 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one decoded chunk (edge chunks are stored in full); 0 if contiguous."""
        return self.chunks[0] * self.chunks[1] * self.dtype.itemsize if self.chunks else 0

    @property
    def staging_bytes(self) -> int:
        """Bytes of the largest tile: about 8 MiB, or one chunk where that is more."""
        return max(STAGING, self.chunk_bytes)

    def segments(self) -> tuple[Segment, ...]:
        """Return the rows as one segment with this table's chunks."""
        return (Segment(0, self.n_rows, self.chunk_rows),)

    def cells(self, rows: slice, features: slice) -> Cells:
        """Return the stored selection of some rows and features."""
        return (rows, features) if self.samples_axis == 0 else (features, rows)

    def in_storage(self, cells: Cells, out: Array) -> tuple[Cells, Array]:
        """Return a selection and the array for it with as many dimensions as are stored."""
        return (cells, out) if self.ndim == 2 else (cells[:1], out.reshape(-1))

    def fits(self, shape: tuple[int, ...], dtype: Any) -> bool:
        """Return whether a stored array is this one, or has more rows: the row count is pinned."""
        seen = shape if self.ndim == 2 else (*shape, 1)
        same = dtype == self.dtype and len(shape) == self.ndim and seen[1 - self.samples_axis] == self.n_features
        return same and seen[self.samples_axis] >= self.n_rows

    def tiles(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Cut rows ``start:stop`` into (rows, features) tiles of whole chunks, at most ``staging_bytes`` each.

        >>> list(Table((6, 10), np.dtype("f8"), (2, 4), samples_axis=1).tiles(1, 10))
        [(slice(1, 10, None), slice(0, 6, None))]
        """
        high, wide = self._tile_shape(stop - start)
        for rows in _spans(start, stop, high, self.chunk_rows):
            for features in _spans(0, self.n_features, wide, self.chunk_features or 1):
                yield rows, features

    def _tile_shape(self, n_rows: int) -> tuple[int, int]:
        """Return rows and features of a tile, as long as can be along the stored last axis."""
        limit = self.staging_bytes // self.dtype.itemsize
        high, wide = self.chunk_rows, self.chunk_features or 1
        if self.samples_axis == 0:
            wide = round_to_chunks(min(limit // high, self.n_features + wide - 1), wide)
            return round_to_chunks(limit // wide, high), wide
        high = round_to_chunks(min(limit // wide, n_rows + 2 * high - 1), high)
        return high, round_to_chunks(limit // high, wide)


def stored_table(shape: Any, dtype: Any, chunks: Any, samples_axis: int, where: str) -> Table:
    """Return the table of a stored array, or refuse one that is neither 2-D nor 1-D, is empty, or does not hold real numbers."""
    if samples_axis not in (0, 1):
        raise UsageError(f"samples_axis must be 0 (samples are rows) or 1 (samples are columns), not {samples_axis!r}")
    numeric_dtype(dtype, where)
    stored = np.dtype(np.dtype(dtype).str)  # without metadata such as HDF5's enum names
    lengths = tuple(int(n) for n in shape or ())
    if len(lengths) == 1:
        rows, _ = two_dimensional((*lengths, 1), where)
        return Table((rows, 1), stored, None if chunks is None else (int(chunks[0]), 1), ndim=1)
    rows, columns = two_dimensional(lengths, where)
    pair = None if chunks is None else (int(chunks[0]), int(chunks[1]))
    return Table((rows, columns), stored, pair, samples_axis)


@dataclass(frozen=True)
class StoredSource(Source):
    """A source whose rows lie in a stored table. Readers add where it is, and fill arrays with its cells."""

    table: Table
    pinned: SourceInfo = field(repr=False)

    @property
    def info(self) -> SourceInfo:
        """Facts about the data, fixed when the source was opened."""
        return self.pinned

    @abstractmethod
    def _describe_as(self, table: Table) -> SourceInfo:
        """Return the facts about the data read as another table."""

    def transposed(self) -> Self:
        """Return the same stored array read along its other axis."""
        self.check_unchanged()
        table = replace(self.table, samples_axis=1 - self.table.samples_axis)
        info = self._describe_as(table)
        self.release()  # as after opening, so that the file can be written again
        return replace(self, table=table, pinned=replace(info, feature_names=None, description=f"{info.description} (transposed)"))

    @abstractmethod
    def _fill(self, cells: Cells, out: Array) -> None:
        """Fill ``out`` (native dtype, the selection's stored shape) with stored cells."""

    def _row_tiles(self, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Return the tiles that are read at once when samples are stored as rows: here, one."""
        yield slice(start, stop), slice(0, self.table.n_features)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        table = self.table
        block: Array = np.empty((stop - start, table.n_features), table.native) if out is None else out
        if table.samples_axis == 0:
            for rows, features in self._row_tiles(start, stop):
                self._fill((rows, features), block[rows.start - start : rows.stop - start, features])
            return block
        room: Array = np.empty(0, table.native)
        for rows, features in table.tiles(start, stop):
            shape = (features.stop - features.start, rows.stop - rows.start)
            if room.size < shape[0] * shape[1]:
                del room  # never two at once
                room = np.empty(shape[0] * shape[1], table.native)
            staged = room[: shape[0] * shape[1]].reshape(shape)
            self._fill((features, rows), staged)
            block[rows.start - start : rows.stop - start, features] = staged.T
            del staged
        return block

    def with_shared_names(self, names: tuple[str, ...] | None) -> Self:
        """Return the same source with this tuple of names (one tuple for thousands of files)."""
        return replace(self, pinned=replace(self.pinned, feature_names=names))

    def undecodable(self, cells: Cells, error: Exception) -> CorruptDataError:
        """Return the error for stored cells that cannot be read."""
        rows = cells[self.table.samples_axis]
        return CorruptDataError(
            f"{self.info.description}: rows {rows.start} to {rows.stop - 1} cannot be read or decoded ({type(error).__name__}: {error}): "
            "the file is damaged; restore or rewrite it"
        )


def _spans(start: int, stop: int, step: int, unit: int) -> Iterator[slice]:
    """Cut ``start:stop`` at most every ``step`` (a multiple of ``unit``), at multiples of ``unit``."""
    while start < stop:
        end = min(start - start % unit + step, stop)
        yield slice(start, end)
        start = end


def not_applied(attributes: Any) -> str | None:
    """Return netCDF's attributes that change the meaning of stored numbers, none of which is applied, as text; None if there are none.

    >>> not_applied({"units": "K", "scale_factor": 0.01, "_FillValue": -32767})
    'scale_factor=0.01, _FillValue=-32767'
    """
    found = [f"{name}={' '.join(map(str, np.ravel(attributes[name])))}" for name in PACKING if name in attributes]
    return ", ".join(found) or None
