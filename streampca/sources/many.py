"""Many sources as one: the files of a glob, in order, with the same columns in each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from streampca.blocks import Segment
from streampca.errors import DataError, UsageError
from streampca.sources.base import Array, Source, SourceInfo, digest
from streampca.sources.stored import StoredSource


@dataclass(frozen=True)
class ManySource(Source):
    """The rows of several sources, one after the other.

    >>> from streampca.sources.in_memory import ArraySource
    >>> source = ManySource((ArraySource(np.zeros((2, 3))), ArraySource(np.ones((4, 3)))))
    >>> source.read(slice(1, 4))[:, 0]
    array([0., 1., 1.])
    """

    sources: tuple[Source, ...]
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    pinned: SourceInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UsageError("many files were asked for, but the list of them is empty")
        infos = [source.info for source in self.sources]
        names = _common_names(infos)
        shared = tuple(each.with_shared_names(names) if isinstance(each, StoredSource) else each for each in self.sources)
        starts = tuple(accumulate((info.n_rows for info in infos), initial=0))
        object.__setattr__(self, "sources", shared)
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "pinned", _join(infos, starts, names))

    @property
    def info(self) -> SourceInfo:
        """Facts about all of them together."""
        return self.pinned

    def current_fingerprint(self) -> str:
        """Return the fingerprint of all of them as they are now."""
        return digest("many", *(source.current_fingerprint() for source in self.sources))

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


def read_into(source: Source, rows: slice, out: Array) -> None:
    """Fill ``out`` with rows of a source, whether or not the source makes use of it."""
    got = source.read(rows, out)
    if not np.may_share_memory(got, out):
        np.copyto(out, got)


def _join(infos: list[SourceInfo], starts: tuple[int, ...], names: tuple[str, ...] | None) -> SourceInfo:
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
        fingerprint=digest("many", *(info.fingerprint for info in infos)),
        feature_names=names,
        prefetches=all(info.prefetches for info in infos),
        in_memory=len(infos) == 1 and first.in_memory,
        read_scratch=max(info.read_scratch for info in infos),
        chunk_features=0 if 0 in widths else max(widths),
        description=f"{len(infos)} files, {first.description} to {infos[-1].description}" if len(infos) > 1 else first.description,
    )


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
