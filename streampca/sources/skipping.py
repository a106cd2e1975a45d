"""Rows with a NaN, left out: of every pass over a source, and of what is computed row by row, where they give NaN.

The rows stay where they are, so that nothing is renumbered; a fold passes them over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streampca.errors import NonFiniteError, UsageError
from streampca.sources.base import Array, Floats, Source, SourceInfo, digest
from streampca.sources.views import View

_STRIP_ROWS = 4096  # that are looked at, and copied if one is left out, at once


@dataclass(frozen=True)
class Skipping(View):
    """A source whose rows with a NaN count for nothing in a pass."""

    skips_nan: ClassVar[bool] = True

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        copied = min(_STRIP_ROWS, base.n_rows) * (base.row_bytes + base.n_features)
        return replace(base, fingerprint=fingerprint, read_scratch=base.read_scratch + copied)

    def _mark(self, fingerprint: str) -> str:
        return digest("skipping", fingerprint)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        return self.source.read(slice(start, stop), out)

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Refuse rows that a cluster would compute itself: nobody would pass any over."""
        if self.source.lazy_rows(start, stop) is not None:
            raise UsageError("nan='skip' does not go with a Dask array: drop its rows with a NaN first, or store it")
        return None


def without_nan(source: Source, nan: str) -> Source:
    """Return the source as it is (``nan="error"``), or without its rows that have a NaN (``"skip"``)."""
    if nan not in ("error", "skip"):
        raise UsageError(f"nan must be 'error' or 'skip', not {nan!r}")
    return Skipping(source) if nan == "skip" else source


def rows_with_nan(block: Array) -> NDArray[np.bool_]:
    """Return which rows of a block have a NaN.

    >>> rows_with_nan(np.array([[1.0, np.nan], [3.0, np.inf]])).tolist()
    [True, False]
    """
    found = np.zeros(len(block), bool)
    if block.dtype.kind == "f":
        for start in range(0, len(block), _STRIP_ROWS):
            np.isnan(block[start : start + _STRIP_ROWS]).any(axis=1, out=found[start : start + _STRIP_ROWS])
    return found


def complete_parts(block: Array, weights: Floats | None) -> Iterator[tuple[Array, Floats | None]]:
    """Yield the rows without a NaN, and their weights: the block as it is if all are, else a strip at a time.

    An infinite entry is an error, also in a row that is left out.

    >>> [rows.tolist() for rows, _ in complete_parts(np.array([[1.0], [np.nan], [3.0]]), None)]
    [[[1.0], [3.0]]]
    """
    incomplete = rows_with_nan(block)
    if not incomplete.any():
        yield block, weights
        return
    for start in range(0, len(block), _STRIP_ROWS):
        rows = slice(start, start + _STRIP_ROWS)
        kept = ~incomplete[rows]
        infinite = np.isinf(block[rows][~kept])
        if infinite.any():
            row, column = np.argwhere(infinite)[0].tolist()
            raise NonFiniteError(np.inf, start + int(np.flatnonzero(~kept)[row]), column)
        if kept.any():
            yield block[rows][kept], None if weights is None else weights[rows][kept]


def of_complete_rows(function: Callable[[Array], Array], block: Array) -> Array:
    """Return a function of the rows of a block, NaN for those with a NaN.

    >>> of_complete_rows(np.negative, np.array([[1.0], [np.nan]])).tolist()
    [[-1.0], [nan]]
    """
    incomplete = rows_with_nan(block)
    if not incomplete.any():
        return function(block)
    some = function(block[~incomplete])
    result = np.full((len(block), *some.shape[1:]), np.nan, some.dtype)
    result[~incomplete] = some
    return result
