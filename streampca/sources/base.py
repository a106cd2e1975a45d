"""The source: a table of numbers on disk or in memory that yields blocks of rows.

A source is a frozen, picklable value (where the data is, never the data or a handle), so that it can be
sent to any process. ``info`` says what is there; ``read`` gives rows.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streampca.blocks import Segment
from streampca.errors import ChangedDataError, DataError, UsageError

Array = NDArray[Any]
Floats = NDArray[np.float64]
FLATTEN = "flatten its other axes, in Python for example by x.reshape(len(x), -1) of a Dask array x, which reads nothing"


@dataclass(frozen=True)
class SourceInfo:
    """What a planner needs to know of a source, found without reading its rows."""

    n_rows: int
    n_features: int
    dtype: np.dtype[Any]  # native byte order: what read() returns
    segments: tuple[Segment, ...]
    bytes_stored: int  # as they lie on disk
    fingerprint: str  # changes when the data changes
    feature_names: tuple[str, ...] | None = None
    in_memory: bool = False  # reads are views that cost nothing
    prefetches: bool = False  # has the system fetch the next bytes itself: a thread that reads ahead would only compete
    read_scratch: int = 0  # bytes a read needs per block beside the block itself (decoding a chunk, staging)
    chunk_features: int = 0  # columns of one stored chunk; 0: all
    description: str = ""  # where it is, for people
    weighted: bool = False  # rows do not all count once

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded row."""
        return self.n_features * self.dtype.itemsize

    @property
    def bytes_decoded(self) -> int:
        """Bytes of all rows, decoded."""
        return self.n_rows * self.row_bytes

    @property
    def chunk_rows(self) -> int:
        """Height of the tallest stored chunk."""
        return max((segment.chunk_rows for segment in self.segments), default=1)


class Source(ABC):
    """Rows of numbers. Subclasses are frozen dataclasses that give ``info`` and ``_read``."""

    skips_nan: ClassVar[bool] = False  # rows with a NaN are passed over

    @property
    @abstractmethod
    def info(self) -> SourceInfo:
        """Facts about the data, fixed when the source was opened."""

    @abstractmethod
    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        """Return rows ``start:stop`` (within bounds, not empty); may use ``out`` (same shape, native dtype, C order)."""

    def read(self, rows: slice, out: Array | None = None) -> Array:
        """Return the rows of a slice with step 1 as a 2-D array in native byte order.

        If ``out`` (at least as many rows, the source's dtype) is given, the rows may be put there; the
        result is then a part of it. Otherwise the result may be a read-only view of the data.
        """
        info = self.info
        start, stop, step = rows.indices(info.n_rows)
        if step != 1:
            raise UsageError(f"a source is read with step 1, not {step}: use open_source(..., rows=slice(...))")
        if stop <= start:
            return np.empty((0, info.n_features), info.dtype)
        return self._read(start, stop, None if out is None else out[: stop - start])

    def weights(self, rows: slice) -> Floats | None:
        """Return the weights of the rows of a slice with step 1, or None if every row counts once."""
        start, stop, step = rows.indices(self.info.n_rows)
        if step != 1:
            raise UsageError(f"weights are read with step 1, not {step}: use open_source(..., rows=slice(...))")
        if not self.info.weighted:
            return None
        return self._weights(start, stop) if start < stop else np.empty(0)

    def _weights(self, start: int, stop: int) -> Floats | None:
        """Return the weights of rows ``start:stop`` (within bounds, not empty), at least 0 and finite."""
        return None

    def transposed(self) -> Source | None:
        """Return the same table with samples and features swapped, or None where it cannot be read so.

        Its blocks of rows are slabs of columns of this one. Names of features are dropped.
        """
        return None

    def current_fingerprint(self) -> str:
        """Return the fingerprint of the data as it is now."""
        return self.info.fingerprint

    def check_unchanged(self) -> None:
        """Raise if the data is no longer what it was when the source was opened."""
        if self.current_fingerprint() != self.info.fingerprint:
            raise ChangedDataError(
                f"{self.info.description} changed while it was being read (its size, time or layout differs from when it was opened): "
                "run again when nothing writes to it"
            )

    def missing_chunks(self) -> int:
        """Return how many stored chunks are absent and read as the fill value."""
        return 0

    def details(self) -> Mapping[str, Any]:
        """Return storage facts for ``streampca inspect``: format, chunks, codecs, checksums."""
        return {}

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return a Dask collection of the rows where a cluster should schedule the reading itself, else None."""
        return None

    def lazy_weights(self, start: int, stop: int) -> Any | None:
        """Return a Dask collection of the weights of the rows (n x 1) where a cluster should compute them, else None."""
        return None

    def release(self) -> None:
        """Close the files that reads keep open in this process; a later read opens them again."""


def numeric_dtype(dtype: DTypeLike, where: str) -> np.dtype[Any]:
    """Return the native version of a real numeric dtype, or refuse it."""
    given = np.dtype(dtype)
    if given.kind not in "biuf":
        what = {"c": "complex numbers", "S": "strings", "U": "strings", "O": "objects or strings", "V": "records"}.get(given.kind, "values")
        raise DataError(f"{where} holds {what} (dtype {given}), not real numbers: choose a numeric dataset")
    return given.newbyteorder("=")


def two_dimensional(shape: tuple[int, ...], where: str) -> tuple[int, int]:
    """Return the shape if it is 2-D with at least one column, or refuse it."""
    if len(shape) != 2:
        more = f": {FLATTEN}" if len(shape) > 2 else ""
        raise DataError(f"{where} has {len(shape)} dimension(s) (shape {shape}), but a table of samples x features (2-D) is needed{more}")
    if shape[1] == 0 or shape[0] == 0:
        raise DataError(f"{where} is empty (shape {shape}): there are 0 sample(s) or feature(s) in it, a minimum of 1 is required")
    return shape[0], shape[1]


def digest(*parts: object) -> str:
    """Return a short, stable digest of values with a stable text form."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32]
