"""Where our time goes, on the gzip file: timers inside one run."""

from __future__ import annotations

import json
from typing import Any

from benchmarks import spawn
from benchmarks.bench import Bench, Section
from benchmarks.compare import warm
from benchmarks.table import markdown
from benchmarks.task import Task

TITLE = "Where the remaining time goes"
FORMAT = "hdf5-gzip"


def run(bench: Bench) -> Section:
    """Profile the fastest of several runs."""
    task = Task("streampca-profile", bench.data(FORMAT), FORMAT)
    warm({task.path})
    reports = [spawn.run(task, bench.settings.timeout) for _ in range(bench.settings.repeat)]
    good = [report for report in reports if "failure" not in report]
    if not good:
        return Section(f"The run failed: {reports[0]['failure']}", {"runs": reports})
    profile = json.loads(min(good, key=lambda report: report["seconds"])["detail"])
    return Section(_describe(profile), profile)


def _describe(profile: dict[str, Any]) -> str:
    (wall, cpu), cores, parts = profile["total"], profile["cores"], profile["parts"]
    room = cores * wall
    lines = [(name, f"{calls:.0f}", f"{seconds:.3f}", *_share(busy, room)) for name, (seconds, busy, calls) in parts.items()]
    other = cpu - sum(busy for _, busy, _ in parts.values())
    lines.append(("everything else (Dask, Python, library threads)", "–", "–", *_share(other, room)))
    lines.append(("not running: idle, or other processes had the cores", "–", "–", *_share(room - cpu, room)))
    table = markdown(("part", "calls", "seconds, summed over threads", "processor seconds", "of all cores"), lines)
    return (
        f"One fit of {FORMAT}: {wall:.3f} s on {cores} cores, {cpu:.3f} processor seconds. Each task reads, decodes and "
        f"folds its blocks in turn, while the system fetches the next bytes.\n\n{table}"
    )


def _share(seconds: float, room: float) -> tuple[str, str]:
    return f"{seconds:.3f}", f"{seconds / room:.1%}"
