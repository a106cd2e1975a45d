"""Scores to Zarr, against the floor of reading, projecting and writing."""

from __future__ import annotations

from pathlib import Path

from benchmarks import spawn
from benchmarks.bench import Bench, Section, section
from benchmarks.floor import transform_floor
from benchmarks.task import US, Group, Task, single

TITLE = "Transform: scores to Zarr"


def run(bench: Bench) -> Section:
    """Compare the floor and us on each format, with one model."""
    data = bench.data(*bench.formats)
    model, out = str(data.folder / "model.zarr"), str(data.folder / "scores.zarr")
    report = spawn.run(Task("streampca-save", data, bench.formats[0], {"model": model}), bench.settings.timeout)
    if "failure" in report:
        return Section(f"No model could be fitted: {report['failure']}", {"rows": [], **report})
    groups = []
    for name in bench.formats:
        ours = Task("streampca-transform", data, name, {"model": model, "out": out})
        groups.append(Group(name, (transform_floor(data, name, str(Path(out).with_name("floor.zarr"))), single(US, ours))))
    return section(bench.compare(groups), "The errors are those of the norms of the score columns.")
