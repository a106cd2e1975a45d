"""Many sources as one: the files of a glob, in order, with the same columns in each."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from streampca.blocks import Segment
from streampca.errors import DataError, UsageError
from streampca.sources.base import Array, Floats, Source, SourceInfo, digest
from streampca.sources.stored import StoredSource
from streampca.sources.views import slab_bytes, slabs


@dataclass(frozen=True)
class Several(Source):
    """What sources that are read together have in common, whichever way they are joined."""

    sources: tuple[Source, ...]
    pinned: SourceInfo = field(init=False, repr=False, compare=False)

    @property
    def info(self) -> SourceInfo:
        """Facts about all of them together."""
        return self.pinned

    @abstractmethod
    def _mark(self, fingerprints: Iterable[str]) -> str:
        """Return the fingerprint of all of them from those of each."""

    def current_fingerprint(self) -> str:
        """Return the fingerprint of all of them as they are now."""
        return self._mark(source.current_fingerprint() for source in self.sources)

    def missing_chunks(self) -> int:
        """Return how many chunks are missing in all of them."""
        return sum(source.missing_chunks() for source in self.sources)

    def details(self) -> dict[str, Any]:
        """Return the storage facts of the first, and how many there are."""
        return {**self.sources[0].details(), "files": len(self.sources)}

    def release(self) -> None:
        """Close the files in this process."""
        for source in self.sources:
            source.release()

    def _all_transposed(self) -> tuple[Source, ...] | None:
        """Return each of them transposed, or None if one cannot be."""
        turned = [source.transposed() for source in self.sources]
        known = tuple(each for each in turned if each is not None)
        return known if len(known) == len(turned) else None


@dataclass(frozen=True)
class ManySource(Several):
    """The rows of several sources, one after the other.

    >>> from streampca.sources.in_memory import ArraySource
    >>> source = ManySource((ArraySource(np.zeros((2, 3))), ArraySource(np.ones((4, 3)))))
    >>> source.read(slice(1, 4))[:, 0]
    array([0., 1., 1.])
    """

    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError("many files were asked for, but the list of them is empty")
        infos = [source.info for source in self.sources]
        names = _common_names(infos)
        shared = tuple(each.with_shared_names(names) if isinstance(each, StoredSource) else each for each in self.sources)
        starts = tuple(accumulate((info.n_rows for info in infos), initial=0))
        object.__setattr__(self, "sources", shared)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "pinned", _join(infos, starts, names, self._mark(info.fingerprint for info in infos)))

    def _mark(self, fingerprints: Iterable[str]) -> str:
        return digest("many", *fingerprints)

    def transposed(self) -> Source | None:
        """Return them side by side, each transposed."""
        parts = self._all_transposed()
        return None if parts is None else SideBySide(parts)

    def _weights(self, start: int, stop: int) -> Floats:
        """Return the weights of each; the rows of those without weights count once."""
        parts = [(source.weights(rows), rows.stop - rows.start) for source, rows in self._parts(start, stop)]
        return np.concatenate([np.ones(count) if weights is None else weights for weights, count in parts])

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        parts = list(self._parts(start, stop))
        if len(parts) == 1:
            source, rows = parts[0]
            return source.read(rows, out)
        block: Array = np.empty((stop - start, self.info.n_features), self.info.dtype) if out is None else out
        done = 0
        for source, rows in parts:
            count = rows.stop - rows.start
            read_into(source, rows, block[done : done + count])
            done += count
        return block

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Source, slice]]:
        """Yield the sources that hold rows ``start:stop``, each with its own rows."""
        index = bisect_right(self.starts, start) - 1
        while start < stop:
            offset, end = self.starts[index], min(stop, self.starts[index + 1])
            yield self.sources[index], slice(start - offset, end - offset)
            start, index = end, index + 1


@dataclass(frozen=True)
class SideBySide(Several):
    """The columns of several sources with the same rows, one after the other: many files, transposed.

    >>> from streampca.sources.in_memory import ArraySource
    >>> SideBySide((ArraySource(np.zeros((2, 1))), ArraySource(np.ones((2, 2))))).read(slice(0, 1))
    array([[0., 1., 1.]])
    """

    def __post_init__(self) -> None:
        infos = [source.info for source in self.sources]
        object.__setattr__(self, "pinned", _join_columns(infos, self._mark(info.fingerprint for info in infos)))

    def _mark(self, fingerprints: Iterable[str]) -> str:
        return digest("side by side", *fingerprints)

    def transposed(self) -> Source | None:
        """Return them one after the other, each transposed."""
        parts = self._all_transposed()
        return None if parts is None else ManySource(parts)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        block: Array = np.empty((stop - start, self.info.n_features), self.info.dtype) if out is None else out
        left = 0
        for source in self.sources:
            right = left + source.info.n_features
            for a, b in slabs(source.info, start, stop):  # cut at its chunks: each is decoded once
                block[a - start : b - start, left:right] = source.read(slice(a, b))
            left = right
        return block


def read_into(source: Source, rows: slice, out: Array) -> None:
    """Fill ``out`` with rows of a source, whether or not the source makes use of it."""
    got = source.read(rows, out)
    if not np.may_share_memory(got, out):
        np.copyto(out, got)


def _join(infos: list[SourceInfo], starts: tuple[int, ...], names: tuple[str, ...] | None, fingerprint: str) -> SourceInfo:
    first = infos[0]
    for info in infos[1:]:
        _check_alike(first, info)
    widths = {info.chunk_features for info in infos}
    return SourceInfo(
        n_rows=starts[-1],
        n_features=first.n_features,
        dtype=first.dtype,
        segments=tuple(shifted(segment, start) for info, start in zip(infos, starts, strict=False) for segment in info.segments),
        bytes_stored=sum(info.bytes_stored for info in infos),
        fingerprint=fingerprint,
        feature_names=names,
        prefetches=all(info.prefetches for info in infos),
        in_memory=len(infos) == 1 and first.in_memory,
        read_scratch=max(info.read_scratch for info in infos),
        chunk_features=0 if 0 in widths else max(widths),
        description=_descriptions(infos),
        weighted=any(info.weighted for info in infos),
    )


def _join_columns(infos: list[SourceInfo], fingerprint: str) -> SourceInfo:
    first = infos[0]
    return SourceInfo(
        n_rows=first.n_rows,
        n_features=sum(info.n_features for info in infos),
        dtype=first.dtype,
        segments=_common_segments(infos),
        bytes_stored=sum(info.bytes_stored for info in infos),
        fingerprint=fingerprint,
        prefetches=all(info.prefetches for info in infos),
        read_scratch=max(info.read_scratch + slab_bytes(info) for info in infos),
        chunk_features=max(info.chunk_features or info.n_features for info in infos),
        description=_descriptions(infos),
    )


def _common_segments(infos: list[SourceInfo]) -> tuple[Segment, ...]:
    """Return the segments whose cuts are free in all sources: whole chunks of each, or all rows where there are none."""
    kinds = {info.segments for info in infos}
    if len(kinds) == 1:
        return infos[0].segments
    n_rows = infos[0].n_rows
    plain = all(len(segments) == 1 and segments[0].phase == 0 for segments in kinds)
    together = math.lcm(*(info.chunk_rows for info in infos)) if plain else n_rows
    return (Segment(0, n_rows, min(together, n_rows)),)


def _descriptions(infos: list[SourceInfo]) -> str:
    first, last = infos[0].description, infos[-1].description
    return f"{len(infos)} files, {first} to {last}" if len(infos) > 1 else first


def shifted(segment: Segment, rows: int) -> Segment:
    """Return a segment moved down by ``rows``.

    >>> shifted(Segment(0, 5, 2), 10)
    Segment(start=10, stop=15, chunk_rows=2, phase=0)
    """
    return replace(segment, start=segment.start + rows, stop=segment.stop + rows)


def _check_alike(first: SourceInfo, other: SourceInfo) -> None:
    if other.n_features != first.n_features:
        raise DataError(f"{first.description} has {first.n_features} features, but {other.description} has {other.n_features}")
    if other.dtype != first.dtype:
        raise DataError(f"{first.description} holds {first.dtype}, but {other.description} holds {other.dtype}: convert one of them")


def _common_names(infos: list[SourceInfo]) -> tuple[str, ...] | None:
    """Return the names of those that have any, or refuse names that differ."""
    named = [info for info in infos if info.feature_names is not None]
    for info in named[1:]:
        _check_same_names(named[0], info)
    return named[0].feature_names if named else None


def _check_same_names(first: SourceInfo, other: SourceInfo) -> None:
    ours, theirs = first.feature_names or (), other.feature_names or ()
    if ours == theirs or len(ours) != len(theirs):  # different widths are refused with a clearer message
        return
    at = next(index for index, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    raise DataError(f"feature {at} is called {ours[at]!r} in {first.description}, but {theirs[at]!r} in {other.description}")
