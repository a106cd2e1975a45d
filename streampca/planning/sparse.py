"""The plan of sparse PCA: the one pass of the covariance, or the few of a sketch, and the memory of the regressions after it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streampca.errors import MemoryBudgetError
from streampca.planning.choice import WIDE
from streampca.planning.covariance import CovarianceProjection, Request, choose_precision, covariance_plan
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits, Projection, layout_of
from streampca.planning.sketch import plan_sketch
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import state_bytes

MOST = 2_000  # columns of a regression at once, where there is no covariance
_MATRICES = 8  # d x d: eigenvectors and LAPACK's workspace, later the covariance, with the ridge, its root, and a copy


@dataclass(frozen=True)
class SparseProjection(CovarianceProjection):
    """The pass of the scatter matrix, and elastic nets on it."""

    def _solve(self) -> PassPlan:
        d, k = self.info.n_features, self.request.n_components
        kept = k if isinstance(k, int) else d
        return self.small("elastic nets", 40.0 * d**3, sums=state_bytes(d), regressions=8 * d * (_MATRICES * d + 10 * kept + 64))


def plan_sparse(info: SourceInfo, n_components: int | None, limits: Limits, *, standardize: bool = False) -> Plan:
    """Return the plan: from the covariance where it fits, else from its leading directions; or refuse a budget that holds neither."""
    request = Request(n_components, "auto", standardize)
    if n_components is not None and info.n_features > WIDE:
        return _from_directions(info, n_components, limits, standardize, "elastic nets on all columns take longer than a few passes")
    try:
        plan = covariance_plan(SparseProjection(info, limits.baseline, request, choose_precision(info, "auto")), limits)
    except MemoryBudgetError as refusal:
        if n_components is None:
            raise MemoryBudgetError(f"{refusal}; with n_components given, the leading directions of the data need less") from None
        d = info.n_features
        return _from_directions(info, n_components, limits, standardize, f"the {d:,} x {d:,} sums of a covariance do not fit the budget")
    return replace(plan, method="spca")


def _from_directions(info: SourceInfo, k: int, limits: Limits, standardize: bool, reason: str) -> Plan:
    """Return the plan of a sketch, and of regressions on what it tells of the covariance."""
    directions = min(directions_for(k), info.n_rows, info.n_features)
    plan = replace(plan_sketch(info, Request(directions, "auto", standardize), limits), max_passes=None)
    nets = WideNets(info, limits.baseline, k, directions)
    layout_of(nets, limits)  # refuses a budget that does not hold it
    why = f"the covariance is taken as {directions} directions and a mean variance of all others"
    return replace(
        plan,
        method="spca",
        n_components=k,
        stages=(*plan.stages, *nets.stages(plan.block_rows)),
        reasons=(reason, why, *plan.reasons),
    )


@dataclass(frozen=True)
class WideNets(Projection):
    """Elastic nets on the columns that matter, with the directions in memory."""

    components: int
    directions: int

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the one stage."""
        d, k = self.info.n_features, self.components
        columns = min(MOST, d)
        regressions = 8 * (16 * d * k + 6 * columns**2)
        return (self.small("elastic nets", 2e3 * d * k * self.directions, directions=2 * 8 * d * self.directions, regressions=regressions),)


def directions_for(k: int) -> int:
    """Return how many directions stand for the covariance of k sparse components.

    >>> directions_for(5), directions_for(40)
    (25, 80)
    """
    return max(2 * k, k + 20)
