"""Data for the kernel tests: points on curves, digits, clusters of very different sizes."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, make_circles, make_swiss_roll

from streampca.statistics import Scatter


def digits(n: int = 300) -> np.ndarray:
    return load_digits().data[:n] / 16


def circles(n: int = 300) -> np.ndarray:
    return make_circles(n, noise=0.05, factor=0.4, random_state=0)[0]


def swiss_roll(n: int = 300) -> np.ndarray:
    return make_swiss_roll(n, random_state=0)[0] / 10


DATA = {"digits": digits, "circles": circles, "swiss roll": swiss_roll}


def scatter_of(X: np.ndarray, precision: str = "float64") -> Scatter:
    scatter = Scatter(X.shape[1], precision)  # type: ignore[arg-type]
    for start in range(0, len(X), 128):
        scatter.update(X[start : start + 128])
    return scatter


def scores_of(F: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the centred Gram matrix of features, and scores with the sign of their largest entry positive."""
    centred = F.astype(float) - F.mean(axis=0, dtype=float)
    U, s, _ = np.linalg.svd(centred, full_matrices=False)
    return s[:k] ** 2, signed(U[:, :k] * s[:k])


def signed(scores: np.ndarray) -> np.ndarray:
    largest = scores[np.abs(scores).argmax(axis=0), np.arange(scores.shape[1])]
    return scores * np.where(largest < 0, -1, 1)
