"""The plan of an independent component analysis: that of the PCA, a pass that keeps white rows, and the iterations on them."""

from __future__ import annotations

from dataclasses import replace

from streampca.errors import MemoryBudgetError
from streampca.memory import format_bytes
from streampca.planning.plans import PassPlan, Plan
from streampca.planning.projection import Limits
from streampca.planning.scores import ScoresPlan, plan_scores
from streampca.sources.base import SourceInfo

MOST_ROWS = 2**20  # kept by default: the error of the rotation is then about a thousandth
_LEAST_ROWS = 1000  # fewer are refused, unless there are no more
_STRIP_BYTES = 4 * 8 * 8192  # for each component, of the iterations


def plan_ica(plan: Plan, info: SourceInfo, limits: Limits, wanted: int | None) -> tuple[Plan, int, ScoresPlan]:
    """Return the plan with what follows the PCA, how many rows are kept, and the plan of the pass that keeps them."""
    k = plan.n_components if isinstance(plan.n_components, int) else min(info.n_rows, plan.max_rank or plan.rank or info.n_features)
    model = 6 * 8 * info.n_features * k
    least = plan_scores(info, k, budget=limits.budget, workers=1, baseline=limits.baseline + model)
    left = (limits.budget - least.stage.peak_memory) // 2  # the other half lets more workers work
    rows = min(info.n_rows, MOST_ROWS if wanted is None else wanted)
    held = max(left // (8 * k), min(rows, _LEAST_ROWS))
    if wanted is not None and held < rows:
        raise MemoryBudgetError(
            f"max_rows={wanted:,} white rows of {k} components take {format_bytes(8 * k * rows)}, and the budget of "
            f"{format_bytes(limits.budget)} leaves {format_bytes(max(left, 0))}: keep at most {held:,}, or give more memory"
        )
    if held < rows:
        rows = 1 << (held.bit_length() - 1)  # a power of two: the same in every run, though the process grows a little
    kept = 8 * k * rows
    scores = plan_scores(info, k, budget=limits.budget, workers=limits.workers, baseline=limits.baseline + model + kept)
    keep = replace(scores.stage, name="white rows")
    process = {"process": scores.stage.memory["process"]}
    iterate = PassPlan("rotation", 0, {**process, "strips": k * _STRIP_BYTES, "matrices": 20 * 8 * k * k}, 100 * 5.0 * rows * k * k)
    reason = f"the rotation is found from {'all' if rows == info.n_rows else f'{rows:,} of the'} {info.n_rows:,} white rows, kept in memory"
    whole = replace(plan, method="ica", stages=(*plan.stages, keep, iterate), reasons=(*plan.reasons, reason))
    return (replace(whole, max_passes=plan.max_passes + 1) if plan.max_passes else whole), rows, scores
