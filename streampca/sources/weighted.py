"""Rows that count by weights: a source, and beside it one number for each of its rows.

A row of weight 2 counts as two rows, a row of weight 0 as none. Weights are checked when they are read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.errors import DataError, UsageError
from streampca.sources.base import Array, Floats, Source, SourceInfo, digest
from streampca.sources.in_memory import ArraySource
from streampca.sources.views import View

ROWS_AT_ONCE = 2**20  # whose weights are read at once: stored chunks of weights are taller than those of rows


@dataclass(frozen=True)
class Weighted(View):
    """A source with weights: a vector, or a source of one column (or one row) with a weight for each row.

    >>> source = Weighted(ArraySource(np.zeros((3, 2))), [1, 0, 2.5])
    >>> source.weights(slice(1, 3))
    array([0. , 2.5])
    """

    by: Any  # a source of one column, once it is made

    def __post_init__(self) -> None:
        base = self.source.info
        if base.weighted:
            raise UsageError(f"{base.description} has weights already: give them once")
        column = _as_column(self.by)
        if column.info.n_rows != base.n_rows:
            raise DataError(
                f"there are {column.info.n_rows} weights in {column.info.description}, but {base.n_rows} rows in {base.description}: "
                "each row of the file(s), before rows are selected, needs one"
            )
        object.__setattr__(self, "by", column)
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        column: SourceInfo = self.by.info
        at_once = min(ROWS_AT_ONCE, base.n_rows) * (column.row_bytes + np.dtype(np.float64).itemsize)
        return replace(
            base,
            fingerprint=fingerprint,
            in_memory=base.in_memory and column.in_memory,
            read_scratch=base.read_scratch + column.read_scratch + at_once,
            weighted=True,
        )

    def _mark(self, fingerprint: str) -> str:
        return digest("weighted", fingerprint, _contents(self.by))

    def current_fingerprint(self) -> str:
        """Return the fingerprint of rows and weights as they are now."""
        if isinstance(self.by, ArraySource):
            return super().current_fingerprint()
        return digest("weighted", self.source.current_fingerprint(), self.by.current_fingerprint())

    def missing_chunks(self) -> int:
        """Return how many chunks of rows and of weights are missing."""
        return self.source.missing_chunks() + int(self.by.missing_chunks())

    def release(self) -> None:
        """Close the files in this process."""
        self.source.release()
        self.by.release()

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        return self.source.read(slice(start, stop), out)

    def _weights(self, start: int, stop: int) -> Floats:
        return checked_weights(self.by.read(slice(start, stop)), start, self.by.info.description)

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return what the source returns."""
        return self.source.lazy_rows(start, stop)

    def lazy_weights(self, start: int, stop: int) -> Any | None:
        """Return the weights as a Dask array, if they are one."""
        return self.by.lazy_rows(start, stop)


def checked_weights(column: Array, first_row: int, where: str) -> Floats:
    """Return a column of weights as a float64 vector, or refuse one that is negative or not finite."""
    weights: Floats = column.reshape(-1).astype(np.float64, copy=False)
    good = (weights >= 0) & (weights < np.inf)
    if not good.all():
        at = int(np.argmin(good))
        raise DataError(
            f"the weight of row {first_row + at} is {weights[at]} ({where}): a weight is a finite number of at least 0; "
            "0 leaves the row out"
        )
    return weights


def _as_column(by: Any) -> Source:
    """Return weights of any kind as a source of one column."""
    source = by if isinstance(by, Source) else ArraySource(_two_dimensional(np.asanyarray(by)))
    info = source.info
    if info.n_features == 1:
        return source
    turned = source.transposed() if info.n_rows == 1 else None
    if turned is None:
        raise DataError(f"weights are one number for each row, but {info.description} is a table of {info.n_rows} x {info.n_features}")
    return turned


def _two_dimensional(array: Array) -> Array:
    return array[:, None] if array.ndim == 1 else array


def _contents(by: Source) -> str:
    """Return what changes with any of the weights: for those in memory a digest of all, not of a sample."""
    if isinstance(by, ArraySource):
        return hashlib.sha256(np.ascontiguousarray(by.array).data).hexdigest()
    return by.info.fingerprint
