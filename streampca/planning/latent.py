"""The plans of probabilistic PCA and factor analysis: from the covariance in one pass where it fits, else in a few or many passes.

Whether entries are missing is not known before the data is read: where they may be, the memory of that case is reserved too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from streampca.errors import MemoryBudgetError
from streampca.planning.choice import WIDE
from streampca.planning.covariance import CovarianceProjection, Request
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Layout, Limits, Projection, layout_of, reasons_of
from streampca.planning.scores import plan_scores
from streampca.planning.sketch import sketch_precision
from streampca.sources.base import SourceInfo
from streampca.statistics import missing, moments, products, sketch
from streampca.statistics.observed import ObservedMoments
from streampca.statistics.scatter import Precision, state_bytes

EXTRA = 10  # columns of a subspace beyond the components: they make the last components converge as fast as the first
BLOCKS = 3  # of so many columns that are kept, with their products
REFINE = 3  # products after the sketch: as a rule W W^T is then exact to 1e-6
_ITERATIONS = 12  # of EM, as a rule
_PANEL_BYTES = 2**24  # of the regressions that end an EM pass
IF_MISSING = " (if entries are missing)"


@dataclass(frozen=True)
class LatentRequest:
    """What is asked for, as far as passes and memory are concerned."""

    method: str  # "ppca" or "fa"
    n_components: int
    how: str = "auto"  # or "closed-form" or "em"
    max_iter: int = 100
    may_be_missing: bool = True

    @property
    def width(self) -> int:
        """Columns of a block of a subspace."""
        return self.n_components + EXTRA


# -------------------------------------------------------------------------------------------- what each way costs


@dataclass(frozen=True)
class MatrixProjection(Projection):
    """One pass of the scatter matrix, and the maximum of the likelihood in memory."""

    request: LatentRequest

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the pass and what follows."""
        d, r = self.info.n_features, self.request.n_components
        fold, eigenvectors = CovarianceProjection(self.info, self.baseline, Request(r, "float64"), "float64").stages(block_rows, workers)
        if self.request.method == "fa":  # tens of eigenproblems of a scaled copy
            return fold, self.small("noise", 40.0 * 4 * d**3, sums=state_bytes(d), matrices=7 * 8 * d * d, vectors=8 * d * (4 * r + 100))
        if self.request.how != "em":
            return fold, eigenvectors
        thin = subspace_bytes(d, r, min(self.request.width, d))
        return fold, self.small("subspace", 20.0 * d * d * self.request.width, sums=state_bytes(d), covariance=2 * 8 * d * d, subspace=thin)


@dataclass(frozen=True)
class SubspaceProjection(Projection):
    """A pass of the sketch, and passes of products, between which the likelihood is maximised within a subspace."""

    request: LatentRequest
    rank: int
    precision: Precision

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return all passes, and what is done between them."""
        d, r, rank = self.info.n_features, self.request.n_components, self.rank
        first = self.fold(
            "sketch",
            block_rows,
            workers,
            state=sketch.state_bytes(d, rank, self.precision),
            workspace=sketch.workspace_bytes(d, rank, self.precision),
            flops_per_row=8.0 * rank * d,
        )
        columns = max(rank, self.request.width)
        refine = self.fold(
            "products",
            block_rows,
            workers,
            state=products.state_bytes(d, columns),
            workspace=products.workspace_bytes(d, columns, "float64"),
            flops_per_row=4.0 * columns * d,
            basis=2 * 8 * d * columns,
            subspace=2 * 8 * d * _most_columns(r, rank),
        )
        between = self.small("subspace", subspace=subspace_bytes(d, r, rank), sums=3 * products.state_bytes(d, columns))
        return first, repeated(refine, min(REFINE, self.request.max_iter)), between

    def remedy(self, budget: int) -> str:
        """Say what takes less."""
        return ", or ask for fewer components"


@dataclass(frozen=True)
class FactorPasses(Projection):
    """A pass for the variances of the columns, then one of products per iteration of EM."""

    request: LatentRequest

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the passes."""
        d, r = self.info.n_features, self.request.n_components
        first = self.fold(
            "moments", block_rows, workers, state=moments.state_bytes(d), workspace=moments.workspace_bytes(d), flops_per_row=4.0 * d
        )
        step = self.fold(
            "products",
            block_rows,
            workers,
            state=products.state_bytes(d, r),
            workspace=products.workspace_bytes(d, r, "float64"),
            flops_per_row=4.0 * r * d,
            factors=8 * 8 * d * (r + 2),
        )
        return first, repeated(step, min(_ITERATIONS, self.request.max_iter) + 1)


@dataclass(frozen=True)
class MissingProjection(Projection):
    """A pass for the moments of what is observed, then one per iteration of EM."""

    request: LatentRequest

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the passes, and the regressions between them."""
        d, r = self.info.n_features, self.request.n_components
        observed = ObservedMoments(d)
        first = self.fold(
            "moments", block_rows, workers, state=observed.nbytes, workspace=observed.workspace(block_rows), flops_per_row=6.0 * d
        )
        state, parameters = missing.state_bytes(d, r), 8 * d * (3 * r + 6)
        step = self.fold(
            "em",
            block_rows,
            workers,
            state=state,
            workspace=missing.workspace_bytes(d, r),
            flops_per_row=2.0 * d * (r + 1) * (r + 2),
            parameters=parameters,
        )
        panel = min(_PANEL_BYTES, 8 * d * (r + 1) ** 2)
        between = self.small("regressions", sums=state, regressions=5 * panel + 8 * d * (4 * r + 16), parameters=3 * parameters)
        return first, repeated(step, min(_ITERATIONS, self.request.max_iter) + 1), between


@dataclass(frozen=True)
class WithReserve(Projection):
    """A way for complete data, and the memory of another one in case that entries are missing."""

    complete: Projection
    reserve: Projection

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the stages of the first; those of the other read nothing unless they are needed."""
        rest = (
            replace(stage, name=stage.name + IF_MISSING, bytes_read=0, flops=0.0, times=1)
            for stage in self.reserve.stages(block_rows, workers)
        )
        return (*self.complete.stages(block_rows, workers), *rest)

    def remedy(self, budget: int) -> str:
        """Say what the first would."""
        return self.complete.remedy(budget)


def repeated(stage: PassPlan, times: int) -> PassPlan:
    """Return so many passes of a kind as one stage."""
    return replace(stage, bytes_read=times * stage.bytes_read, flops=times * stage.flops, times=times)


def subspace_bytes(n_features: int, n_components: int, first: int) -> int:
    """Return what the subspace method holds at once: bases and their products, old and new, residuals, small matrices."""
    most = min(_most_columns(n_components, first), n_features)
    width = min(n_components + EXTRA, n_features)
    return 8 * (n_features * (4 * most + 8 * width) + 12 * most * most)


def _most_columns(n_components: int, first: int) -> int:
    return max(first, (BLOCKS + 1) * (n_components + EXTRA))


# ----------------------------------------------------------------------------------------------------- the choice


def plan_latent(info: SourceInfo, request: LatentRequest, limits: Limits, *, scores: bool = False) -> Plan:
    """Return the plan: from the covariance where it fits the budget, else by passes; or refuse a budget that holds neither."""
    refusals = []
    for solver, job, reasons in _ways(info, request, limits.baseline):
        try:
            layout = layout_of(job, limits)
        except MemoryBudgetError as error:
            refusals.append(error)
            continue
        plan = _plan(solver, job, layout, request, limits, reasons)
        complete = job.complete if isinstance(job, WithReserve) else job
        kept = state_bytes(info.n_features) if isinstance(complete, MatrixProjection) else 0
        return _with_scores(plan, info, request, limits, kept) if scores else plan
    raise refusals[-1]


def plan_missing(info: SourceInfo, request: LatentRequest, limits: Limits) -> Plan:
    """Return the plan for data of which it is known that entries are missing."""
    job = MissingProjection(info, limits.baseline, request)
    return _plan("em-missing", job, layout_of(job, limits), request, limits, ())


def _ways(info: SourceInfo, request: LatentRequest, baseline: int) -> Iterator[tuple[str, Projection, tuple[str, ...]]]:
    """Yield solvers with what they cost and why they are taken, the best first."""
    reserve = MissingProjection(info, baseline, request) if request.may_be_missing and request.how != "closed-form" else None
    for solver, job, reasons in _complete_ways(info, request, baseline):
        if reserve is None:
            yield solver, job, reasons
            continue
        words = "if there are missing entries, EM takes one pass per iteration; its memory is reserved"
        yield solver, WithReserve(info, baseline, job, reserve), (*reasons, words)
        yield solver, job, (*reasons, "the budget does not hold EM with missing entries: if there are any, the fit is refused")


def _complete_ways(info: SourceInfo, request: LatentRequest, baseline: int) -> Iterator[tuple[str, Projection, tuple[str, ...]]]:
    d, r = info.n_features, request.n_components
    if d <= WIDE or 20 * r > d:
        name = "profile" if request.method == "fa" else "em" if request.how == "em" else "closed-form"
        reason = f"the {d:,} x {d:,} sums fit the budget: one pass tells all that the likelihood depends on"
        yield name, MatrixProjection(info, baseline, request), (reason,)
        why = f"the {d:,} x {d:,} sums of a covariance do not fit the budget"
    else:
        why = f"the eigenvectors of a {d:,}-column covariance take longer than a few passes"
    if request.method == "fa":
        yield "em", FactorPasses(info, baseline, request), (why, "one pass per iteration of EM, ten or so as a rule")
        return
    precision = sketch_precision(info, Request(r))
    for rank in _ranks(info, request):
        reason = f"a sketch of {rank} directions, then the likelihood is maximised within a subspace that every pass widens"
        yield "subspace", SubspaceProjection(info, baseline, request, rank, precision), (why, reason)


def _ranks(info: SourceInfo, request: LatentRequest) -> list[int]:
    """Return how many directions the sketch may keep, the best number first."""
    limit = min(info.n_rows, info.n_features)
    return sorted({min(times * request.width, limit) for times in (3, 2, 1)}, reverse=True)


def _plan(solver: str, job: Projection, layout: Layout, request: LatentRequest, limits: Limits, reasons: tuple[str, ...]) -> Plan:
    info, complete = job.info, job.complete if isinstance(job, WithReserve) else job
    most = 0 if isinstance(complete, MatrixProjection) else 1 + request.max_iter + (request.method == "fa")
    if isinstance(job, WithReserve | MissingProjection):
        most = 2 + request.max_iter + (most if isinstance(job, WithReserve) else 0)
    return Plan(
        method=request.method,
        solver=solver,
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision="float64",
        block_rows=layout.block_rows,
        shard_rows=layout.shard_rows,
        n_shards=layout.n_shards,
        workers=layout.workers,
        budget=limits.budget,
        stages=layout.stages,
        reasons=(*reasons, *reasons_of(job, layout, limits)),
        rank=complete.rank if isinstance(complete, SubspaceProjection) else None,
        max_passes=most or None,
    )


def _with_scores(plan: Plan, info: SourceInfo, request: LatentRequest, limits: Limits, kept: int) -> Plan:
    """Return the plan with a pass that writes the scores; ``kept`` are the bytes of the sums that the fit keeps."""
    r = request.n_components
    held = transform_bytes(info.n_features, r, limits.workers) + kept
    stage = plan_scores(info, r, budget=limits.budget, workers=limits.workers, baseline=limits.baseline + held).stage
    return replace(plan, stages=(*plan.stages, stage))


def transform_bytes(n_features: int, n_components: int, workers: int) -> int:
    """Return what posteriors of rows with missing entries need beside the rows and their scores."""
    return workers * missing.workspace_bytes(n_features, n_components)


def holds_missing(plan: Plan) -> bool:
    """Return whether a plan has memory for EM with missing entries."""
    return any(stage.name.endswith(IF_MISSING) for stage in plan.stages) or plan.solver == "em-missing"


def float_data(info: SourceInfo) -> bool:
    """Return whether entries may be NaN."""
    return bool(np.issubdtype(info.dtype, np.floating))
