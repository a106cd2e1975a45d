"""Sparse PCA by penalised regression, from the covariance alone: one pass over the data, then small problems.

H. Zou, T. Hastie, R. Tibshirani, Sparse Principal Component Analysis (2006). Each component b_j regresses its score X a_j on the columns
with an elastic net, and A is the best orthonormal match of the result; both need only S.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import enet_path, lars_path_gram

from streampca.engine import in_pass
from streampca.models.pca import Floats
from streampca.models.sparse import SparseModel
from streampca.solvers.covariance import column_scales, eigenpairs
from streampca.solvers.spectrum import ONE_THREAD_LIMIT, Spectrum, check_sum_of_weights, fix_signs
from streampca.statistics.scatter import Precision, Scatter

Run = Callable[[str, Scatter], Scatter]

_SWEEPS = 1000  # of coordinate descent: warm starts need a few
_OPEN = 1e-9  # of the largest singular value: a smaller one says nothing of its direction
_GAP = 1e-9  # of the dual, relative: where coordinate descent stops


@dataclass(frozen=True)
class Penalty:
    """What makes components sparse: ``alpha`` and ``ridge`` in units of the mean variance of a column, or a number of nonzeros."""

    alpha: float = 1.0
    ridge: float = 1.0
    n_nonzero: int | None = None


@dataclass(frozen=True)
class Effort:
    """When to stop: by the change of the components (of unit length), or after so many iterations."""

    max_iter: int = 500
    tol: float = 1e-5


def solve(
    n_features: int,
    n_components: int | None,
    penalty: Penalty,
    effort: Effort,
    run: Run,
    *,
    precision: Precision,
    standardize: bool = False,
) -> SparseModel:
    """Return the model, after one pass."""
    scatter = run("scatter", Scatter(n_features, precision))
    return model_of(scatter, n_components, penalty, effort, standardize=standardize)


def model_of(scatter: Scatter, n_components: int | None, penalty: Penalty, effort: Effort, *, standardize: bool = False) -> SparseModel:
    """Return the sparse PCA of accumulated sums."""
    check_sum_of_weights(scatter.count, scatter.rows)
    d = scatter.n_features
    scale = column_scales(scatter) if standardize else np.ones(d)
    spectrum = eigenpairs(scatter, scale, d)
    k = min(n_components or d, d, max(scatter.rows, int(scatter.count)))  # rows that count several times are as many rows
    with in_pass() if d <= ONE_THREAD_LIMIT else nullcontext():
        fit = sparse_components(spectrum, k, penalty, effort)
    warn(fit, penalty, effort)
    variances = adjusted_variances(spectrum, fit.components)
    return SparseModel(fit.components, scatter.mean, scale, variances, spectrum.trace, scatter.rows, fit.n_iter, fit.change)


@dataclass(frozen=True)
class Sparse:
    """Components of unit length or zero, and how they were reached."""

    components: Floats
    n_iter: int
    change: float
    largest_alpha: float  # beyond which the least of the components would be zero at the start


class Nets(Protocol):
    """The regressions of all components, and products with the covariance that they are made of."""

    def times(self, M: Floats) -> Floats:
        """Return S M."""

    def solve(self, A: Floats, B: Floats) -> Floats:
        """Return B for the scores of A, starting from the last B."""


def sparse_components(
    spectrum: Spectrum, k: int, penalty: Penalty, effort: Effort, make: Callable[[Spectrum, Penalty, float], Nets] | None = None
) -> Sparse:
    """Alternate between the elastic nets of the scores, and the rotation A = U W^T of S B = U D W^T, from the PCA on."""
    d = spectrum.vectors.shape[1]
    unit = spectrum.trace / d or 1.0  # the mean variance of a column
    nets = (make or ElasticNets)(spectrum, penalty, unit)
    A = spectrum.vectors[:k].T.copy()
    reach = 2 * float(np.abs(nets.times(A)).max(axis=0).min()) / unit
    B, change, number = np.zeros((d, k)), 0.0, 0
    previous = np.zeros((d, k))
    for number in range(1, effort.max_iter + 1):  # noqa: B007
        B = nets.solve(A, B)
        unit_length = _unit_columns(B)
        change = float(np.abs(unit_length - previous).max())
        if change <= effort.tol:
            break
        previous = unit_length
        alive = B.any(axis=0)  # a component that is zero stays so: nothing says where else it should look
        A[:, ~alive] = 0.0
        if alive.any():
            A[:, alive] = nearest_orthonormal(nets.times(B[:, alive]), A[:, alive])
    return Sparse(fix_signs(_unit_columns(B).T) + 0.0, number, change, reach)


def nearest_orthonormal(M: Floats, before: Floats) -> Floats:
    """Return the orthonormal columns nearest to M, U W^T of M = U D W^T; where M leaves them open, those nearest to the ones before.

    >>> nearest_orthonormal(np.array([[3.0, 3.0], [0.0, 0.0], [0.0, 0.0]]), np.eye(3)[:, :2]).round(3).tolist()
    [[0.707, 0.707], [-0.707, 0.707], [0.0, 0.0]]
    """
    U, D, W = linalg.svd(M, full_matrices=False, check_finite=False)
    known = D / (D[0] or 1.0) > _OPEN
    U, W, rest = U[:, known], W[known], W[~known]
    result: Floats = U @ W
    if len(rest):
        U, _, V = linalg.svd((before - U @ (U.T @ before)) @ rest.T, full_matrices=False, check_finite=False)
        result += U @ V @ rest
    return result


class ElasticNets:
    """The regressions of all components: min (a - b)^T S (a - b) + ridge |b|^2 + alpha |b|_1, or the path to so many nonzeros."""

    def __init__(self, spectrum: Spectrum, penalty: Penalty, unit: float) -> None:
        variances, V = spectrum.variances, spectrum.vectors
        self.penalty = penalty
        self.alpha, ridge = penalty.alpha * unit, penalty.ridge * unit
        self.S = (V.T * variances) @ V
        self._gram = self.S + ridge * np.eye(len(V))
        # The same problem as a regression on d rows X with X^T X = S + ridge and X^T y = S a, as scikit-learn wants it.
        self._negligible = len(V) * np.finfo(np.float64).eps * float(variances[0])
        roots = np.sqrt(variances + ridge)
        self._V, self._X = V, np.asfortranarray(V * roots[:, None])
        self._y = np.divide(variances, roots, out=np.zeros_like(roots), where=roots > 0)  # times V a
        self._shrunk = np.divide(self._y, roots, out=np.zeros_like(roots), where=roots > 0)

    def times(self, M: Floats) -> Floats:
        """Return S M."""
        return self.S @ M

    def solve(self, A: Floats, B: Floats) -> Floats:
        """Return B for the scores of A, starting from the last B."""
        Q, Y = self.S @ A, self._y[:, None] * (self._V @ A)
        result = np.zeros_like(B)
        for j in np.flatnonzero(np.abs(Q).max(axis=0) > self._negligible):  # the others are rounding
            if self.penalty.n_nonzero is not None:
                result[:, j] = path_end(self._gram, Q[:, j].copy(), self.penalty.n_nonzero)
            elif self.alpha == 0:
                result[:, j] = self._V.T @ (self._shrunk * (self._V @ A[:, j]))
            else:
                result[:, j] = net(self._X, Y[:, j].copy(), self._gram, Q[:, j].copy(), B[:, j], self.alpha)
        return result


def net(X: Floats, y: Floats, gram: Floats, q: Floats, start: Floats, alpha: float) -> Floats:
    """Minimise b^T G b / 2 - q^T b + alpha/2 |b|_1 by coordinate descent, G = X^T X and q = X^T y; exact zeros."""
    if 2 * np.abs(q).max() <= alpha:
        return np.zeros_like(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the next iteration goes on from here
        _, path, _ = enet_path(
            X,
            y,
            l1_ratio=1.0,
            alphas=[alpha / 2 / len(y)],
            precompute=gram,
            Xy=q,
            coef_init=start.copy(),
            tol=_GAP,
            max_iter=_SWEEPS,
            check_input=False,
        )
    coefficients: Floats = path[:, 0]
    return coefficients


def path_end(gram: Floats, q: Floats, n_nonzero: int) -> Floats:
    """Follow the path of solutions, from zero on, to the point where one more column than wanted would enter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of columns that are equal: the path ends before them
        _, _, path = lars_path_gram(q, gram, n_samples=1, method="lasso", max_iter=2 * n_nonzero + 2, copy_X=True, copy_Gram=True)
    counts = np.count_nonzero(path, axis=0)
    beyond = np.flatnonzero(counts > n_nonzero)
    last = beyond[0] - 1 if len(beyond) else len(counts) - 1
    end: Floats = path[:, last]
    return end


def adjusted_variances(spectrum: Spectrum, components: Floats) -> Floats:
    """Return the variance that each component explains beyond those before it: the squared diagonal of R in the QR of the scores."""
    scores = np.sqrt(spectrum.variances)[:, None] * (spectrum.vectors @ components.T)
    R = np.linalg.qr(scores, mode="r")
    variances = np.zeros(len(components))
    diagonal = np.diagonal(R) ** 2
    variances[: len(diagonal)] = diagonal
    return variances


def _unit_columns(B: Floats) -> Floats:
    lengths = np.linalg.norm(B, axis=0)
    return B / np.where(lengths > 0, lengths, 1.0)


def warn(fit: Sparse, penalty: Penalty, effort: Effort) -> None:
    """Say what the fit left open."""
    empty = int((~fit.components.any(axis=1)).sum())
    if empty:
        alpha = f", or alpha={penalty.alpha:g} is too large (the last one starts at {fit.largest_alpha:.3g})" * (penalty.n_nonzero is None)
        warnings.warn(
            f"{empty} of {len(fit.components)} components are zero: the data has no variance left for them{alpha}; ask for fewer",
            UserWarning,
            stacklevel=3,
        )
    if fit.change > effort.tol:
        warnings.warn(
            f"after {fit.n_iter} iterations the components still change by {fit.change:.1e}, more than tol={effort.tol:g}: "
            "raise max_iter or tol",
            ConvergenceWarning,
            stacklevel=3,
        )
