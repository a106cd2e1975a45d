"""Kernel PCA of many rows by landmarks and by random features, against the floor of one pass."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.floor import decode_part
from benchmarks.table import COLUMNS
from benchmarks.task import FLOOR, US, Entry, Group, Part, Task, single

TITLE = "Kernel PCA"
FORMAT = "hdf5-none"
SHOWN = {name: cell for name, cell in COLUMNS.items() if "error" not in name and name != "1-MEV"}
PEERS = {"nystrom": "scikit-learn Nystroem + IncrementalPCA", "fourier": "scikit-learn RBFSampler + IncrementalPCA"}
LABELS = {"nystrom": "landmarks", "fourier": "random features"}


def run(bench: Bench) -> Section:
    """Compare the floor, us and scikit-learn, with both kinds of features."""
    data = bench.table("blobs", bench.size.kernel, FORMAT)
    features = bench.size.n_landmarks
    groups = []
    for method, peer in PEERS.items():
        options = {"method": method, "features": features, "gamma": 1 / data.n_features}
        pass_of_products = Part("kernel block + Gram", (Task("kernel-block", data, FORMAT, options),))
        entries = (
            Entry(FLOOR, (decode_part(data, FORMAT), pass_of_products)),
            single(US, Task("streampca-kernel", data, FORMAT, options)),
            single(peer, Task("sklearn-kernel", data, FORMAT, options)),
        )
        groups.append(Group(f"{features:,} {LABELS[method]}", entries))
    rows = bench.compare(groups)
    how = ". ".join(f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows if row.who != FLOOR and row.details)
    about = (
        f"{data.n_rows:,} x {data.n_features} float32, uncompressed, RBF kernel with gamma = 1 / {data.n_features}, k = {data.k}. The "
        "floor: `X @ Z.T` of every block, its exponential (or cosine and sine) and the product of the features with themselves, in float32."
    )
    return section(rows, about, f"How: {how}.", columns=SHOWN)
