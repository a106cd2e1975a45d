from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.blocks import Partition, Segment, regular, round_to_chunks

Ranges = list[tuple[int, int]]


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    segments, start = [], 0
    for rows in draw(st.lists(st.integers(1, 60), min_size=1, max_size=6)):
        chunk_rows = draw(st.integers(1, 25))
        segments.append(Segment(start, start + rows, chunk_rows, draw(st.integers(0, chunk_rows - 1))))
        start += rows
    block_rows = draw(st.integers(1, 40))
    return Partition(tuple(segments), block_rows, block_rows * draw(st.integers(1, 5)))


def free_cuts(partition: Partition) -> set[int]:
    """Rows where a cut costs nothing, found one by one."""
    return {0} | {
        row
        for segment in partition.segments
        for row in range(segment.start + 1, segment.stop + 1)
        if row == segment.stop or (row - segment.start + segment.phase) % segment.chunk_rows == 0
    }


def check_cover(ranges: Ranges, start: int, stop: int, max_rows: int) -> None:
    assert ranges[0][0] == start
    assert ranges[-1][1] == stop
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    assert all(0 < b - a <= max_rows for a, b in ranges)


@given(partitions())
def test_shards_cover_all_rows_and_blocks_cover_shards(partition: Partition) -> None:
    shards = partition.shards()
    check_cover(shards, 0, partition.n_rows, partition.shard_rows)
    for start, stop in shards:
        check_cover(partition.blocks(start, stop), start, stop, partition.block_rows)


@given(partitions())
def test_cuts_are_free_wherever_one_is_within_reach(partition: Partition) -> None:
    free = free_cuts(partition)
    for ranges, most in ((partition.shards(), partition.shard_rows), (partition.blocks(0, partition.n_rows), partition.block_rows)):
        for start, stop in ranges:
            within_reach = [row for row in range(start + 1, start + most + 1) if row in free]
            assert stop == (within_reach[-1] if within_reach else start + most)


@given(partitions())
def test_no_chunk_is_decoded_twice_if_chunks_are_lower_than_blocks(partition: Partition) -> None:
    free = free_cuts(partition)
    if all(segment.chunk_rows <= partition.block_rows for segment in partition.segments):
        assert {stop for _, stop in partition.shards()} <= free
        assert {stop for shard in partition.shards() for _, stop in partition.blocks(*shard)} <= free


@given(partitions())
def test_the_cut_is_a_pure_function(partition: Partition) -> None:
    copy = pickle.loads(pickle.dumps(partition))
    assert copy == partition
    assert copy.shards() == partition.shards()
    assert [copy.blocks(*shard) for shard in copy.shards()] == [partition.blocks(*shard) for shard in partition.shards()]


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 200))
def test_regular_blocks_have_one_height(n_rows: int, block_rows: int, shard_rows: int) -> None:
    partition = regular(n_rows, block_rows, shard_rows)
    blocks = [block for shard in partition.shards() for block in partition.blocks(*shard)]
    assert blocks == [(start, min(start + block_rows, n_rows)) for start in range(0, n_rows, block_rows)]


def test_small_files_share_a_block() -> None:
    segments = tuple(Segment(10 * i, 10 * i + 10, 10) for i in range(10))
    assert Partition(segments, 35, 70).shards() == [(0, 70), (70, 100)]
    assert Partition(segments, 35, 70).blocks(0, 70) == [(0, 30), (30, 60), (60, 70)]


def test_a_chunk_that_is_too_tall_is_cut_and_then_left_at_its_end() -> None:
    partition = Partition((Segment(0, 25, 10),), block_rows=4, shard_rows=4)
    assert partition.shards() == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20), (20, 24), (24, 25)]


def test_no_rows() -> None:
    assert Partition((), 4, 8).shards() == []
    assert Partition((), 4, 8).n_rows == 0


@pytest.mark.timeout(10)
def test_many_segments_are_cut_in_no_time() -> None:
    segments = tuple(Segment(100 * i, 100 * i + 100, 7) for i in range(100_000))
    partition = Partition(segments, 250, 500)
    assert sum(len(partition.blocks(*shard)) for shard in partition.shards()) == 60_000


@given(st.integers(1, 1000), st.integers(1, 100))
def test_rounding_to_chunks(rows: int, chunk_rows: int) -> None:
    rounded = round_to_chunks(rows, chunk_rows)
    assert rounded % chunk_rows == 0
    assert rounded == chunk_rows or rows - chunk_rows < rounded <= rows
