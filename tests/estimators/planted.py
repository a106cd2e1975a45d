"""Data of known latent models, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr

from streampca.models.latent import LatentModel


def planted(
    n: int, d: int, r: int, *, noise: Any = 0.5, scale: float = 1.0, mean: Any = 3.0, seed: int = 0
) -> tuple[LatentModel, np.ndarray]:
    """Return a model and rows of it."""
    rng = np.random.default_rng([seed, n, d, r])
    W = scale * rng.normal(size=(d, r)) * np.linspace(2, 1, r)
    truth = LatentModel(W, np.broadcast_to(np.asarray(mean, float), d).copy(), noise, n)
    return truth, truth.sample(n, rng)


def with_holes(X: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    """Return the rows with some entries missing at random."""
    X = X.copy()
    X[np.random.default_rng(seed + 1).random(X.shape) < share] = np.nan
    return X


def stored(X: np.ndarray, folder: Path, kind: str) -> Path:
    """Write rows as a file of a kind."""
    path = folder / f"x.{kind}"
    if kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("X", data=X, chunks=(max(len(X) // 7, 1), X.shape[1]), compression="gzip")
    elif kind == "zarr":
        zarr.create_array(path, data=X, chunks=(max(len(X) // 7, 1), X.shape[1]), overwrite=True)
    else:
        np.save(path, X)
    return path
