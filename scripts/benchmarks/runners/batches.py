"""Peers that take the table whole, or slice after slice: scikit-learn and oneDAL."""

from __future__ import annotations

from typing import Any

from benchmarks import meter
from benchmarks.runners import Work
from benchmarks.runners.reader import batches, open_array
from benchmarks.task import Task

COPIES = 3  # of the table, that scikit-learn's PCA may hold


def sklearn_pca(task: Task) -> Work:
    """scikit-learn's PCA of the whole table in memory, where there is room for it, with the options as parameters."""
    from sklearn.decomposition import PCA

    array = open_array(task)
    needed, available = COPIES * task.data.n_rows * task.data.row_bytes, meter.available_memory()
    if available is not None and needed > available:
        raise MemoryError(f"it needs about {needed >> 20} MiB, and {available >> 20} MiB are free")
    return lambda: _answer(PCA(task.data.k, **task.options).fit(array[:]))


def sklearn_incremental(task: Task) -> Work:
    """scikit-learn's IncrementalPCA, in batches of five times the columns, its own default, or of the rows that the options say."""
    from sklearn.decomposition import IncrementalPCA

    return _by_batches(task, IncrementalPCA(task.data.k), task.options.get("batch_rows", 5 * task.data.n_features))


def onedal_incremental(task: Task) -> Work:
    """oneDAL's IncrementalPCA, in batches of 8 MiB of float32."""
    from sklearnex.preview.decomposition import IncrementalPCA

    return _by_batches(task, IncrementalPCA(task.data.k), task.data.block_rows)


def _by_batches(task: Task, pca: Any, rows: int) -> Work:
    array = open_array(task)

    def work() -> dict[str, Any]:
        for batch in batches(array, rows, least=task.data.k):
            pca.partial_fit(batch)
        return _answer(pca)

    return work


def _answer(pca: Any) -> dict[str, Any]:
    components = pca.components_  # first: reading it is what makes oneDAL finish
    return {"singular_values": pca.singular_values_, "components": components}
