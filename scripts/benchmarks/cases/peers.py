"""What people run today, on the gzip file."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.floor import fit_floor
from benchmarks.task import US, Group, Task, single

TITLE = "Peers on gzip HDF5"
FORMAT = "hdf5-gzip"
PEERS = {
    "scikit-learn PCA (in memory)": "sklearn-pca",
    "scikit-learn IncrementalPCA": "sklearn-incremental",
    "oneDAL IncrementalPCA": "onedal-incremental",
    "dask by hand, X.T @ X": "dask-gram",
    "dask svd_compressed, 2 power iterations": "dask-svd-compressed",
    "dask-ml PCA randomized": "dask-ml-randomized",
    "dask-ml PCA tsqr": "dask-ml-tsqr",
}


def run(bench: Bench) -> Section:
    """Compare the floor, us and the peers."""
    data = bench.data(FORMAT)
    peers = [single(who, Task(runner, data, FORMAT)) for who, runner in PEERS.items()]
    group = Group(FORMAT, (fit_floor(data, FORMAT), single(US, Task("streampca", data, FORMAT)), *peers))
    return section(bench.compare([group]), "Passes of the peers are the bytes that they read, in sizes of the file.")
