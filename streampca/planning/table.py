"""A plan as a tidy HTML table, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from streampca.memory import format_bytes

if TYPE_CHECKING:
    from streampca.planning.plans import Plan

_CELL = "text-align:left;vertical-align:top;padding:2px 14px 2px 0"


def plan_table(plan: Plan) -> str:
    """Return the main facts of a plan and the memory of its stages as a table."""
    most = f" (at most {plan.max_passes})" if plan.max_passes else ""
    facts = {
        "data": f"{plan.n_rows:,} rows × {plan.n_features:,} features",
        "components": "all" if plan.n_components is None else str(plan.n_components),
        "solver": f"{plan.solver}; products in {plan.precision}, sums in {plan.sums}",
        "because": "\n".join(plan.reasons),
        "passes": f"{plan.n_passes}{most}, {format_bytes(plan.bytes_read)} read",
        "blocks": f"{plan.n_shards:,} shards in blocks of {plan.block_rows:,}; {plan.workers} at a time",
        "peak memory": f"{format_bytes(plan.peak_memory)} of a budget of {format_bytes(plan.budget)}",
    }
    rows = [_row(name, escape(text).replace("\n", "<br/>")) for name, text in facts.items() if text]
    rows += [_row(f"— {stage.name}", _memory(dict(stage.memory), stage.peak_memory)) for stage in plan.stages]
    return f'<table style="border-collapse:collapse"><caption style="{_CELL}"><b>{escape(plan.method)}</b></caption>{"".join(rows)}</table>'


def _row(name: str, text: str) -> str:
    return f'<tr><th scope="row" style="{_CELL};font-weight:600">{escape(name)}</th><td style="{_CELL}">{text}</td></tr>'


def _memory(parts: dict[str, int], total: int) -> str:
    each = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in parts.items())
    return f'{format_bytes(total)} <span style="opacity:.7">({escape(each)})</span>'
