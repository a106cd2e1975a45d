"""What one task does: read the blocks of one shard, and fold or write each while the next one is fetched.

These functions run in a Dask thread or on a worker of a cluster; they know nothing of scheduling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from numpy.typing import NDArray

from streampca.engine.process import borrowed_buffers
from streampca.errors import InterruptedRunError, NonFiniteError
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.sources.skipping import complete_parts
from streampca.sources.weighted import ROWS_AT_ONCE
from streampca.statistics.base import Floats, Statistic, find_nonfinite

Array = NDArray[Any]
BlockRows = list[tuple[int, int]]
Work = Callable[[int, Array], None]  # the first row of a block, and the block


def read_blocks(source: Source, blocks: BlockRows) -> Iterator[tuple[int, Array]]:
    """Yield each block with its first row.

    Where the source has the system fetch what comes next, it is decoded here, while it is in the cache of this processor;
    else a helper thread reads the next block into the other of two buffers.
    """
    info = source.info
    shape = max(stop - start for start, stop in blocks), info.n_features
    if info.in_memory:
        for start, stop in blocks:
            yield start, source.read(slice(start, stop))
        return
    if info.prefetches:
        with borrowed_buffers(1, shape, info.dtype) as (buffer,):
            for start, stop in blocks:
                yield start, source.read(slice(start, stop), buffer)
        return
    with borrowed_buffers(2, shape, info.dtype) as buffers, ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as helper:
        ahead = helper.submit(source.read, slice(*blocks[0]), buffers[0])
        for index, (start, _) in enumerate(blocks):
            block = ahead.result()
            if index + 1 < len(blocks):
                ahead = helper.submit(source.read, slice(*blocks[index + 1]), buffers[(index + 1) % 2])
            yield start, block


def block_weights(source: Source, blocks: BlockRows) -> Iterator[Floats | None]:
    """Yield the weights of each block, or None for each without weights; those of many blocks are read at once."""
    known, first = source.weights(slice(0, 0)), 0
    for index, (start, stop) in enumerate(blocks):
        if known is not None and stop - first > len(known):
            last = max(end for _, end in blocks[index:] if end <= max(start + ROWS_AT_ONCE, stop))
            known, first = source.weights(slice(start, last)), start
        yield None if known is None else known[start - first : stop - first]


def work_through(source: Source, blocks: BlockRows, work: Work, observer: Observer) -> None:
    """Do the work on every block of a shard, in order, unless asked to stop."""
    row_bytes = source.info.row_bytes
    for start, block in read_blocks(source, blocks):
        if observer.stop_requested():
            raise InterruptedRunError(f"stopped on request at row {start}: run again")
        try:
            work(start, block)
        except NonFiniteError as error:
            raise error.at(start, source.info.feature_names) from None
        observer.advanced(len(block), len(block) * row_bytes)


def fold_shard(blueprint: Callable[[], Statistic], source: Source, blocks: BlockRows, observer: Observer) -> Statistic:
    """Fold the blocks of one shard, in order, into a fresh statistic."""
    state, weights = blueprint(), block_weights(source, blocks)
    update = partial(_update_complete, state) if source.skips_nan else state.update
    work_through(source, blocks, lambda start, block: update(block, next(weights)), observer)
    state.release()
    return state


def _update_complete(state: Statistic, block: Array, weights: Floats | None) -> None:
    """Fold in the rows of a block that have no NaN."""
    try:
        for rows, counts in complete_parts(block, weights):
            state.update(rows, counts)
    except NonFiniteError:
        place = find_nonfinite(block, allow_nan=True)
        if place is None:
            raise
        raise NonFiniteError(float(block[place]), *place) from None  # where it is among all rows
