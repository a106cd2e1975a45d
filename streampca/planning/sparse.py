"""The plan of sparse PCA: the one pass of the covariance, and the memory of the regressions on it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streampca.planning.covariance import CovarianceProjection, Request, choose_precision, covariance_plan
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import state_bytes

_MATRICES = 8  # d x d: eigenvectors and LAPACK's workspace, later the covariance, with the ridge, its root, and a copy


@dataclass(frozen=True)
class SparseProjection(CovarianceProjection):
    """The pass of the scatter matrix, and elastic nets on it."""

    def _solve(self) -> PassPlan:
        d, k = self.info.n_features, self.request.n_components
        kept = k if isinstance(k, int) else d
        return self.small("elastic nets", 40.0 * d**3, sums=state_bytes(d), regressions=8 * d * (_MATRICES * d + 10 * kept + 64))


def plan_sparse(info: SourceInfo, n_components: int | None, limits: Limits, *, standardize: bool = False) -> Plan:
    """Return the plan, or refuse a budget that cannot hold it."""
    request = Request(n_components, "auto", standardize)
    plan = covariance_plan(SparseProjection(info, limits.baseline, request, choose_precision(info, "auto")), limits)
    return replace(plan, method="spca")
