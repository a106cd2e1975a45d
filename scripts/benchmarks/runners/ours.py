"""streampca, as its users call it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

import streampca as sp
from benchmarks.runners import Work
from benchmarks.task import Task

MEMORY = "1GiB"


def fit(task: Task) -> Work:
    """Fit a path, with the options as parameters. It is opened once before, as the peers do; fit opens it again, on the clock."""
    import_all(task)

    def work() -> dict[str, Any]:
        pca = sp.PCA(task.data.k, memory=MEMORY, **task.options).fit(task.path)
        return {
            "singular_values": pca.singular_values_,
            "components": pca.components_,
            "passes": pca.n_passes_,
            "estimated_error": float(pca.accuracy_["subspace_error"]),
            "detail": f"{pca.solver_}, {pca.plan_.workers} workers, {pca.plan_.precision}",
        }

    return work


def save(task: Task) -> Work:
    """Fit and store a model, for the runs that need one."""
    return lambda: sp.PCA(task.data.k, memory=MEMORY).fit(task.path).save(task.options["model"], overwrite=True)


def transform(task: Task) -> Work:
    """Write the scores of a path to Zarr."""
    pca = sp.load(task.options["model"])
    import_all(task)
    out = Path(task.options["out"])
    shutil.rmtree(out, ignore_errors=True)

    def work() -> dict[str, Any]:
        pca.transform_to(task.path, out)
        return {"singular_values": lambda: _norms(out), "passes": 1}

    return work


def import_all(task: Task) -> None:
    """Import what the first fit would (readers, Dask's schedulers), by opening the file and fitting a few numbers."""
    sp.open_source(task.path)
    sp.PCA(1).fit(np.eye(3))


def _norms(out: Path) -> np.ndarray:
    """Return the norms of the score columns, which are the singular values."""
    import zarr

    scores = zarr.open_array(out, mode="r")[:].astype(np.float64)
    shutil.rmtree(out)
    return np.linalg.norm(scores, axis=0)
