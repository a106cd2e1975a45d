"""Peers on Dask arrays: dask-ml, Dask's own compressed SVD, and what people write by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.runners import Work
from benchmarks.runners.reader import dask_array
from benchmarks.task import Task


def dask_ml_tsqr(task: Task) -> Work:
    """dask-ml's exact PCA."""
    return _dask_ml(task, "tsqr")


def dask_ml_randomized(task: Task) -> Work:
    """dask-ml's randomized PCA with its defaults, or with more power iterations."""
    return _dask_ml(task, "randomized", **task.options)


def _dask_ml(task: Task, solver: str, iterated_power: int = 0) -> Work:
    from dask_ml.decomposition import PCA

    x = dask_array(task)

    def work() -> dict[str, Any]:
        pca = PCA(task.data.k, svd_solver=solver, iterated_power=iterated_power, random_state=0).fit(x)
        return {"singular_values": pca.singular_values_, "components": pca.components_}

    return work


def svd_compressed(task: Task) -> Work:
    """Dask's randomized SVD with two power iterations, or as many as the options say."""
    import dask
    import dask.array as da

    x, n_power_iter = dask_array(task), task.options.get("n_power_iter", 2)

    def work() -> dict[str, Any]:
        _, s, v = da.linalg.svd_compressed(x - x.mean(axis=0), task.data.k, n_power_iter=n_power_iter, compute=False, seed=0)
        singular_values, components = dask.compute(s, v)
        return {"singular_values": singular_values, "components": components}

    return work


def gram(task: Task) -> Work:
    """``X.T @ X`` and the mean, then the eigenvectors."""
    import dask

    x = dask_array(task)

    def work() -> dict[str, Any]:
        products, total = dask.compute(x.T @ x, x.sum(axis=0, dtype=np.float64))
        scatter = products - np.outer(total, total) / len(x)
        values, vectors = np.linalg.eigh(scatter)
        k = task.data.k
        return {"singular_values": np.sqrt(values[::-1][:k]), "components": vectors.T[::-1][:k]}

    return work
