"""NumPy arrays as a source: blocks are read-only views, and reading costs nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from streampca.blocks import Segment
from streampca.errors import DataError
from streampca.sources.base import Array, Source, SourceInfo, digest, numeric_dtype, two_dimensional

_SAMPLE_ROWS, _SAMPLE_COLUMNS = 64, 256


@dataclass(frozen=True, eq=False)
class ArraySource(Source):
    """The rows of a 2-D NumPy array.

    >>> source = ArraySource(np.arange(6.0).reshape(3, 2))
    >>> source.read(slice(1, 3))
    array([[2., 3.],
           [4., 5.]])
    """

    array: Array = field(repr=False)
    pinned: SourceInfo = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", without_mask(self.array))
        object.__setattr__(self, "pinned", _describe(self.array))

    @property
    def info(self) -> SourceInfo:
        """Facts about the array."""
        return self.pinned

    def transposed(self) -> ArraySource:
        """Return the transposed view of the array."""
        return ArraySource(self.array.T)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        view = self.array[start:stop]
        if self.array.dtype.isnative:
            view.flags.writeable = False
            return view
        block: Array = np.empty(view.shape, self.info.dtype) if out is None else out
        np.copyto(block, view)
        return block


def without_mask(array: Array) -> Array:
    """Return a masked array as a plain one with NaN for the masked entries; others as they are."""
    if not isinstance(array, np.ma.MaskedArray):
        return np.asarray(array)
    if array.mask is np.ma.nomask or not array.mask.any():
        return np.asarray(array.data)
    if array.dtype.kind != "f":
        raise DataError(f"a masked array of {array.dtype} has masked entries, and NaN cannot stand for them: convert it to float first")
    return np.asarray(array.filled(np.nan))


def _describe(array: Array) -> SourceInfo:
    where = "the array in memory"
    dtype = numeric_dtype(array.dtype, where)
    rows, columns = two_dimensional(array.shape, where)
    return SourceInfo(
        n_rows=rows,
        n_features=columns,
        dtype=dtype,
        segments=(Segment(0, rows),),
        bytes_stored=array.nbytes,
        fingerprint=digest("array", array.shape, dtype.str, _sample(array)),
        in_memory=bool(array.dtype.isnative),
        description=f"array in memory ({rows} x {columns} {dtype})",
    )


def _sample(array: Array) -> str:
    """Return a digest of at most 64 x 256 entries spread over the array."""
    rows = np.unique(np.linspace(0, array.shape[0] - 1, _SAMPLE_ROWS).astype(np.intp))
    columns = np.unique(np.linspace(0, array.shape[1] - 1, _SAMPLE_COLUMNS).astype(np.intp))
    return hashlib.sha256(np.ascontiguousarray(array[np.ix_(rows, columns)]).tobytes()).hexdigest()
