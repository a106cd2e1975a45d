"""Sparse PCA: streampca from the file, scikit-learn in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.rows import SPARSE_WIDTH, sparse_columns
from benchmarks.runners import Work
from benchmarks.runners.ours import MEMORY, import_all
from benchmarks.runners.reader import open_array
from benchmarks.task import Task


def ours(task: Task) -> Work:
    """Fit a path in one pass."""
    import streampca as sp

    import_all(task)
    sp.SparsePCA(1).fit(np.eye(3))

    def work() -> dict[str, Any]:
        found = sp.SparsePCA(task.data.k, n_nonzero=SPARSE_WIDTH, memory=MEMORY).fit(task.path)
        return {"passes": found.n_passes_, "detail": lambda: _agreement(found.components_, task)}

    return work


def sklearn(task: Task) -> Work:
    """Read all, then fit in memory."""
    from sklearn.decomposition import SparsePCA

    return _in_memory(task, SparsePCA(task.data.k, alpha=task.options["alpha"], random_state=0))


def sklearn_batches(task: Task) -> Work:
    """Read all, then fit in memory by batches."""
    from sklearn.decomposition import MiniBatchSparsePCA

    return _in_memory(task, MiniBatchSparsePCA(task.data.k, alpha=task.options["alpha"], random_state=0))


def _in_memory(task: Task, estimator: Any) -> Work:
    array = open_array(task)

    def work() -> dict[str, Any]:
        estimator.fit(array[:])
        return {"detail": lambda: _agreement(estimator.components_, task)}

    return work


def _agreement(components: np.ndarray, task: Task) -> str:
    """Return how well the columns of the planted components were found: their overlap by their union, the best of any component."""
    if task.data.kind != "sparse":
        return ""
    shares = []
    for i in range(task.data.k):
        planted = np.zeros(task.data.n_features, bool)
        planted[sparse_columns(task.data, i)] = True
        shares.append(max(np.sum(planted & (row != 0)) / np.sum(planted | (row != 0)) for row in components))
    return f"columns of the components found: {np.mean(shares):.0%}"
