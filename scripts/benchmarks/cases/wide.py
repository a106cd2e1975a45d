"""Tables too wide for their covariance, on gzip: many columns, and fewer rows than columns."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.dataset import Dataset, stored_bytes
from benchmarks.table import COLUMNS, column
from benchmarks.task import US, Group, Task, single

TITLE = "Wide tables on gzip HDF5"
FORMAT = "hdf5-gzip"
SHOWN = {
    **{name: cell for name, cell in COLUMNS.items() if name != "/ floor"},
    "GB read": lambda row: "–" if row.bytes_read is None else f"{row.bytes_read / 1e9:.3f} ({row.sizes_read:.1f} x)",
    "1-MEV, own estimate": column("estimated_error", "{:.0e}"),
}


def run(bench: Bench) -> Section:
    """Compare us, at two tolerances, with what people run on such tables."""
    tables = [bench.table("wide", shape, FORMAT) for shape in bench.size.wide]
    rows = bench.compare([_group(data) for data in tables])
    how = [f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows if row.details]
    return section(rows, *map(_about, tables), "How: " + ". ".join(how) + ".", columns=SHOWN)


def _group(data: Dataset) -> Group:
    entries = (
        single(US, Task("streampca", data, FORMAT)),
        single(f"{US}, tol=1e-6", Task("streampca", data, FORMAT, {"tol": 1e-6})),
        single("dask svd_compressed, 4 power iterations", Task("dask-svd-compressed", data, FORMAT, {"n_power_iter": 4})),
        single(
            "scikit-learn PCA randomized (in memory)", Task("sklearn-pca", data, FORMAT, {"svd_solver": "randomized", "random_state": 0})
        ),
    )
    return Group(_label(data), entries)


def _label(data: Dataset) -> str:
    return f"{data.n_rows:,} x {data.n_features:,}"


def _about(data: Dataset) -> str:
    stored, decoded = stored_bytes(data.path(FORMAT)), data.n_rows * data.row_bytes
    return (
        f"{_label(data)}: float32, slowly decaying directions (the first deviates 10 times as much as the last) + noise + a mean, "
        f"k = {data.k}; {stored / 1e6:.0f} MB on disk, {decoded / 1e6:.0f} decoded. In brackets: bytes read, in sizes of the file."
    )
