"""Sparse PCA of a table too wide for its covariance: from its leading directions, and the mean variance of all the others.

S is taken as V^T (L - s) V + s I, the probabilistic PCA of a sketch: what a sparse component needs beyond its own neighbourhood is the
variance of single columns. No d x d matrix is formed; the elastic nets are solved on the few columns that matter, and the conditions of
an optimum are checked on all (the active-set strategy of Tibshirani et al., Strong rules for discarding predictors, 2012).
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from streampca.errors import UsageError
from streampca.models.pca import Floats, PCAModel
from streampca.models.sparse import SparseModel
from streampca.planning.sparse import MOST
from streampca.solvers.sparse_pca import Effort, Penalty, net, path_end, sparse_components, warn
from streampca.solvers.spectrum import Spectrum

_FIRST = 100  # columns that it starts with, at least
_SLACK = 1e-6  # of the penalty, by which a condition may be missed
_TINY = 1e-12  # of the largest variance, that keeps products of columns positive definite


def model_of(pca: PCAModel, k: int, penalty: Penalty, effort: Effort) -> SparseModel:
    """Return the sparse PCA of what a PCA with more components tells of the covariance."""
    spectrum = Spectrum(pca.explained_variance, pca.components, pca.total_variance)
    fit = sparse_components(spectrum, k, penalty, effort, LowRankNets)
    warn(fit, penalty, effort)
    variances = adjusted_variances(spectrum, fit.components)
    return SparseModel(fit.components, pca.mean, pca.scale, variances, spectrum.trace, pca.n_samples, fit.n_iter, fit.change)


class LowRankNets:
    """The regressions of all components on a covariance of which the leading directions and the mean of the rest are known."""

    def __init__(self, spectrum: Spectrum, penalty: Penalty, unit: float) -> None:
        self._V, self._rest = spectrum.vectors, mean_of_rest(spectrum)
        self._above = np.maximum(spectrum.variances - self._rest, 0.0)
        self.penalty, self.alpha, self._ridge = penalty, penalty.alpha * unit, penalty.ridge * unit
        self._floor = _TINY * float(spectrum.variances[0])

    def times(self, M: Floats) -> Floats:
        """Return S M."""
        weights = self._above if M.ndim == 1 else self._above[:, None]
        product: Floats = self._V.T @ (weights * (self._V @ M))
        product += self._rest * M
        return product

    def solve(self, A: Floats, B: Floats) -> Floats:
        """Return B for the scores of A, starting from the last B."""
        Q, result = self.times(A), np.zeros_like(B)
        for j in np.flatnonzero(np.abs(Q).max(axis=0) > self._floor):
            if self.penalty.n_nonzero is None and self.alpha == 0:
                result[:, j] = self._shrunk(A[:, j])
            else:
                result[:, j] = self._net(np.ascontiguousarray(Q[:, j]), np.ascontiguousarray(B[:, j]))
        return result

    def _shrunk(self, a: Floats) -> Floats:
        """Return (S + ridge)^-1 S a: without a penalty on entries there is nothing to search for."""
        inside = self._V @ a
        variances = self._above + self._rest
        rest = self._rest / (self._rest + self._ridge or 1.0)
        shrunk: Floats = self._V.T @ ((variances / (variances + self._ridge) - rest) * inside) + rest * a
        return shrunk

    def _net(self, q: Floats, start: Floats) -> Floats:
        """Solve a regression on more and more columns, until those left out would stay zero."""
        if self.penalty.n_nonzero is None and 2 * np.abs(q).max() <= self.alpha:
            return np.zeros_like(start)
        first = max(_FIRST, 4 * (self.penalty.n_nonzero or 0))
        columns = np.union1d(np.flatnonzero(start), _largest(np.abs(q), first))
        while True:
            b, level = self._on(columns, q, start)
            gradient = np.abs(q - self.times(b) - self._ridge * b)
            gradient[columns] = 0.0
            wrong = np.flatnonzero(gradient > (1 + _SLACK) * level + self._floor)
            if len(wrong) == 0:
                return b
            more = wrong[_largest(gradient[wrong], len(columns))]
            columns, start = np.union1d(columns, more), b
            if len(columns) > MOST:
                raise UsageError(
                    f"a component needs more than {MOST:,} columns at once, which only a covariance in memory allows: "
                    "raise alpha, set n_nonzero, or give more memory"
                )

    def _on(self, columns: np.ndarray, q: Floats, start: Floats) -> tuple[Floats, float]:
        """Return the solution on some columns, zero elsewhere, and the gradient at which a column would enter."""
        V = self._V[:, columns]
        gram = (V.T * self._above) @ V
        gram.flat[:: len(gram) + 1] += self._rest + self._ridge + self._floor
        b, inside = np.zeros_like(q), np.ascontiguousarray(q[columns])
        if self.penalty.n_nonzero is not None:
            b[columns] = path_end(gram, inside, self.penalty.n_nonzero)
            return b, float(np.abs(inside - gram @ b[columns]).max())
        root = linalg.cholesky(gram, check_finite=False)
        y = linalg.solve_triangular(root, inside, trans="T", check_finite=False)
        b[columns] = net(np.asfortranarray(root), y, gram, inside, start[columns], self.alpha)
        return b, self.alpha / 2


def mean_of_rest(spectrum: Spectrum) -> float:
    """Return the mean of the variances that are not known one by one."""
    known, d = spectrum.vectors.shape
    return max(spectrum.trace - float(spectrum.variances.sum()), 0.0) / (d - known) if d > known else 0.0


def adjusted_variances(spectrum: Spectrum, components: Floats) -> Floats:
    """Return the variance that each component explains beyond those before it, from the QR of a root of S times the components."""
    rest = mean_of_rest(spectrum)
    above = np.sqrt(np.maximum(spectrum.variances - rest, 0.0))[:, None] * (spectrum.vectors @ components.T)
    R = np.linalg.qr(np.vstack([above, np.sqrt(rest) * components.T]), mode="r")
    variances: Floats = np.diagonal(R) ** 2
    return variances


def _largest(values: Floats, count: int) -> np.ndarray:
    """Return the places of the largest values."""
    if count >= len(values):
        return np.arange(len(values))
    return np.argpartition(values, -count)[-count:]
