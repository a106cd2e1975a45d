"""The floor: what the job costs if nothing but its unavoidable parts is done, each measured alone."""

from __future__ import annotations

from benchmarks.dataset import Dataset
from benchmarks.task import FLOOR, Entry, Part, Task


def decode_part(data: Dataset, name: str) -> Part:
    """Decode the file with the fastest decoder that there is."""
    runners = ["decode"]
    if name == "hdf5-none":
        runners.append("decode-one-thread")
    if name.startswith("zarr"):
        runners.append("decode-zarrs")
    return Part("decode", tuple(Task(runner, data, name) for runner in runners))


def fit_floor(data: Dataset, name: str) -> Entry:
    """Decode, and X.T @ X of every block."""
    gram = Part("X.T @ X", (Task("gram", data, name), Task("gram-by-threads", data, name)))
    return Entry(FLOOR, (decode_part(data, name), gram))


def transform_floor(data: Dataset, name: str, out: str) -> Entry:
    """Decode, X @ V of every block, and write the scores."""
    project, write = Task("project", data, name), Task("write-zarr", data, name, {"out": out})
    return Entry(FLOOR, (decode_part(data, name), Part("X @ V", (project,)), Part("write", (write,))))
