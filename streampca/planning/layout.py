"""Choose blocks and shards from what is known of the data. Pure arithmetic.

The choice depends on the data and, only when it is tight, on the budget; never on the number of workers, so the same
job gives the same bits on any machine that has the memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from streampca.blocks import round_to_chunks
from streampca.memory import MIB
from streampca.sources.base import SourceInfo

BLOCK_BYTES = 8 * MIB  # large enough to read and multiply at full speed, small enough for the cache to help
BLOCK_ROWS = 2048  # a product of fewer rows wastes time on adding its result to a wide sum
BLOCK_LIMIT = 64 * MIB
SHARD_BYTES = 64 * MIB
MIN_SHARD_BYTES = 16 * MIB
FEW_SHARDS, MAX_SHARDS = 48, 20_000
TASK_OVERHEAD = 32 * MIB  # what BLAS keeps for each thread that calls it (up to 32 MiB), the stack, allocator slack
PROCESS_OVERHEAD = 24 * MIB  # what is imported or allocated once the work begins


def read_bytes(info: SourceInfo, block_rows: int) -> int:
    """Return the bytes that a task needs to read blocks: two, if the next is read while this one is worked on."""
    if info.in_memory:
        return 0
    return (1 if info.prefetches else 2) * block_rows * info.row_bytes + info.read_scratch


def block_choices(info: SourceInfo, block_bytes: int = BLOCK_BYTES) -> Iterator[int]:
    """Yield heights of a block, the preferred first, then ever smaller ones."""
    wanted = max(block_bytes // info.row_bytes, min(BLOCK_ROWS, BLOCK_LIMIT // info.row_bytes), 1)
    rows = min(round_to_chunks(wanted, info.chunk_rows), info.n_rows)
    while True:
        yield rows
        if rows <= 16:
            return
        half = rows // 2
        rows = round_to_chunks(half, info.chunk_rows) if half >= info.chunk_rows else half


def lowest_block(info: SourceInfo) -> int:
    """Return the smallest height of a block that is tried."""
    *_, lowest = block_choices(info)
    return lowest


def shard_rows(info: SourceInfo, block_rows: int) -> int:
    """Return the height of a shard: a few dozen shards for gigabytes, at most 20,000 for petabytes."""
    total = info.bytes_decoded
    wanted = min(SHARD_BYTES, max(MIN_SHARD_BYTES, total // FEW_SHARDS))
    wanted = max(wanted, -(-total // MAX_SHARDS))
    rows = max(wanted // info.row_bytes, 1)
    return -(-rows // block_rows) * block_rows


def chunk_reads(info: SourceInfo, block_rows: int) -> int:
    """Return how often each stored chunk is decoded in a pass."""
    return 1 if block_rows >= min(info.chunk_rows, info.n_rows) else -(-info.chunk_rows // block_rows)
