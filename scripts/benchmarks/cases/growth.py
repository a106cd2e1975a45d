"""Time and memory as the rows grow, on the gzip file."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.compare import Row
from benchmarks.floor import fit_floor
from benchmarks.task import US, Group, Task, single

TITLE = "Growth: time and memory by rows"
FORMAT = "hdf5-gzip"


def run(bench: Bench) -> Section:
    """Compare the floor and us on ever longer tables."""
    groups = []
    for n_rows in bench.size.growth:
        data = bench.data(FORMAT, n_rows=n_rows)
        groups.append(Group(f"{n_rows:,} rows", (fit_floor(data, FORMAT), single(US, Task("streampca", data, FORMAT)))))
    rows = bench.compare(groups)
    return section(rows, _remark([row for row in rows if row.who == US], bench.size.growth))


def _remark(ours: list[Row], n_rows: tuple[int, ...]) -> str:
    first, last = ours[0], ours[-1]
    if not (first.seconds and last.seconds):
        return ""
    text = f"{n_rows[-1] / n_rows[0]:g} times the rows: {last.seconds / first.seconds:.2f} times the seconds"
    if first.peak_rss and last.peak_rss:
        text += f", {last.peak_rss / first.peak_rss:.2f} times the peak memory"
    return text + "."
