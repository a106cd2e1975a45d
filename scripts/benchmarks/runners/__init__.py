"""Runners: each is a function that imports and opens what it needs and returns the work to be timed.

The work returns a dictionary (or None) with any of ``singular_values`` (or a function that reads them back), ``components``, ``passes``,
``estimated_error`` (1 - MEV), ``iteration_seconds``, ``detail`` (a text, or a function that finds it). Modules are imported when they are
needed, so that no process carries the libraries of another runner.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from benchmarks.task import Task

Work = Callable[[], dict[str, Any] | None]
Runner = Callable[[Task], Work]

RUNNERS = {
    "streampca": "ours:fit",
    "streampca-save": "ours:save",
    "streampca-transform": "ours:transform",
    "streampca-profile": "profile:run",
    "decode": "decode:direct",
    "decode-one-thread": "decode:one_thread",
    "decode-zarrs": "decode:zarrs",
    "gram": "products:gram",
    "gram-by-threads": "products:gram_by_threads",
    "project": "products:project",
    "write-zarr": "write:zarr_scores",
    "sklearn-pca": "batches:sklearn_pca",
    "sklearn-incremental": "batches:sklearn_incremental",
    "onedal-incremental": "batches:onedal_incremental",
    "dask-ml-tsqr": "lazy:dask_ml_tsqr",
    "dask-ml-randomized": "lazy:dask_ml_randomized",
    "dask-svd-compressed": "lazy:svd_compressed",
    "dask-gram": "lazy:gram",
    "streampca-missing": "latent:ours",
    "ppca-rs": "latent:ppca_rs",
    "streampca-kernel": "kernel:ours",
    "sklearn-kernel": "kernel:sklearn",
    "kernel-block": "kernel:block",
    "selection": "selection:run",
    "nightly-fit": "nightly:fit",
    "nightly-update": "nightly:update",
    "job": "nightly:job",
    "streampca-sparse": "sparse:ours",
    "sklearn-sparse": "sparse:sklearn",
    "sklearn-sparse-batches": "sparse:sklearn_batches",
    "streampca-latent": "latent:complete",
    "sklearn-latent": "latent:sklearn",
}


def find(name: str) -> Runner:
    """Return a runner by its name."""
    module, _, function = RUNNERS[name].partition(":")
    runner: Runner = getattr(import_module(f"benchmarks.runners.{module}"), function)
    return runner
