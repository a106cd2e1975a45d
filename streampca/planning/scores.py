"""The plan of a transform: rows in, scores out, block by block."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.blocks import Partition, regular
from streampca.errors import MemoryBudgetError
from streampca.memory import MIB, format_bytes
from streampca.planning.layout import PROCESS_OVERHEAD, TASK_OVERHEAD, block_choices, read_bytes, shard_rows
from streampca.planning.plans import PassPlan
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import STRIP_ROWS

SCORES_BLOCK_BYTES = 16 * MIB  # taller blocks than in a fit: one block of rows is one chunk of the output
_SHARD_BLOCKS = 4  # so that reading ahead has something to read


@dataclass(frozen=True)
class ScoresPlan:
    """How rows are cut for a transform, how many blocks are worked on at once, and the projected memory."""

    partition: Partition
    workers: int
    stage: PassPlan


def plan_scores(
    info: SourceInfo, n_columns: int, *, budget: int, workers: int, baseline: int, n_components: int | None = None
) -> ScoresPlan:
    """Return the plan of a transform to ``n_columns`` columns, or refuse a budget that cannot hold it.

    ``n_components`` is the width of the model where it is not that of the output.
    """
    for block_rows in block_choices(info, SCORES_BLOCK_BYTES):
        for count in range(workers, 0, -1):
            stage = scores_stage(info, n_columns, block_rows, count, baseline, n_components)
            if stage.peak_memory <= budget:
                rows = max(shard_rows(info, block_rows), _SHARD_BLOCKS * block_rows)
                return ScoresPlan(regular(info.n_rows, block_rows, rows), count, stage)
    needed = format_bytes(stage.peak_memory)
    raise MemoryBudgetError(f"a memory budget of {format_bytes(budget)} cannot hold a transform, which needs at least {needed}")


def scores_stage(
    info: SourceInfo, n_columns: int, block_rows: int, workers: int, baseline: int, n_components: int | None = None
) -> PassPlan:
    """Count what a transform holds at once."""
    width = n_columns if n_components is None else n_components
    between = 0 if n_components is None else n_components  # scores on the way from rows to rows
    strip = 8 * min(block_rows, STRIP_ROWS) * (info.n_features + n_columns)
    memory = {
        "process": baseline + PROCESS_OVERHEAD,
        "model": 3 * 8 * info.n_features * width,
        "blocks": workers * (read_bytes(info, block_rows) + TASK_OVERHEAD + strip),
        "scores": workers * 3 * 8 * block_rows * (n_columns + between),
    }
    return PassPlan("scores", info.bytes_decoded, memory)
