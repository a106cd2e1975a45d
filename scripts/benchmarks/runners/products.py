"""The floor of computing: the products of one decoded block, as often as there are blocks, in float32 at full BLAS speed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks import meter
from benchmarks.runners import Work
from benchmarks.runners.reader import open_array
from benchmarks.task import Task


def gram(task: Task) -> Work:
    """``X.T @ X`` with all BLAS threads."""
    block, heights = _block(task), task.data.block_heights()
    product = np.zeros((block.shape[1], block.shape[1]), np.float32)
    np.dot(block.T, block, out=product)

    def work() -> dict[str, str]:
        for rows in heights:
            np.dot(block[:rows].T, block[:rows], out=product)
        return {"detail": "BLAS threads"}

    return work


def gram_by_threads(task: Task) -> Work:
    """``X.T @ X`` of as many blocks at once as there are cores, with one BLAS thread each."""
    from threadpoolctl import threadpool_limits

    threads = meter.cores()
    threadpool_limits(limits=1)
    rooms = [(block := _block(task), np.zeros((block.shape[1], block.shape[1]), np.float32)) for _ in range(threads)]
    heights = [task.data.block_heights()[index::threads] for index in range(threads)]

    def multiply(room: tuple[np.ndarray, np.ndarray], heights: list[int]) -> None:
        block, product = room
        for rows in heights:
            np.dot(block[:rows].T, block[:rows], out=product)

    def work() -> dict[str, str]:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(multiply, rooms, heights))
        return {"detail": "one BLAS thread per block"}

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(multiply, rooms, [[task.data.block_rows]] * threads))
    return work


def project(task: Task) -> Work:
    """``X @ V`` for the k exact components, with all BLAS threads."""
    block, heights = _block(task), task.data.block_heights()
    vectors = np.ascontiguousarray(np.load(task.data.exact)["components"].T.astype(np.float32))
    scores = np.zeros((len(block), vectors.shape[1]), np.float32)
    np.dot(block, vectors, out=scores)

    def work() -> None:
        for rows in heights:
            np.dot(block[:rows], vectors, out=scores[:rows])

    return work


def _block(task: Task) -> np.ndarray:
    return np.array(open_array(task)[: task.data.block_rows])
