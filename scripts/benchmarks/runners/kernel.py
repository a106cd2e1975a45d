"""Kernel PCA: streampca, scikit-learn's features with IncrementalPCA, and the floor of one pass."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import meter
from benchmarks.dataset import BLOCK_BYTES
from benchmarks.runners import Work
from benchmarks.runners.ours import MEMORY
from benchmarks.runners.reader import batches, open_array
from benchmarks.task import Task

SEEN = 20_000  # first rows, in random order, that scikit-learn draws its landmarks from
SAMPLE = 1_000  # rows whose kernel is compared with that of their features


def ours(task: Task) -> Work:
    """Fit a path."""
    import streampca as sp

    method, features, gamma = (task.options[name] for name in ("method", "features", "gamma"))
    count = {"n_landmarks": features} if method == "nystrom" else {"n_random_features": features}
    sp.open_source(task.path)
    sp.KernelPCA(1, method=method).fit(np.random.default_rng(0).standard_normal((50, 2)))  # imports all that a fit needs

    def work() -> dict[str, Any]:
        pca = sp.KernelPCA(task.data.k, kernel="rbf", gamma=gamma, method=method, memory=MEMORY, random_state=0, **count).fit(task.path)
        return {"passes": pca.n_passes_, "detail": _describe(pca.approximation_error_["frobenius"])}

    return work


def sklearn(task: Task) -> Work:
    """Features of a batch, into IncrementalPCA; its default batch of five times the features."""
    from sklearn.decomposition import IncrementalPCA
    from sklearn.kernel_approximation import Nystroem, RBFSampler

    features, gamma = task.options["features"], task.options["gamma"]
    kind = Nystroem if task.options["method"] == "nystrom" else RBFSampler
    array = open_array(task)

    def work() -> dict[str, Any]:
        mapped = kind(gamma=gamma, n_components=features, random_state=0).fit(array[:SEEN])
        pca = IncrementalPCA(task.data.k)
        for batch in batches(array, 5 * features, least=task.data.k):
            pca.partial_fit(mapped.transform(batch))
        return {"detail": lambda: _describe(_error(mapped, array[:SAMPLE], gamma))}

    return work


def _error(mapped: Any, x: np.ndarray, gamma: float) -> float:
    from sklearn.metrics.pairwise import rbf_kernel

    features, kernel = mapped.transform(x), rbf_kernel(x, gamma=gamma)
    return float(np.linalg.norm(features @ features.T - kernel) / np.linalg.norm(kernel))


def _describe(error: float) -> str:
    return f"the kernel of sampled rows is off by {error:.1e}"


def block(task: Task) -> Work:
    """The products and exponentials (or cosines and sines) of one block, as often as there are blocks, one BLAS thread each."""
    from threadpoolctl import threadpool_limits

    threads, features = meter.cores(), task.options["features"]
    threadpool_limits(limits=1)
    height = min(max(BLOCK_BYTES // (4 * features), 1), task.data.n_rows)
    x = np.array(open_array(task)[:height]) * np.float32(0.1)  # so small that no exponential overflows
    by_landmarks = task.options["method"] == "nystrom"
    width = features if by_landmarks else features // 2  # a frequency gives a cosine and a sine
    z = np.ascontiguousarray(np.resize(x, (width, x.shape[1])).T)
    rooms = [(np.zeros((height, features), np.float32), np.zeros((features, features), np.float32)) for _ in range(threads)]
    n_blocks = -(-task.data.n_rows // height)

    def multiply(room: tuple[np.ndarray, np.ndarray], count: int) -> None:
        mapped, product = room
        for _ in range(count):
            if by_landmarks:
                np.dot(x, z, out=mapped)
                np.exp(mapped, out=mapped)
            else:
                angles = np.dot(x, z)
                np.cos(angles, out=mapped[:, :width])
                np.sin(angles, out=mapped[:, width:])
            np.dot(mapped.T, mapped, out=product)

    def work() -> dict[str, str]:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(multiply, rooms, [len(range(index, n_blocks, threads)) for index in range(threads)]))
        return {"detail": "one BLAS thread per block"}

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, rooms, [1] * threads))
    return work
