"""Run groups of tasks in turns, several times, and take the best of each."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import spawn
from benchmarks.dataset import stored_bytes
from benchmarks.task import FLOOR, US, Entry, Group, Task

Report = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How often tasks are run, and for how long at most."""

    repeat: int = 3
    timeout: float = 3600.0


@dataclass
class Row:
    """One line of a table: the best of its runs (the largest, of memory), and all of them."""

    label: str
    who: str
    seconds: float | None = None
    ratio_to_floor: float | None = None
    ratio_to_us: float | None = None
    process_seconds: float | None = None
    peak_rss: int | None = None
    bytes_read: int | None = None
    sizes_read: float | None = None
    passes: float | None = None
    iteration_seconds: float | None = None
    error_first: float | None = None
    error_last: float | None = None
    one_minus_mev: float | None = None
    estimated_error: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    failure: str | None = None
    runs: list[Report] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(groups: list[Group], settings: Settings) -> list[Row]:
    """Return the rows of all groups."""
    rows: list[Row] = []
    for group in groups:
        rows += _compare_group(group, settings)
    return rows


def _compare_group(group: Group, settings: Settings) -> list[Row]:
    tasks = [task for entry in group.entries for part in entry.parts for task in part.choices]
    warm({task.path for task in tasks})
    reports: list[list[Report]] = [[] for _ in tasks]
    for turn in range(settings.repeat):  # interleaved, so that noise hits all alike
        for task, done in zip(tasks, reports, strict=True):
            if any("failure" in report for report in done):
                continue
            print(f"  {group.label}: {task.runner} ({turn + 1}/{settings.repeat})", file=sys.stderr, flush=True)
            done.append(spawn.run(task, settings.timeout))
    remaining = iter(zip(tasks, reports, strict=True))
    rows = [_row(group.label, entry, [[next(remaining) for _ in part.choices] for part in entry.parts]) for entry in group.entries]
    _add_ratios(rows)
    return rows


def warm(paths: set[str]) -> None:
    """Read files once, so that all runs find them in the page cache."""
    for path in map(Path, paths):
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                with file.open("rb", buffering=0) as opened:
                    while opened.read(2**24):
                        pass


def _row(label: str, entry: Entry, parts: list[list[tuple[Task, list[Report]]]]) -> Row:
    row = Row(label, entry.who, runs=[{"runner": task.runner, **report} for part in parts for task, done in part for report in done])
    bests = []
    for part, choices in zip(entry.parts, parts, strict=True):
        good = [(report["seconds"], index) for index, report in enumerate(_all(choices)) if "failure" not in report]
        if not good:
            row.failure = next((report["failure"] for report in _all(choices) if "failure" in report), "not run")
            return row
        best = _all(choices)[min(good)[1]]
        row.parts[part.name] = best["seconds"]
        row.details += [best["detail"]] if best["detail"] else []
        bests.append(best)
    row.seconds = sum(row.parts.values())
    row.process_seconds = sum(best["process_seconds"] for best in bests)
    row.bytes_read = _total([best["bytes_read"] for best in bests])
    if len(bests) == 1:
        _copy_answer(row, bests[0], parts[0][0][0])
    return row


def _all(choices: list[tuple[Task, list[Report]]]) -> list[Report]:
    return [report for _, done in choices for report in done]


def _copy_answer(row: Row, best: Report, task: Task) -> None:
    """Take over what only the run of a whole job has; passes that the runner does not know are told from the bytes."""
    row.peak_rss = max((report["peak_rss"] for report in row.runs if report.get("peak_rss")), default=None)
    row.error_first, row.error_last, row.one_minus_mev = best["error_first"], best["error_last"], best["one_minus_mev"]
    row.estimated_error, row.passes, row.iteration_seconds = best["estimated_error"], best["passes"], best["iteration_seconds"]
    if row.bytes_read is not None:
        row.sizes_read = row.bytes_read / stored_bytes(Path(task.path))
    if row.passes is None and row.sizes_read is not None:
        row.passes = round(row.sizes_read, 1)


def _total(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _add_ratios(rows: list[Row]) -> None:
    seconds = {row.who: row.seconds for row in rows}
    for row in rows:
        if row.seconds is None:
            continue
        floor, us = seconds.get(FLOOR), seconds.get(US)
        row.ratio_to_floor = row.seconds / floor if floor else None
        row.ratio_to_us = row.seconds / us if us else None
