"""Dask arrays as a source, and any source as a Dask array. The only source that imports dask.

A Dask array is computed rows by rows inside the task that folds them; a cluster may schedule that itself (``lazy_rows``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np

from streampca.blocks import Partition, Segment
from streampca.errors import UsageError
from streampca.memory import MIB
from streampca.sources import open_source
from streampca.sources.base import Array, Source, SourceInfo, digest, numeric_dtype, two_dimensional
from streampca.sources.in_memory import without_mask
from streampca.sources.selection import ColumnsLike, RowsLike, column_indices, row_slice
from streampca.sources.views import WithNames, check_columns

BLOCK = 32 * MIB


@dataclass(frozen=True, eq=False)
class DaskArraySource(Source):
    """The rows of a 2-D Dask array with any chunks. Unknown row counts are computed when it is opened.

    >>> source = DaskArraySource(da.arange(12, chunks=4).reshape(6, 2))
    >>> source.read(slice(1, 3))
    array([[2, 3],
           [4, 5]])
    """

    array: Any = field(repr=False)
    names: tuple[str, ...] | None = None
    pinned: SourceInfo = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", _with_known_chunks(self.array))
        object.__setattr__(self, "pinned", _describe(self.array, self.names))

    @property
    def info(self) -> SourceInfo:
        """Facts about the array."""
        return self.pinned

    def details(self) -> dict[str, Any]:
        """Return the chunks."""
        return {"format": "dask", "chunks": self.array.chunksize, "n_chunks": self.array.npartitions}

    def lazy_rows(self, start: int, stop: int) -> Any:
        """Return the rows as a Dask array of one block."""
        return self.array[start:stop].rechunk((stop - start, self.info.n_features))

    def transposed(self) -> DaskArraySource:
        """Return the transposed array."""
        return DaskArraySource(self.array.T)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        computed = self.array[start:stop].compute(scheduler="synchronous")  # this is a task's own thread
        rows = _dense(computed)
        if rows.dtype.isnative and rows.dtype == self.info.dtype:
            return rows
        return rows.astype(self.info.dtype)


def open_dask(array: Any, samples_axis: int, rows: RowsLike | None, columns: ColumnsLike | None, names: Sequence[str] | None) -> Source:
    """Return a Dask array as a source; what is selected of it is selected by Dask."""
    two_dimensional(tuple(1 if math.isnan(n) else n for n in array.shape), "the Dask array")
    array = _with_known_chunks(array.T if samples_axis else array)
    kept = None if names is None else tuple(map(str, names))
    if kept is not None:
        kept = WithNames(DaskArraySource(array), kept).names
    if rows is not None:
        array = array[_forward(row_slice(rows), array.shape[0])]
    if columns is not None:
        indices = column_indices(columns, array.shape[1], kept)
        check_columns(indices, array.shape[1])
        array = array[:, list(indices)]
        kept = None if kept is None else tuple(kept[index] for index in indices)
    return DaskArraySource(array, kept)


def open_array(
    data: Any,
    dataset: str | None = None,
    samples_axis: int = 0,
    columns: ColumnsLike | None = None,
    rows: RowsLike | None = None,
    feature_names: Sequence[str] | None = None,
    block_rows: int | None = None,
) -> da.Array:
    """Return the rows of any source as a lazy Dask array, in chunks of about 32 MiB cut where the storage is cut.

    Parameters
    ----------
    data
        A path, glob, URL, array or source, as for :func:`streampca.sources.open_source`, which also explains the others.
    block_rows : int, optional
        Rows per Dask chunk, at most.

    >>> open_array(np.ones((10, 3)), block_rows=4).chunks
    ((4, 4, 2), (3,))
    """
    source = open_source(data, dataset, samples_axis, columns, rows, feature_names)
    inner = source.source if isinstance(source, WithNames) else source
    if isinstance(inner, DaskArraySource):
        return inner.array
    info = source.info
    heights = _heights(info, block_rows)
    name = f"rows-{digest(info.fingerprint, info.n_features, heights)}"
    meta: Array = np.empty((0, 0), info.dtype)
    return da.from_array(LazyRows(source), chunks=(heights, (info.n_features,)), name=name, asarray=False, fancy=False, meta=meta)


@dataclass(frozen=True, eq=False)
class LazyRows:
    """A source with the few attributes of an array that Dask needs."""

    source: Source

    ndim = 2

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return self.source.info.n_rows, self.source.info.n_features

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows."""
        return self.source.info.dtype

    def __getitem__(self, key: Any) -> Any:
        rows, features = key
        if not isinstance(rows, slice):
            return self.source.read(slice(rows, rows + 1))[0, features]
        wanted = range(self.shape[0])[rows]
        if not wanted:
            return self.source.read(slice(0, 0))[:, features]
        low, high = min(wanted), max(wanted)
        return self.source.read(slice(low, high + 1))[:: wanted.step, features]


def _heights(info: SourceInfo, block_rows: int | None) -> tuple[int, ...]:
    """Return the rows of each Dask chunk."""
    if block_rows is not None and block_rows < 1:
        raise UsageError(f"block_rows must be at least 1, not {block_rows}")
    rows = max(BLOCK // info.row_bytes, 1)
    if info.chunk_rows * info.row_bytes <= 4 * BLOCK:  # a cut inside a chunk means decoding it twice
        rows = max(rows, info.chunk_rows)
    rows = block_rows or rows
    return tuple(stop - start for start, stop in Partition(info.segments, rows, rows).blocks(0, info.n_rows))


def _with_known_chunks(array: Any) -> Any:
    if not any(math.isnan(n) for n in array.shape):
        return array
    return array.copy().compute_chunk_sizes()


def _forward(rows: slice, n_rows: int) -> slice:
    start, stop, step = rows.indices(n_rows)
    if step < 1:
        raise UsageError(f"rows are taken in order: the step must be at least 1, not {step}")
    if start >= stop:
        raise UsageError(f"rows {start}:{stop} select nothing of the {n_rows} rows of the Dask array")
    return slice(start, stop, step)


def _dense(computed: Any) -> Array:
    """Return a computed block as a plain NumPy array: sparse and masked ones too."""
    if not isinstance(computed, np.ndarray) and hasattr(computed, "todense"):
        computed = computed.todense()
    return without_mask(computed)


def _describe(array: Any, names: tuple[str, ...] | None) -> SourceInfo:
    where = "the Dask array"
    dtype = numeric_dtype(array.dtype, where)
    rows, columns = two_dimensional(array.shape, where)
    if names is not None and len(names) != columns:
        raise UsageError(f"{len(names)} feature names were given for {columns} features of {where}")
    tallest = max(array.chunks[0])
    return SourceInfo(
        n_rows=rows,
        n_features=columns,
        dtype=dtype,
        segments=tuple(_segments(array.chunks[0])),
        bytes_stored=rows * columns * dtype.itemsize,
        fingerprint=digest("dask", array.name, array.chunks, dtype.str),
        feature_names=names,
        read_scratch=2 * tallest * columns * dtype.itemsize,
        chunk_features=max(array.chunks[1]) if len(array.chunks[1]) > 1 else 0,
        description=f"Dask array ({rows} x {columns} {dtype})",
    )


def _segments(heights: Sequence[int]) -> Iterator[Segment]:
    """Merge row chunks into segments of equal chunks; a lower chunk may end one.

    >>> list(_segments((3, 3, 2, 4)))
    [Segment(start=0, stop=8, chunk_rows=3, phase=0), Segment(start=8, stop=12, chunk_rows=4, phase=0)]
    """
    start = stop = height = 0
    closed = True
    for rows in heights:
        if rows == 0:
            continue
        if closed or rows > height:
            if stop > start:
                yield Segment(start, stop, height)
            start, height = stop, rows
        stop += rows
        closed = rows < height
    if stop > start:
        yield Segment(start, stop, height)
