"""A fit to all rows, an update by the rows of a night, and a run with its checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import streampca as sp
from benchmarks.runners import Work
from benchmarks.runners.ours import MEMORY, import_all
from benchmarks.task import Task
from streampca.events import Observer
from streampca.jobs import JobConfig, run_job


def fit(task: Task) -> Work:
    """Fit all rows, old and new, and store the answer for the update to be compared with."""
    import_all(task)

    def work() -> dict[str, Any]:
        pca = _pca(task).fit([task.path, task.options["new"]])
        return {"passes": pca.n_passes_, "detail": lambda: _store(pca, task)}

    return work


def update(task: Task) -> Work:
    """Fit the old rows, off the clock; add those of the night, on it."""
    pca = _pca(task).fit(task.path)

    def work() -> dict[str, Any]:
        pca.partial_fit(task.options["new"])
        return {"passes": pca.n_passes_, "detail": lambda: _difference(pca, task)}

    return work


def job(task: Task) -> Work:
    """A configured run that stores its model, with checkpoints as often as the options say."""
    import_all(task)
    out = task.data.folder / "job"
    shutil.rmtree(out, ignore_errors=True)
    config = JobConfig.model_validate(
        {
            "input": {"path": task.path},
            "method": {"name": "pca", "n_components": task.data.k},
            "memory": MEMORY,
            "output": {"model": str(out / "model.zarr")},
            "checkpoint": {"every": task.options["every"]},
        }
    )

    def work() -> dict[str, Any]:
        summary = run_job(config, Observer())
        return {"passes": summary["passes"], "detail": lambda: _checkpoints(out)}

    return work


def _pca(task: Task) -> sp.PCA:
    return sp.PCA(task.data.k, memory=MEMORY, solver="covariance", precision=task.options["precision"])


def _answer(task: Task) -> Path:
    return task.data.folder / f"with-night-{task.options['precision']}.npz"


def _store(pca: sp.PCA, task: Task) -> None:
    np.savez(_answer(task), variances=pca.explained_variance_, components=pca.components_, mean=pca.mean_)


def _difference(pca: sp.PCA, task: Task) -> str:
    """Return how far the update is from the fit to all rows, relative to the largest entry of each."""
    with np.load(_answer(task)) as whole:
        found = {"variances": pca.explained_variance_, "components": pca.components_, "mean": pca.mean_}
        parts = [f"{name} {np.abs(value - whole[name]).max() / np.abs(whole[name]).max():.0e}" for name, value in found.items()]
    return "difference to the fit to all rows: " + ", ".join(parts)


def _checkpoints(out: Path) -> str:
    manifest = json.loads(next(out.glob("*.manifest.json")).read_text())
    shutil.rmtree(out)
    written, peak = manifest["checkpoints"], manifest["summary"]["peak_memory"]
    projected = manifest["plan"]["peak_memory"]
    return f"{written['written']} checkpoints in {written['seconds']:.2f} s, peak {peak / 2**20:.0f} MiB, planned {projected / 2**20:.0f}"
