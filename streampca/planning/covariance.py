"""The plan of the one-pass covariance: d x d sums in memory, rows streamed past them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streampca.memory import format_bytes
from streampca.planning.criteria import HELD_OUT
from streampca.planning.layout import lowest_block
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits, Projection, layout_of, reasons_of
from streampca.sources.base import SourceInfo
from streampca.statistics import split
from streampca.statistics.scatter import Precision, state_bytes, workspace_bytes

FLOAT32_ROWS = 2**17  # from here on the rounding of float32 products averages out below 1e-8
FULL_SPECTRUM_LIMIT = 2000  # up to this width all eigenpairs are computed, which is fast and most accurate


@dataclass(frozen=True)
class Request:
    """What is asked for, as far as memory is concerned."""

    n_components: int | float | str | None
    precision: Literal["auto", "float32", "float64"] = "auto"
    standardize: bool = False
    tol: float = 1e-3


@dataclass(frozen=True)
class CovarianceProjection(Projection):
    """One pass of the scatter matrix, and its eigenvectors."""

    request: Request
    precision: Precision

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the pass and the eigenproblem."""
        d = self.info.n_features
        if self.request.n_components == HELD_OUT:
            return self._split(block_rows, workers), self._solve()
        products = "float64" if self.request.precision == "auto" else self.precision
        fold = self.fold(
            "scatter",
            block_rows,
            workers,
            state=state_bytes(d),
            workspace=workspace_bytes(d, products),
            flops_per_row=float(d) * d,
        )
        return fold, self._solve()

    def _split(self, block_rows: int, workers: int) -> PassPlan:
        """Return the pass that keeps the sums of held-out rows apart."""
        d = self.info.n_features
        workspace = split.workspace_bytes(d, "float64", block_rows, self.info.dtype.itemsize)
        return self.fold("split-scatter", block_rows, workers, state=split.state_bytes(d), workspace=workspace, flops_per_row=float(d) * d)

    def _solve(self) -> PassPlan:
        """Count the sums, their copy that LAPACK overwrites, its workspace, and the eigenvectors."""
        d, kept = self.info.n_features, kept_vectors(self.info.n_features, self.request.n_components)
        workspace = 8 * (2 * d * d + 8 * d) if kept == d else 8 * 30 * d
        vectors = 8 * d * d + 2 * 8 * d * kept + workspace
        sums = split.state_bytes(d) if self.request.n_components == HELD_OUT else state_bytes(d)
        return self.small("eigenvectors", 4.0 * d**3, sums=sums, eigenvectors=vectors)

    def remedy(self, budget: int) -> str:
        """Say how many columns would fit."""
        columns = _columns_that_fit(self, budget)
        return f", or select at most about {columns:,} columns" if columns else ""


def plan_covariance(info: SourceInfo, request: Request, limits: Limits) -> Plan:
    """Return the plan, or refuse a budget that cannot hold it."""
    return covariance_plan(CovarianceProjection(info, limits.baseline, request, choose_precision(info, request.precision)), limits)


def covariance_plan(job: CovarianceProjection, limits: Limits) -> Plan:
    """Return the plan of a job that begins with the covariance."""
    info, request = job.info, job.request
    layout = layout_of(job, limits)
    return Plan(
        method="pca",
        solver="covariance",
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
        reasons=(*_reasons(job), *reasons_of(job, layout, limits)),
    )


def choose_precision(info: SourceInfo, wanted: Literal["auto", "float32", "float64"]) -> Precision:
    """Return the precision of the products: float32 only for many rows of narrow data."""
    if wanted != "auto":
        return wanted
    narrow = np.can_cast(info.dtype, np.float32) and not info.weighted
    return "float32" if narrow and info.n_rows >= FLOAT32_ROWS else "float64"


def kept_vectors(n_features: int, n_components: int | float | str | None) -> int:
    """Return how many eigenvectors are computed: the wanted ones of a wide matrix, else all."""
    if isinstance(n_components, int) and n_features > FULL_SPECTRUM_LIMIT and n_components <= n_features // 2:
        return n_components
    return n_features


def _reasons(job: CovarianceProjection) -> list[str]:
    info = job.info
    sums = format_bytes(state_bytes(info.n_features))
    reasons = [f"the {info.n_features:,} x {info.n_features:,} sums ({sums} each) fit the budget, and one pass is exact"]
    if job.precision == "float32" and job.request.precision == "auto":
        reasons.append("float32 products are exact to 1e-6 for all but very steep spectra, where the pass is repeated in float64")
    return reasons


def _columns_that_fit(job: CovarianceProjection, budget: int) -> int:
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
