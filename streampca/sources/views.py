"""Views: some columns, some rows, or other names of a source, as a source.

A view reads from its source in slabs of bounded size and keeps what it wants. (Samples along the second axis
are not a view: the stored sources read them so, see ``stored.py``.)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streampca.blocks import Partition, Segment
from streampca.errors import UsageError
from streampca.memory import KIB, MIB
from streampca.sources.base import Array, Floats, Source, SourceInfo, digest

SLAB = 8 * MIB
GAP = 64 * KIB


@dataclass(frozen=True)
class View(Source):
    """A source that shows another one."""

    source: Source
    pinned: SourceInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        base = self.source.info
        object.__setattr__(self, "pinned", self._describe(base, self._mark(base.fingerprint)))

    @abstractmethod
    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        """Return the facts of the view from those of its source."""

    @abstractmethod
    def _mark(self, fingerprint: str) -> str:
        """Return the view's fingerprint from that of its source."""

    @property
    def info(self) -> SourceInfo:
        """Facts about the data as the view shows it."""
        return self.pinned

    def current_fingerprint(self) -> str:
        """Return the fingerprint of the data as it is now."""
        return self._mark(self.source.current_fingerprint())

    def _weights(self, start: int, stop: int) -> Floats | None:
        return self.source.weights(slice(start, stop))

    def lazy_weights(self, start: int, stop: int) -> Any | None:
        """Return what the source returns."""
        return self.source.lazy_weights(start, stop)

    def missing_chunks(self) -> int:
        """Return how many chunks of the whole source are missing."""
        return self.source.missing_chunks()

    def details(self) -> Mapping[str, Any]:
        """Return the storage facts of the source."""
        return self.source.details()

    def release(self) -> None:
        """Close the files in this process."""
        self.source.release()


@dataclass(frozen=True)
class Columns(View):
    """Some columns of a source, by their indices.

    >>> from streampca.sources.in_memory import ArraySource
    >>> Columns(ArraySource(np.arange(6).reshape(2, 3)), (2, 0)).read(slice(0, 2))
    array([[2, 0],
           [5, 3]])
    """

    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        check_columns(self.indices, self.source.info.n_features)
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        names = base.feature_names
        return replace(
            base,
            n_features=len(self.indices),
            feature_names=None if names is None else tuple(names[index] for index in self.indices),
            fingerprint=fingerprint,
            in_memory=False,  # a choice of columns is a copy
            read_scratch=base.read_scratch + slab_bytes(base),
            chunk_features=min(base.chunk_features, len(self.indices)),
            description=f"{len(self.indices)} of {base.n_features} columns of {base.description}",
        )

    def _mark(self, fingerprint: str) -> str:
        return digest("columns", fingerprint, self.indices)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        block: Array = np.empty((stop - start, len(self.indices)), self.info.dtype) if out is None else out
        indices = np.asarray(self.indices, np.intp)
        for a, b in slabs(self.source.info, start, stop):
            # "clip" lets NumPy write straight to out; the indices are checked already
            self.source.read(slice(a, b)).take(indices, axis=1, out=block[a - start : b - start], mode="clip")
        return block

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return what Dask selects, if the source is a Dask array."""
        lazy = self.source.lazy_rows(start, stop)
        return None if lazy is None else lazy[:, list(self.indices)]

    def transposed(self) -> Source | None:
        """Return some rows of the transposed source, if the columns are evenly spaced and in order."""
        even = _even_range(self.indices)
        turned = None if even is None else self.source.transposed()
        return None if even is None or turned is None else Rows(turned, even.start, even.stop, even.step)


@dataclass(frozen=True)
class Rows(View):
    """Rows ``start:stop:step`` of a source.

    >>> from streampca.sources.in_memory import ArraySource
    >>> Rows(ArraySource(np.arange(10).reshape(10, 1)), 1, 10, 4).read(slice(0, 3)).ravel()
    array([1, 5, 9])
    """

    start: int
    stop: int
    step: int = 1

    def __post_init__(self) -> None:
        n_rows = self.source.info.n_rows
        if self.step < 1:
            raise UsageError(f"rows are taken in order: the step must be at least 1, not {self.step}")
        if not 0 <= self.start < self.stop <= n_rows:
            raise UsageError(f"rows {self.start}:{self.stop} select nothing of the {n_rows} rows of {self.source.info.description}")
        super().__post_init__()

    @property
    def _wanted(self) -> range:
        return range(self.start, self.stop, self.step)

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        share = len(self._wanted) / base.n_rows
        return replace(
            base,
            n_rows=len(self._wanted),
            segments=tuple(_seen_segments(base.segments, self._wanted)),
            bytes_stored=max(round(base.bytes_stored * share), 1),
            fingerprint=fingerprint,
            read_scratch=base.read_scratch + (slab_bytes(base) if self.step > 1 and not base.in_memory else 0),
            description=f"rows {self.start}:{self.stop}:{self.step} of {base.description}",
        )

    def _mark(self, fingerprint: str) -> str:
        return digest("rows", fingerprint, self.start, self.stop, self.step)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        wanted = self._wanted[start:stop]
        base = self.source.info
        if self.step == 1 or base.in_memory:
            rows = self.source.read(slice(wanted.start, wanted[-1] + 1), out if self.step == 1 else None)
            return rows[:: self.step]
        block: Array = np.empty((len(wanted), base.n_features), base.dtype) if out is None else out
        for a, b in Partition(self.info.segments, self._height, self._height).blocks(start, stop):
            part = self._wanted[a:b]
            block[a - start : b - start] = self.source.read(slice(part.start, part[-1] + 1))[:: self.step]
        return block

    @property
    def _height(self) -> int:
        """Wanted rows that are read at once: one by one if whole chunks, and more than 64 KiB, lie between them."""
        base = self.source.info
        apart = self.step > base.chunk_rows and self.step * base.row_bytes > GAP
        return 1 if apart else max(slab_rows(base) // self.step, 1)

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return what Dask selects, if the source is a Dask array."""
        wanted = self._wanted[start:stop]
        lazy = self.source.lazy_rows(wanted.start, wanted[-1] + 1)
        return None if lazy is None else lazy[:: self.step]

    def _weights(self, start: int, stop: int) -> Floats | None:
        wanted = self._wanted[start:stop]
        weights = self.source.weights(slice(wanted.start, wanted[-1] + 1))
        return None if weights is None else weights[:: self.step]

    def lazy_weights(self, start: int, stop: int) -> Any | None:
        """Return what Dask selects, if the weights are a Dask array."""
        wanted = self._wanted[start:stop]
        lazy = self.source.lazy_weights(wanted.start, wanted[-1] + 1)
        return None if lazy is None else lazy[:: self.step]

    def transposed(self) -> Source | None:
        """Return some columns of the transposed source."""
        turned = self.source.transposed()
        return None if turned is None else Columns(turned, tuple(self._wanted))


@dataclass(frozen=True)
class WithNames(View):
    """A source with other feature names."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        n_features = self.source.info.n_features
        if len(self.names) != n_features:
            raise UsageError(f"{len(self.names)} feature names were given for {n_features} features of {self.source.info.description}")
        duplicate = next((name for name, count in _counts(self.names).items() if count > 1), None)
        if duplicate is not None:
            raise UsageError(f"the feature name {duplicate!r} was given more than once")
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        return replace(base, feature_names=self.names, fingerprint=fingerprint)

    def _mark(self, fingerprint: str) -> str:
        return fingerprint  # the same numbers

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        return self.source.read(slice(start, stop), out)

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return what the source returns."""
        return self.source.lazy_rows(start, stop)

    def transposed(self) -> Source | None:
        """Return the transposed source: the names are those of its rows."""
        return self.source.transposed()


def check_columns(indices: tuple[int, ...], n_features: int) -> None:
    """Refuse no columns, columns that are not there, and columns taken twice."""
    if not indices:
        raise UsageError("no column was selected: at least 1 is needed")
    outside = next((index for index in indices if not 0 <= index < n_features), None)
    if outside is not None:
        raise UsageError(f"there is no column {outside}: the {n_features} columns are numbered 0 to {n_features - 1}")
    if len(set(indices)) < len(indices):
        twice = next(index for index, count in _counts(indices).items() if count > 1)
        raise UsageError(f"column {twice} was selected more than once")


def _even_range(indices: tuple[int, ...]) -> range | None:
    """Return indices that are evenly spaced and in order as a range.

    >>> _even_range((1, 3, 5)), _even_range((4,)), _even_range((3, 1)), _even_range((0, 1, 3))
    (range(1, 6, 2), range(4, 5), None, None)
    """
    step = indices[1] - indices[0] if len(indices) > 1 else 1
    even = range(indices[0], indices[-1] + 1, step) if step > 0 else range(0)
    return even if tuple(even) == indices else None


def slab_rows(base: SourceInfo) -> int:
    """Return the rows that a view reads at once: 8 MiB, or one chunk where that is more."""
    return max(SLAB // base.row_bytes, base.chunk_rows, 1)


def slab_bytes(base: SourceInfo) -> int:
    """Return the bytes of one slab."""
    return 0 if base.in_memory else slab_rows(base) * base.row_bytes


def slabs(base: SourceInfo, start: int, stop: int) -> list[tuple[int, int]]:
    """Cut a row range at chunk boundaries into slabs."""
    height = slab_rows(base)
    return Partition(base.segments, height, height).blocks(start, stop)


def _counts(values: tuple[Any, ...]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _seen_segments(segments: tuple[Segment, ...], wanted: range) -> Iterator[Segment]:
    """Yield the segments as they look through ``wanted`` rows.

    A chunk boundary at row ``b`` lies before the first wanted row at or after it. Boundaries ``chunk_rows`` apart
    become regular again every ``chunk_rows / gcd(chunk_rows, step)`` wanted rows.

    >>> list(_seen_segments((Segment(0, 100, 10),), range(15, 100, 5)))
    [Segment(start=0, stop=17, chunk_rows=2, phase=1)]
    """

    def seen(row: int) -> int:
        return -((wanted.start - row) // wanted.step)

    for segment in segments:
        start, stop = max(seen(segment.start), 0), min(seen(segment.stop), len(wanted))
        if start >= stop:
            continue
        chunk_rows = segment.chunk_rows // math.gcd(segment.chunk_rows, wanted.step)
        origin = seen(segment.start - segment.phase)
        yield Segment(start, stop, chunk_rows, (start - origin) % chunk_rows)
