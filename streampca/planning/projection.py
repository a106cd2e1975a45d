"""What every plan of a fit has in common: the memory of its stages as a function of what is still to be chosen, and the choice."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from streampca.blocks import Partition
from streampca.engine import live_states
from streampca.errors import MemoryBudgetError
from streampca.memory import MIB, format_bytes
from streampca.planning.layout import PROCESS_OVERHEAD, TASK_OVERHEAD, block_choices, chunk_reads, lowest_block, read_bytes, shard_rows
from streampca.planning.plans import PassPlan
from streampca.sources.base import SourceInfo

_SLACK = 8  # MiB: a process grows a little from one plan to the next


@dataclass(frozen=True)
class Limits:
    """What a job may take: bytes in a process, tasks at once in it, and the bytes that it has before the work begins."""

    budget: int
    workers: int
    baseline: int
    note: str = ""  # where the budget comes from, if not from the user


@dataclass(frozen=True)
class Projection(ABC):
    """The memory of a job as a function of the height of a block and the number of workers."""

    info: SourceInfo
    baseline: int

    @abstractmethod
    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the stages with their memory."""

    def peak(self, block_rows: int, workers: int = 1) -> int:
        """Return the largest memory of all stages."""
        return max(stage.peak_memory for stage in self.stages(block_rows, workers))

    def block_choices(self) -> Iterator[int]:
        """Yield heights of a block, the preferred first."""
        return block_choices(self.info)

    def remedy(self, budget: int) -> str:
        """Say what else would fit, if anything."""
        return ""

    def fold(
        self, name: str, block_rows: int, workers: int, *, state: int, workspace: int, flops_per_row: float = 0.0, **more: int
    ) -> PassPlan:
        """Return a pass that folds states of so many bytes; ``more`` is what is held besides, by purpose."""
        memory = {
            "process": self.baseline + PROCESS_OVERHEAD,
            "blocks": workers * (read_bytes(self.info, block_rows) + TASK_OVERHEAD),
            "products": workers * workspace,
            "sums": live_states(workers, state) * state,
            **more,
        }
        return PassPlan(name, self.info.bytes_decoded, memory, flops_per_row * self.info.n_rows)

    def small(self, name: str, flops: float = 0.0, **memory: int) -> PassPlan:
        """Return a stage that reads nothing."""
        return PassPlan(name, 0, {"process": self.baseline + PROCESS_OVERHEAD, **memory}, flops)


@dataclass(frozen=True)
class Layout:
    """How rows are cut and how many tasks run at once, with the projected memory."""

    block_rows: int
    shard_rows: int
    n_shards: int
    workers: int
    stages: tuple[PassPlan, ...]


def layout_of(job: Projection, limits: Limits) -> Layout:
    """Return the layout that the budget holds, or refuse a budget that holds none."""
    block_rows = next((rows for rows in job.block_choices() if job.peak(rows) <= limits.budget), None)
    if block_rows is None:
        raise MemoryBudgetError(_refusal(job, limits.budget, limits.note))
    partition = Partition(job.info.segments, block_rows, shard_rows(job.info, block_rows))
    n_shards = len(partition.shards())
    most = min(limits.workers, n_shards)
    count = next((each for each in range(most, 1, -1) if job.peak(block_rows, each) <= limits.budget), 1)
    return Layout(block_rows, partition.shard_rows, n_shards, count, job.stages(block_rows, count))


def reasons_of(job: Projection, layout: Layout, limits: Limits) -> list[str]:
    """Say what the layout costs, where it costs something."""
    reasons = []
    decodes = chunk_reads(job.info, layout.block_rows)
    if decodes > 1:
        reasons.append(f"a stored chunk ({job.info.chunk_rows:,} rows) is taller than a block that fits: each is decoded {decodes} times")
    if layout.workers < limits.workers:
        reasons.append(f"{layout.workers} of {limits.workers} possible workers are used: the data or the budget allows no more")
    return reasons


def _refusal(job: Projection, budget: int, note: str = "") -> str:
    """Say which stage does not fit, its bytes, and what would."""
    info, stages = job.info, job.stages(lowest_block(job.info))
    worst = max(stages, key=lambda stage: stage.peak_memory)
    parts = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in worst.memory.items())
    enough = math.ceil(worst.peak_memory / MIB) + _SLACK
    message = (
        f"a memory budget of {format_bytes(budget)}{f' ({note})' if note else ''} cannot hold stage '{worst.name}' "
        f"of {info.n_rows:,} x {info.n_features:,} data: "
        f"it needs at least {format_bytes(worst.peak_memory)} ({parts}). Give a memory of {enough}MiB or more"
    )
    if note:
        message += f", to workers that have more (dask worker --memory-limit {math.ceil(enough / 0.8)}MiB)"
    if budget <= worst.memory["process"]:
        return message + "; the process alone, with its libraries, takes more than this budget"
    return message + job.remedy(budget)
