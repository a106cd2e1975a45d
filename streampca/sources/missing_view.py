"""Missing entries that are not stored as NaN: a value that stands for them, or a mask beside the table, shown as NaN.

Everything downstream then sees NaN only. Integers become float64 (float32 where that holds them all).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streampca.errors import DataError, UsageError
from streampca.sources import open_source
from streampca.sources.base import Array, Source, SourceInfo, digest
from streampca.sources.views import View, slab_bytes, slabs


def blanked(block: Array, value: float) -> Array:
    """Return a block with NaN where it is equal to a value; the block itself if it is nowhere.

    >>> blanked(np.array([[1, -999], [3, 4]]), -999).tolist()
    [[1.0, nan], [3.0, 4.0]]
    """
    hit = block == _as(block.dtype, value)
    if not hit.any():
        return block
    result: Array = block.astype(float_dtype(block.dtype))
    np.copyto(result, np.nan, where=hit)
    return result


def float_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that holds the numbers of another one, and NaN.

    >>> float_dtype(np.dtype("uint8")), float_dtype(np.dtype("int32"))
    (dtype('float32'), dtype('float64'))
    """
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


@dataclass(frozen=True)
class Blanked(View):
    """A source whose entries equal to ``value`` are missing (NaN).

    >>> from streampca.sources.in_memory import ArraySource
    >>> Blanked(ArraySource(np.array([[1, -9], [3, 4]], "i2")), -9).read(slice(None))
    array([[ 1., nan],
           [ 3.,  4.]], dtype=float32)
    """

    value: float

    def __post_init__(self) -> None:
        value = self.value
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float, np.number)):
            raise UsageError(f"missing={value!r} must be a number that stands for missing entries, or None (NaN only)")
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        return replace(
            base,
            dtype=float_dtype(base.dtype),
            fingerprint=fingerprint,
            in_memory=False,
            read_scratch=base.read_scratch + slab_bytes(base) + _mask_bytes(base),
        )

    def _mark(self, fingerprint: str) -> str:
        return digest("blanked", fingerprint, float(self.value))

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        block = _room(self.info, stop - start, out)
        for a, b in slabs(self.source.info, start, stop):
            rows = self.source.read(slice(a, b))
            part = block[a - start : b - start]
            part[...] = rows
            np.copyto(part, np.nan, where=rows == _as(rows.dtype, self.value))
        return block

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return the rows as Dask computes them, if the source is a Dask array."""
        lazy = self.source.lazy_rows(start, stop)
        dtype = self.info.dtype
        return None if lazy is None else lazy.map_blocks(partial(_blanked_as, value=self.value, dtype=dtype), dtype=dtype)


@dataclass(frozen=True)
class Masked(View):
    """A source whose entries are missing (NaN) where a source of the same shape is true (not zero)."""

    mask: Source

    def __post_init__(self) -> None:
        base, mask = self.source.info, self.mask.info
        if (mask.n_rows, mask.n_features) != (base.n_rows, base.n_features):
            raise DataError(
                f"the mask has shape {mask.n_rows} x {mask.n_features}, but {base.description} is {base.n_rows} x {base.n_features}: "
                "each entry needs a mark, true where it is missing"
            )
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        mask = self.mask.info
        return replace(
            base,
            dtype=float_dtype(base.dtype),
            fingerprint=fingerprint,
            in_memory=False,
            read_scratch=base.read_scratch + slab_bytes(base) + mask.read_scratch + slab_bytes(mask) + _mask_bytes(base),
        )

    def _mark(self, fingerprint: str) -> str:
        return digest("masked", fingerprint, self.mask.info.fingerprint)

    def current_fingerprint(self) -> str:
        """Return the fingerprint of rows and mask as they are now."""
        return digest("masked", self.source.current_fingerprint(), self.mask.current_fingerprint())

    def missing_chunks(self) -> int:
        """Return how many chunks of rows and mask are missing."""
        return self.source.missing_chunks() + self.mask.missing_chunks()

    def release(self) -> None:
        """Close the files in this process."""
        self.source.release()
        self.mask.release()

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        block = _room(self.info, stop - start, out)
        for a, b in slabs(self.source.info, start, stop):
            part = block[a - start : b - start]
            part[...] = self.source.read(slice(a, b))
            np.copyto(part, np.nan, where=self.mask.read(slice(a, b)) != 0)
        return block


def masked(data: Any, mask: Any, **options: Any) -> Source:
    """Return a table whose entries are missing where a mask is true: a source, for any method that takes one.

    Parameters
    ----------
    data
        What ``open_source`` opens.
    mask
        A table of the same shape, true (not zero) where an entry is missing: an array, a Dask array, a source, or a path
        such as ``"x.h5::mask"``.
    **options
        Options of ``open_source`` for the data, such as ``weights``.

    Examples
    --------
    >>> masked(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[False, True], [False, False]])).read(slice(None))
    array([[ 1., nan],
           [ 3.,  4.]])
    """
    return Masked(open_source(data, **options), open_source(mask))


def _room(info: SourceInfo, rows: int, out: Array | None) -> Array:
    return np.empty((rows, info.n_features), info.dtype) if out is None else out


def _mask_bytes(base: SourceInfo) -> int:
    """Return the bytes of the booleans of a slab; those of data in memory are cut into slabs too."""
    return 2 * max(slab_bytes(replace(base, in_memory=False)) // base.dtype.itemsize, 1)


def _as(dtype: np.dtype[Any], value: float) -> Any:
    """Return a value as it would be stored in a float dtype: -999.9 in float32 is not the float64 of that name."""
    return dtype.type(value) if dtype.kind == "f" else value


def _blanked_as(block: Array, value: float, dtype: np.dtype[Any]) -> Array:
    return blanked(block, value).astype(dtype, copy=False)
