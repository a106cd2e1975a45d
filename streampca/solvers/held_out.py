"""How well probabilistic PCA with each number of components predicts rows that were not fitted, from two covariances."""

from __future__ import annotations

import numpy as np

from streampca.errors import DataError
from streampca.models.pca import Floats
from streampca.solvers.spectrum import Spectrum

_NOTHING = 1e-12  # of the largest variance: noise below it is rounding, and has no density


def log_likelihoods(spectrum: Spectrum, n: float, second: Floats) -> Floats:
    """Return the mean log-likelihood of a held-out row with 0, 1, 2, ... components, fitted to n other rows.

    ``spectrum`` is the whole of the fitted rows', ``second`` the mean of (x - m)(x - m)^T over the held-out rows, m the fitted mean. With
    the eigenpairs (l, v) of the fitted covariance (divisor n) and s_i = v_i^T second v_i, r components have
    -1/2 [d ln 2 pi + sum ln l_i + (d - r) ln s2 + sum s_i / l_i + (Tr second - sum s_i) / s2], sums over the first r.

    >>> spectrum = Spectrum(np.array([2.0, 1.0]), np.eye(2), 3.0)
    >>> log_likelihoods(spectrum, 1e9, np.diag([2.0, 1.0])).round(3).tolist()
    [-3.243, -3.184]
    """
    variances, V = spectrum.variances * ((n - 1) / n), spectrum.vectors
    d, rank = len(variances), int(np.count_nonzero(variances > _NOTHING * variances[0]))
    if rank == 0:
        raise DataError("n_components='held-out': the rows have no variance")
    seen = np.einsum("ij,ij->i", V @ second, V)
    r = np.arange(min(rank, d))
    noise = _tail_sums(variances)[r] / (d - r)
    within = np.r_[0.0, (np.log(variances[:rank]) + seen[:rank] / variances[:rank]).cumsum()][r]
    curve: Floats = -0.5 * (d * np.log(2 * np.pi) + within + (d - r) * np.log(noise) + _tail_sums(seen)[r] / noise)
    return curve


def _tail_sums(values: Floats) -> Floats:
    """Return the sum of each entry and all after it, the small ones first."""
    return values[::-1].cumsum()[::-1]
