"""What a fit would do, for users: the plan of a method's estimator for any input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streampca.errors import UsageError, did_you_mean
from streampca.estimators.base import StreamingTransformer
from streampca.memory import format_bytes
from streampca.planning import Plan
from streampca.planning.calibration import estimated_seconds
from streampca.solvers.sketch import UndecidedError
from streampca.sources import open_source


def plan_with_methods(
    methods: dict[str, type[StreamingTransformer]],
    source: Any,
    method: str,
    n_components: Any,
    memory: str | int | None,
    scores: bool,
    opening: dict[str, Any],
    parameters: dict[str, Any],
) -> Plan:
    """Return the plan of a fit by a method, with an estimate of its time."""
    if method not in methods:
        raise UsageError(f"unknown method {method!r}: choose one of {', '.join(methods)}.{did_you_mean(method, methods)}")
    known = set(methods[method]._get_param_names())
    for name in parameters:
        if name not in known:
            raise UsageError(f"method {method!r} has no parameter {name!r}; it has {', '.join(sorted(known))}.{did_you_mean(name, known)}")
    estimator = methods[method](n_components=n_components, memory=memory, **parameters)
    return with_time(estimator.plan_for(open_source(source, **opening), scores=scores))


def with_time(plan: Plan) -> Plan:
    """Return the plan with an estimate of its time on this machine."""
    return replace(plan, seconds=estimated_seconds(plan))


def more_directions(error: UndecidedError, plan: Plan) -> str:
    """Say how much memory a sketch of more directions would take, in proportion to the planned one."""
    worst = max(plan.stages, key=lambda stage: stage.peak_memory)
    process, directions = worst.memory["process"], plan.max_rank or plan.rank or 1
    needed = process + (worst.peak_memory - process) * error.directions / directions
    return (
        f"{error}. {error.directions} directions would take a memory of about {format_bytes(int(needed))}: give that, "
        "or ask for a number of components"
    )


def check_component_count(n_components: int | float | str | None, n_features: int) -> None:
    """Refuse a number of components that no number of rows would allow."""
    if isinstance(n_components, str):
        return
    if isinstance(n_components, float):
        if not 0 < n_components < 1:
            raise UsageError(f"n_components={n_components} is not a fraction of variance in (0, 1): write an integer to ask for a number")
    elif n_components is not None and not 1 <= n_components <= n_features:
        raise UsageError(f"n_components={n_components} must be between 1 and n_features={n_features}")
