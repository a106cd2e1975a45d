"""Sparse PCA from one pass, against scikit-learn in memory."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.rows import SPARSE_WIDTH
from benchmarks.table import COLUMNS
from benchmarks.task import US, Group, Task, single

TITLE = "Sparse PCA"
FORMAT = "hdf5-gzip"
SHOWN = {name: COLUMNS[name] for name in ("seconds", "/ us", "process s", "peak RSS MiB", "GB read", "passes")}


def run(bench: Bench) -> Section:
    """Compare us with scikit-learn's two, and run alone on the table of the other cases."""
    data, long = bench.table("sparse", bench.size.sparse, FORMAT), bench.data(FORMAT)
    options = {"alpha": 0.02 * data.n_rows**0.5 * SPARSE_WIDTH}
    entries = (
        single(US, Task("streampca-sparse", data, FORMAT)),
        single("scikit-learn SparsePCA (in memory)", Task("sklearn-sparse", data, FORMAT, options)),
        single("scikit-learn MiniBatchSparsePCA (in memory)", Task("sklearn-sparse-batches", data, FORMAT, options)),
    )
    groups = [
        Group(f"{data.n_rows:,} x {data.n_features}", entries),
        Group(f"{long.n_rows:,} x {long.n_features}", (single(US, Task("streampca-sparse", long, FORMAT)),)),
    ]
    rows = bench.compare(groups)
    how = ". ".join(f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows if row.details)
    about = f"float32; the first table has {data.k} components of {SPARSE_WIDTH} columns each, in noise. Ours asks for so many columns."
    return section(rows, about, f"How: {how}.", columns=SHOWN)
