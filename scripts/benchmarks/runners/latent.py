"""Probabilistic PCA with missing entries: streampca from the file, ppca_rs in memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.runners import Work
from benchmarks.runners.ours import MEMORY
from benchmarks.runners.reader import open_array
from benchmarks.task import Task


def ours(task: Task) -> Work:
    """Fit a path by so many EM iterations."""
    import streampca as sp

    sp.open_source(task.path)
    sp.ProbabilisticPCA(1, max_iter=2).fit(np.array([[1.0, 2, 3], [3, np.nan, 1], [0, 1, 5], [2, 2, 0]]))  # imports all that a fit needs
    iterations = task.options["iterations"]

    def work() -> dict[str, Any]:
        start = time.perf_counter()
        ppca = sp.ProbabilisticPCA(task.data.k, method="em", max_iter=iterations, tol=1e-12, memory=MEMORY, random_state=0).fit(task.path)
        each = (time.perf_counter() - start) / ppca.n_iter_
        detail = f"{ppca.n_iter_} iterations, log-likelihood of a row {ppca.loglike_[-1] / task.data.n_rows:.2f}"
        return {"iteration_seconds": each, "passes": ppca.n_passes_, "detail": detail}

    return work


def ppca_rs(task: Task) -> Work:
    """Read the file, and iterate in memory."""
    from ppca_rs import Dataset, PPCAModel

    array, iterations = open_array(task), task.options["iterations"]

    def work() -> dict[str, Any]:
        rows = Dataset(array[:].astype(np.float64))
        model = PPCAModel.init(task.data.k, rows)
        start = time.perf_counter()
        for _ in range(iterations):
            model = model.iterate(rows)
        each = (time.perf_counter() - start) / iterations
        model = model.to_canonical()
        return {"iteration_seconds": each, "detail": lambda: f"log-likelihood of a row {model.llk(rows) / len(rows):.2f}"}

    return work


def complete(task: Task) -> Work:
    """Fit a path without missing entries, and score it."""
    import streampca as sp

    sp.open_array(task.path)  # imports what scoring a path needs
    estimator = {"ppca": sp.ProbabilisticPCA, "fa": sp.FactorAnalysis}[task.options["method"]]
    estimator(1).fit(np.eye(3))

    def work() -> dict[str, Any]:
        model = estimator(task.data.k, memory=MEMORY, **task.options.get("parameters", {})).fit(task.path)
        return {"passes": model.n_passes_, "detail": f"log-likelihood of a row {model.score(task.path):.4f}"}

    return work


def sklearn(task: Task) -> Work:
    """Read the file, fit and score in memory."""
    from sklearn.decomposition import PCA, FactorAnalysis

    array = open_array(task)
    model = {"ppca": PCA, "fa": FactorAnalysis}[task.options["method"]](task.data.k)

    def work() -> dict[str, Any]:
        rows = array[:]
        return {"detail": f"log-likelihood of a row {model.fit(rows).score(rows):.4f}"}

    return work
