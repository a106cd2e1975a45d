"""What a run will do, before it does it: solver, passes, bytes, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from streampca.engine import Scheduler, choose_scheduler
from streampca.errors import DataError, UsageError, did_you_mean
from streampca.memory import current_rss, default_budget, format_bytes, parse_bytes
from streampca.planning.choice import SOLVERS, plan_with
from streampca.planning.covariance import Request
from streampca.planning.criteria import CRITERIA
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits
from streampca.planning.scores import plan_scores
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import state_bytes

__all__ = ["SOLVERS", "Limits", "PassPlan", "Plan", "Request", "check_criterion", "limits_of", "plan_pca", "with_scores"]

_BASELINE_LIMIT = 384 * 2**20
_OF_A_WORKER, _MOST_OF_A_WORKER = 0.6, 0.8  # by default; and at most, for there Dask pauses a worker


def plan_pca(
    info: SourceInfo,
    n_components: int | float | str | None,
    *,
    memory: str | int | None = None,
    solver: str = "auto",
    precision: Literal["auto", "float32", "float64"] = "auto",
    standardize: bool = False,
    tol: float = 1e-3,
    turned: SourceInfo | None = None,
    scores: bool = False,
    scheduler: Scheduler | None = None,
    min_rows: int = 2,
) -> Plan:
    """Return the plan of a PCA, or say why it cannot be done; ``turned`` is the transposed table, where it can be read."""
    if solver not in SOLVERS:
        raise UsageError(f"unknown solver {solver!r}: choose one of {', '.join(SOLVERS)}.{did_you_mean(solver, SOLVERS)}")
    if precision not in ("auto", "float32", "float64"):
        raise UsageError(f"precision must be 'auto', 'float32' or 'float64', not {precision!r}")
    if isinstance(tol, (bool, str)) or not 0 < tol < 1:
        raise UsageError(f"tol must be between 0 and 1 (an error of the subspace, 1 - MEV), not {tol!r}")
    check_shape(info, n_components, min_rows)
    limits = limits_of(memory, scheduler)
    plan = plan_with(solver, info, turned, Request(n_components, precision, standardize, tol), limits)
    return with_scores(plan, info, limits) if scores else plan


def with_scores(plan: Plan, info: SourceInfo, limits: Limits, held: int | None = None) -> Plan:
    """Return the plan with a pass that writes the scores; ``held`` is what is kept of the fit meanwhile."""
    kept = plan.n_components if isinstance(plan.n_components, int) else min(info.n_rows, plan.max_rank or plan.rank or info.n_features)
    held = _kept_state(plan) if held is None else held
    stage = plan_scores(info, kept, budget=limits.budget, workers=limits.workers, baseline=limits.baseline + held).stage
    return replace(plan, stages=(*plan.stages, stage))


def limits_of(memory: str | int | None, scheduler: Scheduler | None = None) -> Limits:
    """Return what a run may take on a scheduler."""
    scheduler = scheduler or choose_scheduler()
    budget, note = budget_of(memory, scheduler)
    return Limits(budget, scheduler.workers, process_baseline(), note)


def budget_of(memory: str | int | None, scheduler: Scheduler) -> tuple[int, str]:
    """Return the budget in bytes, as given or a part of what there is, but never more than a worker can hold; and what it comes from."""
    limit = scheduler.memory_limit()
    if limit is None:
        return (default_budget() if memory is None else parse_bytes(memory)), ""
    part = _OF_A_WORKER if memory is None else _MOST_OF_A_WORKER
    usable = int(part * limit)
    if memory is not None and parse_bytes(memory) <= usable:
        return parse_bytes(memory), ""
    return usable, f"{part:.0%} of the {format_bytes(limit)} of the smallest Dask worker"


def process_baseline() -> int:
    """Return what the process takes before the work begins, as far as it is libraries rather than the user's data."""
    return min(current_rss(), _BASELINE_LIMIT)


def check_shape(info: SourceInfo, n_components: int | float | str | None, min_rows: int = 2) -> None:
    """Refuse too few rows, or a number of components that the data cannot have."""
    if info.n_rows < min_rows:
        raise DataError(
            f"PCA needs at least {min_rows} rows, but n_samples={info.n_rows} in {info.description or 'X'}: a variance needs two samples"
        )
    if n_components is None:
        return
    limit = min(info.n_rows, info.n_features)
    if isinstance(n_components, str):
        check_criterion(n_components)
        if n_components == "mle" and info.n_rows < info.n_features:
            raise UsageError(
                f"n_components='mle' needs as many samples as features, but there are {info.n_rows:,} and {info.n_features:,}: "
                "use 'bic' or 'gavish-donoho', which take any shape"
            )
        return
    if isinstance(n_components, bool) or not isinstance(n_components, (int, float)):
        raise UsageError(f"n_components must be None, an integer of 1 or more, or a fraction of variance in (0, 1), not {n_components!r}")
    if isinstance(n_components, float):
        if not 0 < n_components < 1:
            raise UsageError(f"n_components={n_components} is not a fraction of variance in (0, 1): write an integer to ask for a number")
    elif not 1 <= n_components <= limit:
        raise UsageError(
            f"n_components={n_components} must be between 1 and min(n_samples, n_features)={limit} "
            f"({info.n_rows:,} x {info.n_features:,} data)"
        )


def check_criterion(n_components: str) -> None:
    """Refuse a name that is no criterion."""
    if n_components not in CRITERIA:
        raise UsageError(
            "n_components must be None, an integer of 1 or more, a fraction of variance in (0, 1), or one of "
            f"{', '.join(map(repr, CRITERIA))}, not {n_components!r}.{did_you_mean(n_components, CRITERIA)}"
        )


def _kept_state(plan: Plan) -> int:
    """Return the bytes of the state that a fit keeps beside its model."""
    if plan.solver == "dual":
        return 0
    d = plan.n_features
    return state_bytes(d) if plan.rank is None else 8 * (plan.max_rank or plan.rank) * d
