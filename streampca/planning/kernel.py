"""The plan of kernel PCA: the sample that landmarks are chosen of, the covariance of the features, or the exact kernel matrix.

Nothing is known of the data but its shape, so maps of zeros stand for those that the fit will make.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from streampca.errors import MemoryBudgetError, UsageError
from streampca.kernels import FourierMap, Kernel, KernelColumns, NystromMap
from streampca.kernels.exact import exact_bytes
from streampca.kernels.landmarks import MAX_CHUNKS, choice_bytes, sample_size
from streampca.kernels.preimage import ridge_bytes
from streampca.memory import MIB
from streampca.planning.covariance import CovarianceProjection, Request, choose_precision
from streampca.planning.layout import TASK_OVERHEAD
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Layout, Limits, Projection, layout_of, reasons_of
from streampca.planning.scores import plan_scores
from streampca.sources.base import SourceInfo
from streampca.sources.mapped import mapped_info
from streampca.sources.views import slab_bytes
from streampca.statistics.scatter import state_bytes

KernelMethod = Literal["exact", "nystrom", "fourier"]

EXACT_ROWS = 2000  # up to here "auto" is exact, in seconds
FEWEST, MOST = 500, 2000  # features by default, if there are so many rows
ERROR_ROWS = 1000  # that the error is measured on: half a million pairs
PREIMAGE_ROWS = 2000  # that the way back is learned from
_ERROR_STRIP = 256
_MEDIAN_BYTES = 3 * 8 * 1000 * 500  # distances between 1,000 rows, sorted


@dataclass(frozen=True)
class KernelRequest:
    """What is asked for: ``kernel`` may have another gamma, which no plan depends on."""

    kernel: Kernel
    n_components: int | float | str | None
    method: Literal["auto", "exact", "nystrom", "fourier"] = "auto"
    n_features: int | None = None  # landmarks or random features
    inverse: bool = False
    scores: bool = False


def default_features(n_rows: int, n_components: int | float | str | None) -> int:
    """Return how many landmarks or random features are taken by default: 8 sqrt(n) from 500 to 2,000, or four for each component.

    >>> default_features(10_000, 10), default_features(1_000_000, 10), default_features(50_000, 1000)
    (800, 2000, 4000)
    """
    wanted = min(max(8 * math.isqrt(n_rows), FEWEST), MOST)
    return min(max(wanted, 4 * n_components if isinstance(n_components, int) else 0), n_rows)


def plan_kernel(info: SourceInfo, request: KernelRequest, limits: Limits) -> Plan:
    """Return the plan, or refuse a budget that cannot hold it."""
    method = chosen_method(info, request, limits)
    if method == "exact":
        return _plan_exact(info, request, limits)
    if request.n_features is not None:
        return _plan_features(info, request, limits, method, request.n_features)
    wanted = default_features(info.n_rows, request.n_components)
    least = max(2 * request.n_components if isinstance(request.n_components, int) else 0, 50)
    while True:
        try:
            return _plan_features(info, request, limits, method, wanted)
        except MemoryBudgetError:  # fewer features are worse, but they are better than none
            if wanted <= least:
                raise
            wanted = max(wanted * 3 // 4, least)


def chosen_method(info: SourceInfo, request: KernelRequest, limits: Limits) -> KernelMethod:
    """Return the method: ``"auto"`` is exact for few rows whose kernel matrix fits the budget."""
    if request.method != "auto":
        return request.method
    if request.n_features is not None or info.n_rows > EXACT_ROWS or info.weighted:
        return "nystrom"
    try:
        _plan_exact(info, request, limits)
    except MemoryBudgetError:
        return "nystrom"
    return "exact"


# --- features -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeaturesProjection(CovarianceProjection):
    """A sample, the landmarks' own eigenproblem, and the covariance of the features; ``info`` is that of the features."""

    base: SourceInfo
    features: NystromMap | FourierMap  # of zeros
    inverse: bool

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return all stages."""
        fold, solve = super().stages(block_rows, workers)
        held = {"features": self._held(), "sample": self._sample()}
        fold = replace(fold, bytes_read=self.base.bytes_decoded, memory={**fold.memory, **held}, flops=fold.flops + self._map_flops())
        m = self._count
        solve = replace(solve, memory={**solve.memory, **held, "copies": state_bytes(m) + 8 * 2 * m * m})
        stages = [self._choice(), *self._root(), fold, solve, self._error()]
        if self.inverse:
            k = kept_components(self.request.n_components, m, self.base.n_rows)
            rows = min(PREIMAGE_ROWS, self._sample_rows)
            ridge = ridge_bytes(rows, self.base.n_features, k) + 8 * rows * self.base.n_features + TASK_OVERHEAD
            stages.append(self.small("pre-images", 30.0 * rows**3, regression=ridge, sums=state_bytes(m), **held))
        return tuple(stages)

    @property
    def _count(self) -> int:
        return self.features.n_features_out

    @property
    def _sample_rows(self) -> int:
        n = self.base.n_rows
        return min(sample_size(self._count, n) + ERROR_ROWS, n)

    def _sample(self) -> int:
        """Count the rows, which are copied where some are left out."""
        return self._sample_rows * (2 * self.base.row_bytes + 16)

    def _held(self) -> int:
        m, d = self._count, self.base.n_features
        return 8 * m * (3 * d + (2 * m if isinstance(self.features, NystromMap) else 0) + 8)

    def _choice(self) -> PassPlan:
        """Count the reading of a sample, one slab at a time, and the choice of landmarks."""
        base = self.base
        read = min(base.bytes_decoded, min(self._sample_rows, MAX_CHUNKS) * base.chunk_rows * base.row_bytes)
        memory = {"slab": slab_bytes(base) + base.read_scratch, "sample": self._sample(), "products": TASK_OVERHEAD + _MEDIAN_BYTES}
        if isinstance(self.features, FourierMap):
            return replace(self.small("sample", **memory), bytes_read=read)
        choice = choice_bytes(self._count, base.n_rows, base.n_features)
        return replace(self.small("landmarks", **memory, choice=choice), bytes_read=read)

    def _root(self) -> list[PassPlan]:
        if isinstance(self.features, FourierMap):
            return []
        m, d = self._count, self.base.n_features
        return [self.small("root", 9.0 * m**3, sample=self._sample(), root=8 * m * (7 * m + 4 * d) + 4 * MIB + TASK_OVERHEAD)]

    def _map_flops(self) -> float:
        d = self.base.n_features
        return float(self.base.n_rows) * self._count * (2 * d + 20)

    def _error(self) -> PassPlan:
        m, d, rows = self._count, self.base.n_features, min(ERROR_ROWS, self.base.n_rows)
        k = kept_components(self.request.n_components, m, self.base.n_rows)
        values = 8 * rows * (3 * m + 4 * d) + 3 * 8 * _ERROR_STRIP * rows + self.features.workspace(rows)
        return self.small(
            "error",
            features=self._held(),
            sample=self._sample(),
            sums=2 * state_bytes(m),
            values=values + TASK_OVERHEAD,
            scores=8 * 6 * m * k,
        )

    def remedy(self, budget: int) -> str:
        """Say how many features would fit."""
        fits = next((m for m in (1000, 500, 200, 100, 50, 20) if m < self._count and self._with(m).peak(16) <= budget), 0)
        name = "n_landmarks" if isinstance(self.features, NystromMap) else "n_random_features"
        return f", or take fewer features: {name}={fits} fit" if fits else ""

    def _with(self, count: int) -> FeaturesProjection:
        return features_projection(
            self.base, self.features.kernel, count, self.request, self.baseline, self.inverse, isinstance(self.features, FourierMap)
        )


def features_projection(
    base: SourceInfo, kernel: Kernel, count: int, request: Request, baseline: int, inverse: bool, fourier: bool
) -> FeaturesProjection:
    """Return the projection for so many features."""
    features: NystromMap | FourierMap
    if fourier:
        features = blank_fourier(kernel, base.n_features, count)
        info = mapped_info(base, features)
    else:
        features = blank_nystrom(kernel, base, count)
        info = replace(mapped_info(base, features.columns), read_scratch=mapped_info(base, features).read_scratch)
    precision = choose_precision(info, "auto") if isinstance(request.n_components, int) else "float64"
    return FeaturesProjection(info, baseline, request, precision, base, features, inverse)


def blank_nystrom(kernel: Kernel, base: SourceInfo, count: int) -> NystromMap:
    """Return a map of as many landmarks that takes no memory, for its shape."""
    points = np.broadcast_to(np.zeros(1), (count, base.n_features))
    columns = KernelColumns(kernel, points, kernel.dtype_for(base.dtype), points[0] if kernel.shiftable else None)
    return NystromMap(columns, np.broadcast_to(np.zeros(1), (count, count)), points[:, 0])


def blank_fourier(kernel: Kernel, n_features: int, count: int) -> FourierMap:
    """Return a map of as many random features that takes no memory, for its shape."""
    frequencies = np.broadcast_to(np.zeros(1), (n_features, max(count // 2, 1)))
    return FourierMap(kernel, frequencies, frequencies[:, 0])


def transform_bytes(features: KernelColumns | FourierMap, n_components: int, workers: int) -> int:
    """Return what transforms hold beside rows and scores: points, as they are and prepared, the matrix, strips of values."""
    width, rows = features.n_features_out, features._strip_rows
    model = 8 * width * (3 * features.n_features_in + 4 * n_components)
    strip = rows * (width * features.dtype.itemsize + 16 * n_components) + features.workspace(rows)
    return model + workers * strip


def kept_components(n_components: int | float | str | None, n_features: int, n_rows: int) -> int:
    """Return the most components that there may be."""
    return n_components if isinstance(n_components, int) else min(n_features, n_rows)


def _plan_features(info: SourceInfo, request: KernelRequest, limits: Limits, method: KernelMethod, wanted: int) -> Plan:
    count, fourier = wanted, method == "fourier"
    if fourier:
        count += wanted % 2 if request.n_features is None else 0
    else:
        count = min(wanted, info.n_rows)
    if isinstance(request.n_components, int) and request.n_components > count:
        limit, name = ("random features", "n_random_features") if fourier else ("landmarks", "n_landmarks")
        raise UsageError(
            f"n_components={request.n_components} must be between 1 and the number of {limit}, {count:,} "
            f"(n_samples={info.n_rows:,}): ask for fewer, or raise {name}"
        )
    job = features_projection(info, request.kernel, count, Request(request.n_components), limits.baseline, request.inverse, fourier)
    layout = layout_of(job, limits)
    reasons = [_why(info, request, method, count, wanted), *reasons_of(job, layout, limits)]
    features = job.features.columns if isinstance(job.features, NystromMap) else job.features
    return _plan(info, request, limits, method, layout, job.precision, count, reasons, features)


def _why(info: SourceInfo, request: KernelRequest, method: KernelMethod, count: int, wanted: int) -> str:
    if method == "fourier":
        return f"{count:,} random features stand for the kernel, with an error like 1 / sqrt({count:,})"
    if count < wanted:
        return f"all {info.n_rows:,} rows are landmarks: there are no more"
    return f"{count:,} landmarks stand for the {info.n_rows:,} rows, whose kernel matrix is never made"


# --- exactly --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactProjection(Projection):
    """All rows in memory, and their kernel matrix."""

    request: KernelRequest

    def stages(self, block_rows: int, workers: int = 1) -> tuple[PassPlan, ...]:
        """Return the reading and the eigenproblem."""
        info, k = self.info, self.request.n_components if isinstance(self.request.n_components, int) else None
        n, d = info.n_rows, info.n_features
        table, copies = 8 * n * d, workers * 3 * 8 * block_rows * d
        fold = self.fold("rows", block_rows, workers, state=0, workspace=0, rows=table, copies=copies)
        matrix = exact_bytes(n, d, k, definite=self.request.kernel.definite) + TASK_OVERHEAD
        stages = [fold, self.small("kernel matrix", 4.0 * n**3 if k is None else 40.0 * n * n, rows=table, matrix=matrix)]
        if self.request.inverse:
            rows, kept = min(n, PREIMAGE_ROWS), n if k is None else k
            held = 8 * n * (3 * d + 4 * kept)
            stages.append(self.small("pre-images", 30.0 * rows**3, model=held, regression=ridge_bytes(rows, d, kept) + TASK_OVERHEAD))
        return tuple(stages)

    def remedy(self, budget: int) -> str:
        """Name the method that needs less."""
        return ", or use method='nystrom', which never holds the kernel matrix of all rows"


def _plan_exact(info: SourceInfo, request: KernelRequest, limits: Limits) -> Plan:
    n, k = info.n_rows, request.n_components
    if isinstance(k, int) and k > n:
        raise UsageError(f"n_components={k} must be between 1 and n_samples={n:,}: there are no more")
    layout = layout_of(ExactProjection(info, limits.baseline, request), limits)
    reasons = [f"the {n:,} x {n:,} kernel matrix fits the budget, and is exact"]
    points = np.broadcast_to(np.zeros(1), (n, info.n_features))
    return _plan(info, request, limits, "exact", layout, "float64", n, reasons, KernelColumns(request.kernel, points, np.dtype(np.float64)))


def _plan(
    info: SourceInfo,
    request: KernelRequest,
    limits: Limits,
    method: KernelMethod,
    layout: Layout,
    precision: str,
    count: int,
    reasons: list[str],
    features: KernelColumns | FourierMap,
) -> Plan:
    stages = layout.stages
    if request.scores:
        k = kept_components(request.n_components, count, info.n_rows)
        kept = 0 if method == "exact" else state_bytes(count + 1) + 8 * count * count  # sums and root, to add rows to
        baseline = limits.baseline + transform_bytes(features, k, limits.workers) + kept
        stages = (*stages, plan_scores(info, k, budget=limits.budget, workers=limits.workers, baseline=baseline).stage)
    return Plan(
        method="kpca",
        solver=method,
        n_rows=info.n_rows,
        n_features=info.n_features,
        n_components=request.n_components,
        precision=precision,
        block_rows=layout.block_rows,
        shard_rows=layout.shard_rows,
        n_shards=layout.n_shards,
        workers=layout.workers,
        budget=limits.budget,
        stages=stages,
        reasons=tuple(reasons),
        rank=count,
    )
