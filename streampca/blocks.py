"""Row arithmetic: how a source's rows are cut into shards and blocks. Integers in, integers out.

A *segment* is a run of rows stored together (one file, one Dask chunk) with chunks of a fixed height;
a cut between two chunks costs nothing, a cut inside one means decoding it twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Rows ``start:stop`` of a source, cut by its storage every ``chunk_rows`` rows.

    ``phase`` is how many rows of the first chunk lie before ``start``.
    """

    start: int
    stop: int
    chunk_rows: int = 1
    phase: int = 0

    def last_cut(self, after: int, limit: int) -> int:
        """Return the last free cut in ``(after, limit]``, or ``after`` if there is none.

        >>> Segment(0, 100, chunk_rows=30).last_cut(0, 70)
        60
        >>> Segment(0, 100, chunk_rows=30).last_cut(0, 100)
        100
        """
        if limit >= self.stop:
            return self.stop
        origin = self.start - self.phase
        cut = origin + (limit - origin) // self.chunk_rows * self.chunk_rows
        return max(cut, after)


@dataclass(frozen=True)
class Partition:
    """The fixed cut of a source into shards, of shards into blocks, and of the merge into groups.

    It depends on the data and the plan, never on the number of workers, so that every scheduler
    adds the same numbers in the same order.

    >>> p = Partition((Segment(0, 10, 3),), block_rows=4, shard_rows=6)
    >>> p.shards()
    [(0, 6), (6, 10)]
    >>> p.blocks(0, 6)
    [(0, 3), (3, 6)]
    """

    segments: tuple[Segment, ...]
    block_rows: int
    shard_rows: int
    group: int = 8

    @property
    def n_rows(self) -> int:
        """Number of rows in all."""
        return self.segments[-1].stop if self.segments else 0

    def shards(self) -> list[tuple[int, int]]:
        """Row ranges of the shards, in order."""
        return list(self._cut(0, self.n_rows, self.shard_rows))

    def blocks(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Row ranges of the blocks of one shard, in order."""
        return list(self._cut(start, stop, self.block_rows))

    def _cut(self, start: int, stop: int, max_rows: int) -> Iterator[tuple[int, int]]:
        while start < stop:
            end = min(self._next_cut(start, start + max_rows), stop)
            yield start, end
            start = end

    def _next_cut(self, start: int, limit: int) -> int:
        """Return the last free cut in ``(start, limit]``; ``limit`` itself if a chunk is taller."""
        first = bisect_right(self.segments, start, key=_start) - 1
        last = bisect_right(self.segments, limit, key=_start) - 1
        for index in range(last, first - 1, -1):
            segment = self.segments[index]
            after = max(start, segment.start)
            cut = segment.last_cut(after, limit)
            if cut > start:
                return cut
        return limit


def _start(segment: Segment) -> int:
    return segment.start


def regular(n_rows: int, block_rows: int, shard_rows: int) -> Partition:
    """Return the partition into equal blocks whatever the storage, for outputs with regular chunks.

    >>> regular(10, 4, 8).shards()
    [(0, 8), (8, 10)]
    """
    shard_rows = max(shard_rows // block_rows, 1) * block_rows
    return Partition((Segment(0, n_rows, block_rows),), block_rows, shard_rows)


def round_to_chunks(rows: int, chunk_rows: int) -> int:
    """Return ``rows`` rounded down to whole chunks, but at least one chunk.

    >>> round_to_chunks(70, 30), round_to_chunks(7, 30)
    (60, 30)
    """
    return max(rows // chunk_rows, 1) * chunk_rows
