"""How users of the peers open a table: h5py and zarr, and Dask on top of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.task import Task

DASK_BLOCK = "32MiB"  # kinder to the memory of Dask's peers than its default of 128 MiB


def open_array(task: Task) -> Any:
    """Return an h5py dataset or a Zarr array."""
    if task.format.startswith("zarr"):
        import zarr

        return zarr.open_array(task.path, mode="r")
    import h5py

    if task.format == "hdf5-blosc":
        import hdf5plugin  # noqa: F401 - registers the filter
    return h5py.File(task.path, "r")["X"]


def batches(array: Any, rows: int, least: int) -> Iterator[np.ndarray]:
    """Yield slices of so many rows; the last one takes over a rest of fewer than ``least``."""
    start, n_rows = 0, array.shape[0]
    while start < n_rows:
        stop = n_rows if n_rows - start - rows < least else start + rows
        yield array[start:stop]
        start = stop


def dask_array(task: Task) -> Any:
    """Return the table as a Dask array of blocks of whole rows."""
    import dask
    import dask.array as da

    da.ones(1).compute(scheduler="threads")  # imports Dask's schedulers
    array = open_array(task)
    with dask.config.set({"array.chunk-size": DASK_BLOCK}):
        make = da.from_zarr if task.format.startswith("zarr") else da.from_array
        return make(array, chunks=("auto", array.shape[1]))
