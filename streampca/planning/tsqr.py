"""The plan of the tall-skinny QR: a d x d triangle in memory, rows streamed past it, nothing squared."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.errors import UsageError
from streampca.planning.covariance import Request
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits, Projection, layout_of, reasons_of
from streampca.sources.base import SourceInfo
from streampca.statistics.rfactor import state_bytes, workspace_bytes

WIDEST = 8000  # columns: beyond, the products take hours where another solver takes minutes


@dataclass(frozen=True)
class TsqrProjection(Projection):
    """One pass of the R factor, and its singular value decomposition."""

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the pass and the decomposition."""
        d = self.info.n_features
        # Products of triangles run at about a quarter of the speed of plain ones.
        fold = self.fold("rfactor", block_rows, workers, state=state_bytes(d), workspace=workspace_bytes(d), flops_per_row=8.0 * d * d)
        return fold, self.small("singular vectors", 20.0 * d**3, sums=state_bytes(d), vectors=8 * d * (8 * d + 64))


def plan_tsqr(info: SourceInfo, request: Request, limits: Limits) -> Plan:
    """Return the plan, or refuse a shape or a budget that it is not meant for."""
    if info.n_features > WIDEST:
        raise UsageError(
            f"solver='tsqr' is for tall data of at most {WIDEST:,} columns, not {info.n_features:,}: "
            "use solver='sketch', or 'dual' if rows are few"
        )
    job = TsqrProjection(info, limits.baseline)
    layout = layout_of(job, limits)
    return Plan(
        method="pca",
        solver="tsqr",
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
        reasons=("the data is never squared, so that small components keep their digits", *reasons_of(job, layout, limits)),
    )
