"""How often each criterion finds the number of components that the rows were drawn with."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import spawn
from benchmarks.bench import Bench, Section
from benchmarks.dataset import Dataset
from benchmarks.table import markdown
from benchmarks.task import Task

TITLE = "The number of components"
STRENGTHS = (1.0, 1.5, 2.0, 4.0, 16.0)


def run(bench: Bench) -> Section:
    """Draw tables of known rank, and ask every criterion."""
    found: list[dict[str, Any]] = []
    for shape in bench.size.selection:
        data = Dataset(bench.root, shape.n_rows, shape.n_features, shape.k)
        task = Task("selection", data, "hdf5-none", {"strengths": STRENGTHS, "trials": bench.size.trials})
        report = spawn.run(task, bench.settings.timeout)
        if "failure" in report:
            return Section(f"The run failed: {report['failure']}", {"cells": found, **report})
        found += json.loads(report["detail"])
    return Section(f"{_table(found)}\n\n{_about(bench)}", {"cells": found})


def _table(found: list[dict[str, Any]]) -> str:
    criteria = list(dict.fromkeys(name for cell in found for name in cell["found"]))
    lines = []
    for cell in found:
        shares = [cell["found"].get(name) for name in criteria]
        lines.append((cell["label"], f"{cell['strength']:g}", *("–" if share is None else f"{share:.0%}" for share in shares)))
    return markdown(("rows x columns, rank", "strength", *criteria), lines)


def _about(bench: Bench) -> str:
    return (
        f"Share of {bench.size.trials} tables in which the criterion finds exactly the rank. Normal rows: noise of variance 1, and "
        "directions whose variances spread evenly from *strength* to three times it, in units of sqrt(d / n): below 1 no method can see "
        "them (Baik, Ben Arous and Péché)."
    )
