"""The exact answer of a table, and how far another one is from it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np

from benchmarks.dataset import Dataset
from benchmarks.stored import SMALL, Stored


class Answer(Protocol):
    """Sees all rows once, then stores the exact answer."""

    def add(self, block: np.ndarray) -> None: ...

    def save(self, path: Path, k: int) -> None: ...


def answer_of(data: Dataset) -> AbstractContextManager[Answer]:
    """Return what computes the exact answer of a table."""
    if data.n_features <= SMALL:
        return nullcontext(Exact(data.n_features))
    return Stored(data.n_rows, data.n_features, data.folder / "unfinished-rows.npy")


class Exact:
    """Sums of shifted rows: products in float64, a block at a time, added in long double."""

    def __init__(self, n_features: int) -> None:
        self.count = 0
        self.shift: np.ndarray | None = None
        self.total = np.zeros(n_features, np.longdouble)
        self.products = np.zeros((n_features, n_features), np.longdouble)

    def add(self, block: np.ndarray) -> None:
        x = block.astype(np.float64)
        if self.shift is None:
            self.shift = x.mean(axis=0)
        x -= self.shift
        self.count += len(x)
        self.total += x.sum(axis=0, dtype=np.longdouble)
        self.products += x.T @ x

    def save(self, path: Path, k: int) -> None:
        """Store the first k singular values and directions of the centred rows."""
        scatter = self.products - np.multiply.outer(self.total, self.total) / self.count
        values, vectors = np.linalg.eigh(scatter.astype(np.float64))
        np.savez(path, singular_values=np.sqrt(values[::-1][:k]), components=vectors.T[::-1][:k])


def errors(path: Path, singular_values: np.ndarray, components: np.ndarray | None) -> dict[str, float | None]:
    """Return the relative errors of the first and last singular value, and 1 - MEV (mean squared cosine to the exact subspace)."""
    exact = np.load(path)
    relative = np.abs(np.asarray(singular_values, np.float64) / exact["singular_values"] - 1)
    missed = None if components is None else one_minus_mev(np.asarray(components, np.float64), exact["components"])
    return {"error_first": float(relative[0]), "error_last": float(relative[-1]), "one_minus_mev": missed}


def one_minus_mev(components: np.ndarray, exact: np.ndarray) -> float:
    """Return the mean squared sine, from the part outside of the exact subspace: the difference 1 - MEV would cancel."""
    basis, _ = np.linalg.qr(components.T)
    outside = basis - exact.T @ (exact @ basis)
    return float(np.square(outside).sum() / len(exact))
