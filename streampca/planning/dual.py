"""The plan of the dual: n x n products of few, long rows, read as slabs of columns."""

from __future__ import annotations

from dataclasses import dataclass

from streampca.errors import UsageError
from streampca.planning.covariance import Request, choose_precision
from streampca.planning.layout import TASK_OVERHEAD
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits, Projection, layout_of, reasons_of
from streampca.sources.base import SourceInfo
from streampca.statistics.gram import state_bytes, workspace_bytes
from streampca.statistics.scatter import Precision

MOST_ROWS = 20_000  # beyond, the n x n eigenproblem takes longer than more passes


@dataclass(frozen=True)
class DualProjection(Projection):
    """One pass for the n x n products, one for the components. ``info`` is that of the transposed table."""

    components: int
    precision: Precision

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return both passes and the eigenproblem between them."""
        d, n, k = self.info.n_rows, self.info.n_features, self.components
        gram = self.fold(
            "gram",
            block_rows,
            workers,
            state=state_bytes(n),
            workspace=workspace_bytes(n, self.precision),
            flops_per_row=float(n) * n,
        )
        solve = self.small("eigenvectors", 4.0 * n**3, sums=state_bytes(n), eigenvectors=8 * (3 * n * n + 2 * n * k))
        loadings = self.fold(
            "components",
            block_rows,
            workers,
            state=0,
            workspace=8 * block_rows * (n + 2 * (k + 2)),
            flops_per_row=2.0 * n * k,
            eigenvectors=8 * (2 * n * n + 2 * n * k),
            components=8 * d * (k + 2),
        )
        threads = workers * TASK_OVERHEAD  # what BLAS keeps for those that have called it
        finish = self.small("model", 4.0 * d * k * k, threads=threads, eigenvectors=8 * (2 * n * n), components=8 * d * (3 * k + 8))
        return gram, solve, loadings, finish


def plan_dual(info: SourceInfo, turned: SourceInfo | None, request: Request, limits: Limits) -> Plan:
    """Return the plan, or refuse data that it is not meant for."""
    if info.n_rows > info.n_features or info.n_rows > MOST_ROWS:
        raise UsageError(
            f"solver='dual' is for few, long rows (n_samples <= n_features and at most {MOST_ROWS:,}), "
            f"not {info.n_rows:,} x {info.n_features:,}: use solver='covariance', or 'sketch' if there are many features"
        )
    if turned is None:
        raise UsageError(f"solver='dual' reads slabs of columns, which {info.description or 'this input'} cannot give: use solver='sketch'")
    job = dual_job(turned, request, limits)
    layout = layout_of(job, limits)
    return Plan(
        method="pca",
        solver="dual",
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision=job.precision,
        block_rows=layout.block_rows,
        shard_rows=layout.shard_rows,
        n_shards=layout.n_shards,
        workers=layout.workers,
        budget=limits.budget,
        stages=layout.stages,
        reasons=(
            f"rows are few: their {info.n_rows:,} x {info.n_rows:,} products are exact, and less than those of {info.n_features:,} columns",
            *reasons_of(job, layout, limits),
        ),
        by_columns=True,
    )


def dual_job(turned: SourceInfo, request: Request, limits: Limits) -> DualProjection:
    """Return the projection of a transposed table."""
    n = turned.n_features
    k = request.n_components if isinstance(request.n_components, int) else n
    return DualProjection(turned, limits.baseline, min(k, n), choose_precision(turned, request.precision))
