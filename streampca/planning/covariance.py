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
from streampca.planning.layout import PROCESS_OVERHEAD, TASK_OVERHEAD, block_choices, chunk_reads, read_bytes, shard_rows
from streampca.planning.plan import PassPlan, Plan
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import Precision, state_bytes, workspace_bytes

FLOAT32_ROWS = 2**17  # from here on the rounding of float32 products averages out below 1e-8
FULL_SPECTRUM_LIMIT = 2000  # up to this width all eigenpairs are computed, which is fast and most accurate


@dataclass(frozen=True)
class Request:
    """What is asked for, as far as memory is concerned."""

    n_components: int | float | str | None
    precision: Literal["auto", "float32", "float64"] = "auto"


def plan_covariance(info: SourceInfo, request: Request, *, budget: int, workers: int, baseline: int) -> Plan:
    """Return the plan, or refuse a budget that cannot hold it."""
    precision = choose_precision(info, request.precision)
    choices = list(block_choices(info))
    for block_rows in choices:
        stages = _stages(info, request, precision, block_rows, 1, baseline)
        if _peak(stages) <= budget:
            break
    else:
        raise MemoryBudgetError(_refusal(info, stages, budget, _columns_that_fit(info, request, precision, budget, baseline)))
    partition = Partition(info.segments, block_rows, shard_rows(info, block_rows))
    n_shards = len(partition.shards())
    count = _affordable(info, request, precision, block_rows, min(workers, n_shards), baseline, budget)
    return Plan(
        method="pca",
        solver="covariance",
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision=precision,
        block_rows=block_rows,
        shard_rows=partition.shard_rows,
        n_shards=n_shards,
        workers=count,
        budget=budget,
        stages=_stages(info, request, precision, block_rows, count, baseline),
        reasons=_reasons(info, request, precision, block_rows, count, workers),
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


def _affordable(info: SourceInfo, request: Request, precision: Precision, block_rows: int, workers: int, baseline: int, budget: int) -> int:
    """Return the largest number of workers, up to ``workers``, that fits the budget."""
    for count in range(workers, 1, -1):
        if _peak(_stages(info, request, precision, block_rows, count, baseline)) <= budget:
            return count
    return 1


def _stages(info: SourceInfo, request: Request, precision: Precision, block_rows: int, workers: int, baseline: int) -> tuple[PassPlan, ...]:
    return _fold_stage(info, request, precision, block_rows, workers, baseline), _solve_stage(info, request, baseline)


def _fold_stage(info: SourceInfo, request: Request, precision: Precision, block_rows: int, workers: int, baseline: int) -> PassPlan:
    memory = {
        "process": baseline + PROCESS_OVERHEAD,
        "blocks": workers * (read_bytes(info, block_rows) + TASK_OVERHEAD),
        "products": workers * workspace_bytes(info.n_features, "float64" if request.precision == "auto" else precision),
        "sums": live_states(workers) * state_bytes(info.n_features),
    }
    return PassPlan("scatter", info.bytes_decoded, memory)


def _solve_stage(info: SourceInfo, request: Request, baseline: int) -> PassPlan:
    """Count the sums, their copy that LAPACK overwrites, its workspace, and the eigenvectors."""
    d, kept = info.n_features, kept_vectors(info.n_features, request.n_components)
    workspace = 8 * (2 * d * d + 8 * d) if kept == d else 8 * 30 * d
    memory = {
        "process": baseline + PROCESS_OVERHEAD,
        "sums": state_bytes(d),
        "eigenvectors": 8 * d * d + 2 * 8 * d * kept + workspace,
    }
    return PassPlan("eigenvectors", 0, memory)


def _peak(stages: tuple[PassPlan, ...]) -> int:
    return max(stage.peak_memory for stage in stages)


def _reasons(info: SourceInfo, request: Request, precision: Precision, block_rows: int, count: int, workers: int) -> tuple[str, ...]:
    sums = format_bytes(state_bytes(info.n_features))
    reasons = [f"the {info.n_features:,} x {info.n_features:,} sums ({sums} each) fit the budget, and one pass is exact"]
    if precision == "float32" and request.precision == "auto":
        reasons.append("float32 products are exact to 1e-6 for all but very steep spectra, where the pass is repeated in float64")
    decodes = chunk_reads(info, block_rows)
    if decodes > 1:
        reasons.append(f"a stored chunk ({info.chunk_rows:,} rows) is taller than a block that fits: each is decoded {decodes} times")
    if count < workers:
        reasons.append(f"{count} of {workers} possible workers are used: the data or the budget allows no more")
    return tuple(reasons)


def _columns_that_fit(info: SourceInfo, request: Request, precision: Precision, budget: int, baseline: int) -> int:
    """Return the largest number of columns, fewer than there are, that the budget holds; 0 if not even one."""
    fits, too_many = 0, info.n_features
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        narrow = replace(info, n_features=middle)
        lowest = list(block_choices(narrow))[-1]
        if _peak(_stages(narrow, request, precision, lowest, 1, baseline)) <= budget:
            fits = middle
        else:
            too_many = middle
    return fits


def _refusal(info: SourceInfo, stages: tuple[PassPlan, ...], budget: int, columns: int) -> str:
    """Say which stage does not fit, its bytes, and what would."""
    worst = max(stages, key=lambda stage: stage.peak_memory)
    parts = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in worst.memory.items())
    enough = math.ceil(worst.peak_memory / MIB)
    message = (
        f"a memory budget of {format_bytes(budget)} cannot hold stage '{worst.name}' of {info.n_rows:,} x {info.n_features:,} data: "
        f"it needs at least {format_bytes(worst.peak_memory)} ({parts}). Give a memory of {enough}MiB or more"
    )
    if budget <= worst.memory["process"]:
        return message + "; the process alone, with its libraries, takes more than this budget"
    return message + (f", or select at most about {columns:,} columns" if columns else "")
