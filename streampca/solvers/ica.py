"""Independent components: white scores from a PCA, rotated until each is as far from Gaussian as can be.

A. Hyvarinen, Fast and Robust Fixed-Point Algorithms for Independent Component Analysis (1999): the symmetric iteration with
g = tanh (logcosh), on a sample of white rows that is held in memory.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning

from streampca.engine import in_pass
from streampca.errors import DataError
from streampca.models.ica import ICAModel
from streampca.models.pca import Array, Floats, PCAModel

_STRIP_ROWS = 8192  # of which tanh is held at once


def sample_rows(n_rows: int, wanted: int, seed: int | None) -> NDArray[np.int64]:
    """Return the numbers of so many rows, in order: one at random from each of as many equal parts, so that no period is favoured.

    >>> sample_rows(4, 9, 0).tolist()
    [0, 1, 2, 3]
    """
    if wanted >= n_rows:
        return np.arange(n_rows)
    edges = np.arange(wanted + 1) * n_rows // wanted
    offsets = np.random.default_rng(seed or 0).random(wanted) * np.diff(edges)
    return edges[:-1] + offsets.astype(np.int64)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """A table of some of the rows of a pass, filled block by block in any order."""

    numbers: NDArray[np.int64]
    table: Floats

    def write(self, start: int, block: Array) -> None:
        """Take over those rows of a block that are wanted; ``start`` is the number of its first."""
        first, last = np.searchsorted(self.numbers, (start, start + len(block)))
        self.table[first:last] = block[self.numbers[first:last] - start]


@dataclass(frozen=True)
class Rotation:
    """An orthogonal matrix from white rows to sources, and how it was reached."""

    matrix: Floats
    n_iter: int
    change: float


def fast_ica(Z: Floats, seed: int | None, max_iter: int, tol: float) -> Rotation:
    """Return the rotation W that makes Z W^T as little Gaussian as can be: w <- E[z g(w.z)] - E[g'(w.z)] w, all at once.

    ``change`` is the largest 1 - |cos| between the rows of W before and after the last step.
    """
    k = Z.shape[1]
    W = nearest_rotation(np.random.default_rng(seed or 0).standard_normal((k, k)))
    change, number = 0.0, 0
    for number in range(1, max_iter + 1):  # noqa: B007
        following = nearest_rotation(_step(Z, W))
        change = float(np.abs(np.abs(np.einsum("ij,ij->i", following, W)) - 1).max())
        W = following
        if change <= tol:
            break
    return Rotation(W, number, change)


def _step(Z: Floats, W: Floats) -> Floats:
    products, slopes = np.zeros_like(W), np.zeros(len(W))
    for start in range(0, len(Z), _STRIP_ROWS):
        strip = Z[start : start + _STRIP_ROWS]
        g = np.tanh(strip @ W.T)
        products += g.T @ strip
        slopes += len(strip) - np.einsum("ij,ij->j", g, g)
    result: Floats = (products - slopes[:, None] * W) / len(Z)
    return result


def nearest_rotation(W: Floats) -> Floats:
    """Return the orthogonal matrix nearest to W, (W W^T)^(-1/2) W, which favours none of its rows.

    >>> nearest_rotation(np.diag([2.0, -3.0])).round(12).tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    U, _, V = linalg.svd(W, check_finite=False)
    rotation: Floats = U @ V
    return rotation + 0.0


def whitenable(model: PCAModel) -> int:
    """Return how many components have variance to be scaled by."""
    variances = model.explained_variance
    count = int(np.count_nonzero(variances > model.n_features * np.finfo(np.float64).eps * variances[0]))
    if count == 0:
        raise DataError("the data has no variance: all rows are equal, so there is nothing to unmix")
    return count


def model_of(white: PCAModel, Z: Floats, seed: int | None, max_iter: int, tol: float) -> ICAModel:
    """Return the independent components from the PCA of all rows and the white scores of some of them.

    Sources are ordered by how much of the variance their column of the mixing matrix carries; its largest entry is positive.
    """
    k = Z.shape[1]
    with in_pass():  # of short products, where more BLAS threads mostly wait for each other
        rotation = fast_ica(Z, seed, max_iter, tol)
    if rotation.change > tol:
        warnings.warn(
            f"after {rotation.n_iter} iterations the sources still turn by {rotation.change:.1e}, more than tol={tol:g}: raise max_iter "
            "or tol, or ask for fewer components (Gaussian sources cannot be told apart)",
            ConvergenceWarning,
            stacklevel=3,
        )
    deviations = np.sqrt(white.explained_variance[:k])
    whitening = white.components[:k] / deviations[:, None]
    mixing = (white.components[:k].T * deviations) @ rotation.matrix.T
    order = np.argsort(-np.einsum("ij,ij->j", mixing, mixing), kind="stable")
    mixing, W = mixing[:, order], rotation.matrix[order]
    signs = np.sign(mixing[np.abs(mixing).argmax(axis=0), np.arange(k)])
    return ICAModel(
        unmixing=(W * signs[:, None]) @ whitening,
        mixing=mixing * signs,
        mean=white.mean,
        whitening=whitening,
        total_variance=white.total_variance,
        n_samples=white.n_samples,
        n_rows_used=len(Z),
        n_iter=rotation.n_iter,
        change=rotation.change,
    )
