"""A fit of the same table in every format, against the floor."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.dataset import Dataset, stored_bytes
from benchmarks.floor import fit_floor
from benchmarks.task import US, Group, Task, single

TITLE = "Fit: every format against the floor"


def run(bench: Bench) -> Section:
    """Compare the floor and us on each format."""
    data = bench.data(*bench.formats)
    groups = [Group(name, (fit_floor(data, name), single(US, Task("streampca", data, name)))) for name in bench.formats]
    rows = bench.compare(groups)
    how = [f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows]
    return section(rows, _sizes(data, bench.formats), "How: " + ". ".join(how) + ".")


def _sizes(data: Dataset, formats: tuple[str, ...]) -> str:
    stored = ", ".join(f"{name} {stored_bytes(data.path(name)) / 1e6:.0f}" for name in formats)
    return f"MB on disk, of {data.n_rows * data.row_bytes / 1e6:.0f} decoded: {stored}."
