"""The exact answer of a table too wide for its d x d scatter: its rows are kept in a scratch file, and read again as often as needed.

In float64 throughout: from the n x n products of the rows where they fit, otherwise by block Lanczos until the residuals prove the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

SMALL = 5_000  # rows or columns whose products are formed
WORK = 2**28  # bytes of float64 at a time
EXTRA, MOST_STEPS = 24, 60  # directions of a block beyond k, and blocks, of Lanczos
GOOD = 1e-20  # bound of 1 - MEV


class Stored:
    """Rows in a scratch file, removed on leaving."""

    def __init__(self, n_rows: int, n_features: int, scratch: Path) -> None:
        self._scratch, self._filled = scratch, 0
        self._x = np.lib.format.open_memmap(scratch, mode="w+", dtype=np.float32, shape=(n_rows, n_features))

    def __enter__(self) -> Stored:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.unlink(missing_ok=True)

    def add(self, block: np.ndarray) -> None:
        self._x[self._filled : self._filled + len(block)] = block
        self._filled += len(block)

    def save(self, path: Path, k: int) -> None:
        """Store the first k singular values and directions of the centred rows."""
        mean = column_means(self._x)
        s, v = by_products(self._x, mean, k) if len(self._x) <= SMALL else by_lanczos(self._x, mean, k)
        np.savez(path, singular_values=s, components=v.T)


def column_means(x: np.ndarray) -> np.ndarray:
    """Return the means of the columns, summed in float64."""
    shift = np.asarray(x[0], np.float64)
    return shift + sum((x[rows] - shift).sum(axis=0) for rows in _slabs(*x.shape)) / len(x)


def by_products(x: np.ndarray, mean: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return s and V of the centred rows, from their n x n products."""
    gram = np.zeros((len(x), len(x)))
    for columns in _slabs(x.shape[1], len(x)):
        slab = x[:, columns] - mean[columns]
        gram += slab @ slab.T
    values, u = np.linalg.eigh(gram)
    s, u = np.sqrt(values[::-1][:k]), u[:, ::-1][:, :k]
    v = np.zeros((x.shape[1], k))
    for rows in _slabs(*x.shape):
        v += (x[rows] - mean).T @ u[rows]
    return s, np.linalg.qr(v / s)[0]


def by_lanczos(x: np.ndarray, mean: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return s and V of the centred rows by block Lanczos with full orthogonalization.

    The mean squared sine to the exact subspace is at most |R|^2 / (k gap^2) (Davis and Kahan), R the residuals, gap that after the k-th.
    """
    start = np.random.default_rng(2).standard_normal((x.shape[1], k + EXTRA))
    q = np.linalg.qr(start)[0]
    sq = _scatter_times(x, mean, q)
    for step in range(MOST_STEPS):
        projected = q.T @ sq
        values, y = np.linalg.eigh((projected + projected.T) / 2)
        values, y = values[::-1], y[:, ::-1][:, :k]
        residual = sq @ y - (q @ y) * values[:k]
        bound = np.square(residual).sum() / (k * (values[k - 1] - values[k]) ** 2)
        print(f"  exact answer, step {step + 1}: 1 - MEV is at most {bound:.0e}", flush=True)
        if bound < GOOD:
            return np.sqrt(values[:k]), np.linalg.qr(q @ y)[0]
        new = sq[:, -(k + EXTRA) :]
        for _ in range(2):  # once leaves rounding errors
            new = np.linalg.qr(new - q @ (q.T @ new))[0]
        q, sq = np.hstack([q, new]), np.hstack([sq, _scatter_times(x, mean, new)])
    raise RuntimeError(f"the exact answer did not converge: 1 - MEV may be {bound:.0e}")


def _scatter_times(x: np.ndarray, mean: np.ndarray, v: np.ndarray) -> np.ndarray:
    out = np.zeros_like(v)
    for rows in _slabs(*x.shape):
        centred = x[rows] - mean
        out += centred.T @ (centred @ v)
    return out


def _slabs(length: int, width: int) -> Iterator[slice]:
    step = max(WORK // (8 * width), 1)
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
