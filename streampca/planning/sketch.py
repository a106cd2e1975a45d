"""The plan of the sketch: a few directions of a wide table in memory, two or three passes over its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import MemoryBudgetError, UsageError
from streampca.planning.covariance import Request
from streampca.planning.criteria import WHITE, WHOLE
from streampca.planning.layout import TASK_OVERHEAD
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Layout, Limits, Projection, layout_of, reasons_of
from streampca.sources.base import SourceInfo
from streampca.statistics import moments, products, sketch
from streampca.statistics.scatter import Precision

TIGHT = 1e-4  # a tol below needs a third pass, and more directions to get there
MAX_PASSES = 8
_FRACTION_RANK = 256  # directions kept when a fraction of variance or a criterion is asked for, and nobody knows how many that takes
_GROWTHS = 2  # times that they may be doubled, if they turn out too few: each takes a pass of the sketch and one of products


@dataclass(frozen=True)
class SketchProjection(Projection):
    """A pass of the sketch (after one of moments, if standardised), and passes of products."""

    rank: int
    components: int
    precision: Precision
    sums: Precision
    standardize: bool
    refinements: int

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return all passes and the small problem after each."""
        d, rank = self.info.n_features, self.rank
        kept = sketch.state_bytes(d, rank, self.precision)
        basis = d * rank * np.dtype(self.precision).itemsize
        first = self.fold(
            "sketch",
            block_rows,
            workers,
            state=kept,
            workspace=sketch.workspace_bytes(d, rank, self.precision),
            flops_per_row=8.0 * rank * d,
        )
        state = products.state_bytes(d, rank, self.sums)
        refine = [
            self.fold(
                f"products-{number}",
                block_rows,
                workers,
                state=state,
                workspace=products.workspace_bytes(d, rank, self.precision),
                flops_per_row=4.0 * rank * d,
                sketch=kept,
                basis=basis,
            )
            for number in range(2, 2 + self.refinements)
        ]
        vectors = 8 * d * (3 * self.components + 6) + 12 * 8 * rank * rank
        threads = workers * TASK_OVERHEAD  # what BLAS keeps for those that have called it
        solve = self.small(
            "eigenvectors", 12.0 * d * rank**2, threads=threads, sketch=kept, basis=2 * basis, products=state, eigenvectors=vectors
        )
        return (*self._moments(block_rows, workers), first, *refine, solve)

    def _moments(self, block_rows: int, workers: int) -> Iterator[PassPlan]:
        if self.standardize:
            d = self.info.n_features
            workspace = moments.workspace_bytes(d)
            yield self.fold("moments", block_rows, workers, state=moments.state_bytes(d), workspace=workspace, flops_per_row=4.0 * d)

    def remedy(self, budget: int) -> str:
        """Say what takes less."""
        return ", or ask for fewer components" if self.components > 1 else ""


def plan_sketch(info: SourceInfo, request: Request, limits: Limits) -> Plan:
    """Return the plan with the most directions that the budget holds, or refuse a budget that does not hold enough."""
    if request.n_components in WHOLE:
        raise UsageError(
            f"n_components={request.n_components!r} needs all variances, and a sketch finds the leading ones: use solver='covariance' or "
            "'tsqr', or 'bic', which needs only the sum of the others"
        )
    job, layout = _largest(info, request, limits)
    grown = _grown(job, request, layout, limits)
    wanted = ranks(info, request)[0]
    reasons = [f"a sketch of {job.rank} directions needs {2 + request.standardize} passes or a few more; the plan for tol={request.tol:g}"]
    if job.rank < wanted:
        reasons.append(f"{wanted} directions would be better, but the budget holds {job.rank}")
    if grown:
        reasons.append(
            f"if n_components={request.n_components!r} turns out to need more than {job.rank} directions, the sketch grows, to at most "
            f"{grown[-1].rank}: {2 * len(grown)} passes more"
        )
    if request.n_components in WHITE:
        reasons.append("the noise is estimated from the exact sum of the variances that the sketch does not find")
    if request.standardize:
        reasons.append("the standard deviations are needed before the sketch: one pass more")
    if job.sums == "float32":
        reasons.append("sums in float32 halve the memory; they keep 1e-6 of the variances")
    return Plan(
        method="pca",
        solver="sketch",
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision=job.precision,
        block_rows=layout.block_rows,
        shard_rows=layout.shard_rows,
        n_shards=layout.n_shards,
        workers=layout.workers,
        budget=limits.budget,
        stages=_with_memory_of(grown[-1], layout) if grown else layout.stages,
        reasons=(*reasons, *reasons_of(job, layout, limits)),
        rank=job.rank,
        max_rank=grown[-1].rank if grown else None,
        sums=job.sums,
        max_passes=MAX_PASSES + request.standardize + 2 * len(grown),
    )


def ranks(info: SourceInfo, request: Request) -> list[int]:
    """Return how many directions to keep, the best number first, then what may do.

    >>> from streampca.blocks import Segment
    >>> info = SourceInfo(9000, 9000, np.dtype("f4"), (Segment(0, 9000),), 1, "")
    >>> ranks(info, Request(20))
    [60, 45, 30]
    """
    limit = min(info.n_rows, info.n_features)
    if request.n_components is None:
        return [limit]
    if not isinstance(request.n_components, int):
        return _distinct([_FRACTION_RANK, 128, 64], limit)
    k = request.n_components
    many = max(5 * k, k + 40) if request.tol < TIGHT else max(3 * k, k + 20)
    if limit <= 1.5 * many:
        many = limit  # nothing is cut off: exact
    few = k + max(k // 2, 10)
    return _distinct([many, (many + few) // 2, few], limit)


def sketch_precision(info: SourceInfo, request: Request) -> Precision:
    """Return the precision of the directions: that of the data."""
    if request.precision != "auto":
        return request.precision
    return "float32" if np.can_cast(info.dtype, np.float32) else "float64"


def _largest(info: SourceInfo, request: Request, limits: Limits) -> tuple[SketchProjection, Layout]:
    """Return the first choice that lets all workers work; else the first that fits at all."""
    fallback: tuple[SketchProjection, Layout] | None = None
    refusal: MemoryBudgetError | None = None
    for job in _choices(info, request, limits):
        try:
            layout = layout_of(job, limits)
        except MemoryBudgetError as error:
            refusal = error
            continue
        if layout.workers >= min(limits.workers, layout.n_shards):
            return job, layout
        fallback = fallback or (job, layout)
    if fallback is not None:
        return fallback
    raise refusal or UsageError("no rank fits")


def _choices(info: SourceInfo, request: Request, limits: Limits) -> Iterator[SketchProjection]:
    precision = sketch_precision(info, request)
    kinds: tuple[Precision, ...] = ("float64", "float32") if precision == "float32" else ("float64",)
    for rank in ranks(info, request):
        k = request.n_components if isinstance(request.n_components, int) else rank
        for sums in kinds:
            refinements = 2 if request.tol < TIGHT else 1
            yield SketchProjection(info, limits.baseline, rank, k, precision, sums, request.standardize, refinements)


def _grown(job: SketchProjection, request: Request, layout: Layout, limits: Limits) -> list[SketchProjection]:
    """Return larger sketches that the same layout holds, where the data decides how many components there are."""
    limit, grown = min(job.info.n_rows, job.info.n_features), [job]
    if not isinstance(request.n_components, (float, str)):
        return []
    while len(grown) <= _GROWTHS and grown[-1].rank < limit:
        rank = min(2 * grown[-1].rank, limit)
        larger = replace(job, rank=rank, components=rank)
        if larger.peak(layout.block_rows, layout.workers) > limits.budget:
            break
        grown.append(larger)
    return grown[1:]


def _with_memory_of(job: SketchProjection, layout: Layout) -> tuple[PassPlan, ...]:
    """Return the stages with the memory that they take if the sketch grows."""
    larger = job.stages(layout.block_rows, layout.workers)
    return tuple(replace(stage, memory=most.memory) for stage, most in zip(layout.stages, larger, strict=True))


def _distinct(numbers: list[int], limit: int) -> list[int]:
    return sorted({min(number, limit) for number in numbers}, reverse=True)
