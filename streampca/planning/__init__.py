"""What a run will do, before it does it: solver, passes, bytes, memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from streampca.engine import Scheduler, choose_scheduler
from streampca.errors import DataError, UsageError, did_you_mean
from streampca.memory import current_rss, default_budget, parse_bytes
from streampca.planning.covariance import Request, plan_covariance
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.scores import plan_scores
from streampca.sources import open_source
from streampca.sources.base import SourceInfo
from streampca.statistics.scatter import state_bytes

__all__ = ["PassPlan", "Plan", "plan", "plan_pca"]

METHODS = ("pca",)
SOLVERS = ("auto", "covariance")
_BASELINE_LIMIT = 384 * 2**20


def plan(
    source: Any,
    method: str = "pca",
    n_components: int | float | None = None,
    memory: str | int | None = None,
    *,
    solver: str = "auto",
    precision: Literal["auto", "float32", "float64"] = "auto",
    scores: bool = False,
    dataset: str | None = None,
    samples_axis: int = 0,
) -> Plan:
    """Return what a fit would do, without reading the data.

    Parameters
    ----------
    source : Source, path, glob, array or Dask array
        What ``fit`` would be given.
    method : {"pca"}
        The method.
    n_components, solver, precision
        As in the estimator.
    memory : str or int, optional
        The budget of the process, such as ``"2GiB"``. By default half of what is free.
    scores : bool
        Whether the scores are to be written as well (one more pass).
    dataset, samples_axis
        As in ``open_source``.

    Examples
    --------
    >>> import numpy as np
    >>> plan(np.zeros((1000, 10)), n_components=3, memory="1GiB").n_passes
    1
    """
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}.{did_you_mean(method, METHODS)}")
    info = open_source(source, dataset=dataset, samples_axis=samples_axis).info
    return plan_pca(info, n_components, memory=memory, solver=solver, precision=precision, scores=scores)


def plan_pca(
    info: SourceInfo,
    n_components: int | float | str | None,
    *,
    memory: str | int | None = None,
    solver: str = "auto",
    precision: Literal["auto", "float32", "float64"] = "auto",
    scores: bool = False,
    scheduler: Scheduler | None = None,
    min_rows: int = 2,
) -> Plan:
    """Return the plan of a PCA, or say why it cannot be done."""
    if solver not in SOLVERS:
        raise UsageError(f"unknown solver {solver!r}: choose one of {', '.join(SOLVERS)}.{did_you_mean(solver, SOLVERS)}")
    if precision not in ("auto", "float32", "float64"):
        raise UsageError(f"precision must be 'auto', 'float32' or 'float64', not {precision!r}")
    check_shape(info, n_components, min_rows)
    scheduler = scheduler or choose_scheduler()
    limits = {"budget": budget_of(memory, scheduler), "workers": scheduler.workers, "baseline": process_baseline()}
    plan = plan_covariance(info, Request(n_components, precision), **limits)
    if not scores:
        return plan
    kept = n_components if isinstance(n_components, int) else min(info.n_rows, info.n_features)
    limits["baseline"] += state_bytes(info.n_features)
    return replace(plan, stages=(*plan.stages, plan_scores(info, kept, **limits).stage))


def budget_of(memory: str | int | None, scheduler: Scheduler) -> int:
    """Return the budget in bytes: as given, or a part of what the smallest worker or this machine has."""
    if memory is not None:
        return parse_bytes(memory)
    limit = scheduler.memory_limit()
    return default_budget() if limit is None else int(0.6 * limit)


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
