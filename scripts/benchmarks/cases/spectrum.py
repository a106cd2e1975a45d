"""How accurate a few passes are: spectra from slow to fast, equal eigenvalues, and rows in the worst order."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.compare import Row
from benchmarks.dataset import Dataset
from benchmarks.table import COLUMNS, column
from benchmarks.task import US, Entry, Group, Task, single

TITLE = "Accuracy by spectrum"
FORMAT = "hdf5-none"
LABELS = {
    "power-0.3": "i^-0.3",
    "power-0.5": "i^-0.5",
    "power-1": "i^-1",
    "clusters": "sorted by cluster",
    "equal": "equal eigenvalues",
}


def _ratio(row: Row) -> str:
    return f"{row.one_minus_mev / row.estimated_error:.2g}" if row.one_minus_mev is not None and row.estimated_error else "–"


SHOWN = {
    **{name: COLUMNS[name] for name in ("seconds", "/ us", "peak RSS MiB", "passes", "error s[0]", "error s[k-1]")},
    "1-MEV": column("one_minus_mev", "{:.1e}"),
    "own estimate": column("estimated_error", "{:.1e}"),
    "real / estimate": _ratio,
}


def run(bench: Bench) -> Section:
    """Compare the sketch, at two tolerances, with the peers that are not exact."""
    tables = [bench.table(kind, bench.size.spectrum, FORMAT) for kind in bench.size.spectra]
    rows = bench.compare([Group(LABELS[data.kind], _entries(data)) for data in tables])
    return section(rows, _about(tables[0]), columns=SHOWN)


def _entries(data: Dataset) -> tuple[Entry, ...]:
    def entry(who: str, runner: str, **options: object) -> Entry:
        return single(who, Task(runner, data, FORMAT, options))

    return (
        entry(US, "streampca", solver="sketch"),
        entry(f"{US}, tol=1e-6", "streampca", solver="sketch", tol=1e-6),
        entry("dask-ml PCA randomized", "dask-ml-randomized"),
        entry("dask-ml PCA randomized, 4 power iterations", "dask-ml-randomized", iterated_power=4),
        entry("dask svd_compressed, 4 power iterations", "dask-svd-compressed", n_power_iter=4),
        entry("scikit-learn PCA randomized (in memory)", "sklearn-pca", svd_solver="randomized", random_state=0),
        entry(f"scikit-learn IncrementalPCA, {_batch(data):,} rows at a time", "sklearn-incremental", batch_rows=_batch(data)),
    )


def _batch(data: Dataset) -> int:
    """Return the rows of a batch: 8 MiB, and more than the components. Its default would be the whole table."""
    return max(data.block_rows, 2 * data.k)


def _about(data: Dataset) -> str:
    return (
        f'{data.n_rows:,} x {data.n_features:,} float32 + a mean, uncompressed, k = {data.k}, `solver="sketch"`. The labels are the '
        f"singular values. *Sorted by cluster*: {2 * data.k} clusters, one after another, each in a direction of its own. *Equal "
        "eigenvalues*: groups of equals, the k-th the last of its group. The peers know no estimate of their error."
    )
