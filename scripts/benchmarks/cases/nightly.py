"""What a night costs: an update instead of a fit to all rows, and the checkpoints of a long run."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.dataset import Shape
from benchmarks.table import COLUMNS
from benchmarks.task import Group, Task, single

TITLE = "Nights: updates and checkpoints"
FORMAT = "hdf5-gzip"
NEVER = 1e9
SHOWN = {name: COLUMNS[name] for name in ("seconds", "/ us", "process s", "peak RSS MiB", "GB read", "passes")}


def run(bench: Bench) -> Section:
    """Compare an update with the fit that it replaces, and runs with and without checkpoints."""
    data = bench.data(FORMAT)
    new = bench.table("night", Shape(bench.size.night, data.n_features, data.k), FORMAT)
    groups = []
    for precision in ("float64", "auto"):
        options = {"new": str(new.path(FORMAT)), "precision": precision}
        whole = single("streampca", Task("nightly-fit", data, FORMAT, options))
        groups.append(Group(f"precision={precision}", (whole, single("update", Task("nightly-update", data, FORMAT, options)))))
    wide = bench.table("wide", bench.size.wide[0], FORMAT)
    every = {"streampca": NEVER, "at most every 30 s (default)": 30.0, "at most every second": 1.0}
    runs = tuple(single(who, Task("job", wide, FORMAT, {"every": seconds})) for who, seconds in every.items())
    groups.append(Group(f"checkpoints, {wide.n_rows:,} x {wide.n_features:,}", runs))
    rows = bench.compare(groups)
    how = ". ".join(f"{row.label}, {row.who}: {'; '.join(row.details)}" for row in rows if row.details)
    about = (
        f"`fit` to {data.n_rows:,} x {data.n_features} and {new.n_rows:,} new rows together, against `partial_fit` of the new rows "
        "alone to the fit of the others, both in the process. Checkpoints: a configured run that stores its model, without them first; "
        "they are spaced so that they cost at most 3% of the run, whatever is asked for."
    )
    return section(rows, about, f"How: {how}.", columns=SHOWN)
