"""Results on the screen: a short summary for people, or one JSON document for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from streampca.memory import format_bytes


def show_json(content: Mapping[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(content, indent=2, default=str) + "\n")


def show_summary(summary: Mapping[str, Any]) -> None:
    """Print what a run did, in a few lines."""
    seconds = summary["seconds"]["total"]
    table = _table()
    if "input" in summary:
        table.add_row("input", f"{summary['input']}: {summary['rows']:,} x {summary['features']:,} {summary['dtype']}")
        table.add_row("solver", f"{summary['method']} by {summary['solver']}, {summary['passes']} pass(es)")
        table.add_row("components", f"{summary['components']} with {summary['variance_kept']:.2%} of the variance")
        table.add_row("variance", _bars(summary["explained_variance_ratio"]))
    table.add_row("rows", f"{summary['rows']:,} in {seconds:.1f} s")
    table.add_row("memory", _memory(summary))
    for name, path in summary["output"].items():
        if isinstance(path, str):
            table.add_row(name, path)
    _console().print(table)


def show_facts(facts: Mapping[str, Any]) -> None:
    """Print named facts, one per line."""
    table = _table()
    for name, value in facts.items():
        if value is None:
            continue
        text = format_bytes(value) if name.startswith("bytes_") else _plain(value)
        table.add_row(name.replace("_", " "), text)
    _console().print(table)


def _console() -> Console:
    """Return a console that takes brackets and colons in paths as they are."""
    return Console(markup=False, emoji=False)


def _table() -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _memory(summary: Mapping[str, Any]) -> str:
    text = f"peak {format_bytes(summary['peak_memory'])}"
    if summary.get("projected_memory"):
        text += f", projected {format_bytes(summary['projected_memory'])}, budget {format_bytes(summary['memory_budget'])}"
    return text


def _bars(ratios: list[float]) -> str:
    shown = [f"{ratio:.1%}" for ratio in ratios[:8]]
    return " ".join(shown) + (" ..." if len(ratios) > 8 else "")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(each) for each in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
