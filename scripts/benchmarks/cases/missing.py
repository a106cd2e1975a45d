"""Probabilistic PCA with missing entries: the time of one EM iteration."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.rows import MISSING
from benchmarks.table import COLUMNS, column
from benchmarks.task import US, Group, Task, single

TITLE = "Missing values: probabilistic PCA"
FORMAT = "hdf5-none"
ITERATIONS = 10
SHOWN = {
    "s / iteration": column("iteration_seconds", "{:.3f}"),
    **{name: COLUMNS[name] for name in ("seconds", "/ us", "process s", "peak RSS MiB", "GB read", "passes")},
}


def run(bench: Bench) -> Section:
    """Compare us, reading the file in every iteration, with ppca_rs, which holds it in memory."""
    groups = []
    for shape in bench.size.missing:
        data = bench.table("missing", shape, FORMAT)
        ours = single(US, Task("streampca-missing", data, FORMAT, {"iterations": ITERATIONS}))
        theirs = single("ppca_rs (in memory)", Task("ppca-rs", data, FORMAT, {"iterations": ITERATIONS}))
        groups.append(Group(f"{data.n_rows:,} x {data.n_features}", (ours, theirs)))
    rows = bench.compare(groups)
    how = ". ".join(f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows if row.details)
    about = f"float32, {MISSING:.0%} of the entries missing, {bench.size.missing[0].k} components, at most {ITERATIONS} iterations of EM. "
    about += "*s / iteration* is the whole fit by its iterations, but of ppca_rs without the reading and its first guess."
    return section(rows, about, f"How: {how}.", columns=SHOWN)
