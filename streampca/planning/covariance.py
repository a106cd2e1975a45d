"""The plan of the one-pass covariance: d x d sums in memory, rows streamed past them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streampca.blocks import Partition
from streampca.engine import live_states
from streampca.errors import MemoryBudgetError
from streampca.memory import MIB, format_bytes
from streampca.planning.layout import PROCESS_OVERHEAD, TASK_OVERHEAD, block_choices, chunk_reads, lowest_block, read_bytes, shard_rows
from streampca.planning.plans import PassPlan, Plan
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import Precision, state_bytes, workspace_bytes

FLOAT32_ROWS = 2**17  # from here on the rounding of float32 products averages out below 1e-8
FULL_SPECTRUM_LIMIT = 2000  # up to this width all eigenpairs are computed, which is fast and most accurate


@dataclass(frozen=True)
class Request:
    """What is asked for, as far as memory is concerned."""

    n_components: int | float | str | None
    precision: Literal["auto", "float32", "float64"] = "auto"


@dataclass(frozen=True)
class _Projection:
    """The memory of a job as a function of what is still to be chosen: the height of a block and the number of workers."""

    info: SourceInfo
    request: Request
    precision: Precision
    baseline: int

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the stages with their memory."""
        return self._fold(block_rows, workers), self._solve()

    def peak(self, block_rows: int, workers: int = 1) -> int:
        """Return the largest memory of all stages."""
        return max(stage.peak_memory for stage in self.stages(block_rows, workers))

    def _fold(self, block_rows: int, workers: int) -> PassPlan:
        d = self.info.n_features
        memory = {
            "process": self.baseline + PROCESS_OVERHEAD,
            "blocks": workers * (read_bytes(self.info, block_rows) + TASK_OVERHEAD),
            "products": workers * workspace_bytes(d, "float64" if self.request.precision == "auto" else self.precision),
            "sums": live_states(workers, state_bytes(d)) * state_bytes(d),
        }
        return PassPlan("scatter", self.info.bytes_decoded, memory)

    def _solve(self) -> PassPlan:
        """Count the sums, their copy that LAPACK overwrites, its workspace, and the eigenvectors."""
        d, kept = self.info.n_features, kept_vectors(self.info.n_features, self.request.n_components)
        workspace = 8 * (2 * d * d + 8 * d) if kept == d else 8 * 30 * d
        memory = {
            "process": self.baseline + PROCESS_OVERHEAD,
            "sums": state_bytes(d),
            "eigenvectors": 8 * d * d + 2 * 8 * d * kept + workspace,
        }
        return PassPlan("eigenvectors", 0, memory)


def plan_covariance(info: SourceInfo, request: Request, *, budget: int, workers: int, baseline: int) -> Plan:
    """Return the plan, or refuse a budget that cannot hold it."""
    job = _Projection(info, request, choose_precision(info, request.precision), baseline)
    block_rows = next((rows for rows in block_choices(info) if job.peak(rows) <= budget), None)
    if block_rows is None:
        raise MemoryBudgetError(_refusal(job, budget))
    partition = Partition(info.segments, block_rows, shard_rows(info, block_rows))
    n_shards = len(partition.shards())
    count = next((each for each in range(min(workers, n_shards), 1, -1) if job.peak(block_rows, each) <= budget), 1)
    return Plan(
        method="pca",
        solver="covariance",
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision=job.precision,
        block_rows=block_rows,
        shard_rows=partition.shard_rows,
        n_shards=n_shards,
        workers=count,
        budget=budget,
        stages=job.stages(block_rows, count),
        reasons=_reasons(job, block_rows, count, workers),
    )


def choose_precision(info: SourceInfo, wanted: Literal["auto", "float32", "float64"]) -> Precision:
    """Return the precision of the products: float32 only for many rows of narrow data."""
    if wanted != "auto":
        return wanted
    return "float32" if np.can_cast(info.dtype, np.float32) and info.n_rows >= FLOAT32_ROWS else "float64"


def kept_vectors(n_features: int, n_components: int | float | str | None) -> int:
    """Return how many eigenvectors are computed: the wanted ones of a wide matrix, else all."""
    if isinstance(n_components, int) and n_features > FULL_SPECTRUM_LIMIT and n_components <= n_features // 2:
        return n_components
    return n_features


def _reasons(job: _Projection, block_rows: int, count: int, workers: int) -> tuple[str, ...]:
    info = job.info
    sums = format_bytes(state_bytes(info.n_features))
    reasons = [f"the {info.n_features:,} x {info.n_features:,} sums ({sums} each) fit the budget, and one pass is exact"]
    if job.precision == "float32" and job.request.precision == "auto":
        reasons.append("float32 products are exact to 1e-6 for all but very steep spectra, where the pass is repeated in float64")
    decodes = chunk_reads(info, block_rows)
    if decodes > 1:
        reasons.append(f"a stored chunk ({info.chunk_rows:,} rows) is taller than a block that fits: each is decoded {decodes} times")
    if count < workers:
        reasons.append(f"{count} of {workers} possible workers are used: the data or the budget allows no more")
    return tuple(reasons)


def _columns_that_fit(job: _Projection, budget: int) -> int:
    """Return the largest number of columns, fewer than there are, that the budget holds; 0 if not even one."""
    fits, too_many = 0, job.info.n_features
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        narrow = replace(job, info=replace(job.info, n_features=middle))
        if narrow.peak(lowest_block(narrow.info)) <= budget:
            fits = middle
        else:
            too_many = middle
    return fits


def _refusal(job: _Projection, budget: int) -> str:
    """Say which stage does not fit, its bytes, and what would."""
    info, stages = job.info, job.stages(lowest_block(job.info))
    worst = max(stages, key=lambda stage: stage.peak_memory)
    parts = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in worst.memory.items())
    enough = math.ceil(worst.peak_memory / MIB)
    message = (
        f"a memory budget of {format_bytes(budget)} cannot hold stage '{worst.name}' of {info.n_rows:,} x {info.n_features:,} data: "
        f"it needs at least {format_bytes(worst.peak_memory)} ({parts}). Give a memory of {enough}MiB or more"
    )
    if budget <= worst.memory["process"]:
        return message + "; the process alone, with its libraries, takes more than this budget"
    columns = _columns_that_fit(job, budget)
    return message + (f", or select at most about {columns:,} columns" if columns else "")
