"""Factor analysis of complete data by maximum likelihood: EM, and the profile of the likelihood where the covariance fits the memory.

The symbols are those of ``likelihood.py``; rows with missing entries are in ``ppca_missing.py``.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
from scipy import linalg, optimize

from streampca.engine import in_pass
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.solvers.likelihood import (
    FACTOR_NOISE_FLOOR,
    Multiply,
    Parameters,
    Passes,
    Run,
    Track,
    check_variance,
    noise_floor,
    random_start,
)
from streampca.solvers.spectrum import ONE_THREAD_LIMIT
from streampca.statistics.moments import Moments
from streampca.statistics.posterior import symmetric


def factor_step(SB: Floats, diagonal: Floats, W: Floats, noise: Floats, *, expand: bool = True) -> tuple[Floats, Floats, float]:
    """Return W and noise after one EM step of factor analysis, and the log-likelihood of a row (on average) before it.

    Only the diagonal of S and S B are needed, B = Psi^-1 W. With ``expand`` z may have any covariance within a step
    (parameter-expanded EM: Liu, Rubin & Wu 1998).
    """
    d, r = W.shape
    B = W / noise[:, None]
    squares, V = np.linalg.eigh(symmetric(W.T @ B))
    D = np.sqrt(1 + np.maximum(squares, 0.0))  # with z turned by V, M = D^2
    Y = SB @ (V / D)
    H = np.eye(r) + symmetric((V / D).T @ (B.T @ Y))  # the mean of <z z^T> is D^-1 H D^-1
    distance = (diagonal / noise).sum() - (H.trace() - r)
    loglike = -0.5 * (d * np.log(2 * np.pi) + np.log(noise).sum() + 2 * np.log(D).sum() + distance)
    L = np.linalg.cholesky(H)
    better: Floats = linalg.solve_triangular(L, Y.T, lower=True, check_finite=False).T
    rest = diagonal - np.einsum("ij,ij->i", better, better)
    if not expand:  # which the factor of the mean of <z z^T> has done so far
        better = better @ linalg.solve_triangular(L, np.diag(D), lower=True, check_finite=False)
    return better, np.maximum(rest, noise_floor(diagonal, True)), float(loglike)


def factor_em(
    multiply: Multiply,
    diagonal: Floats,
    n_components: int,
    *,
    start: Parameters | None = None,
    expand: bool = True,
    tol: float = 1e-6,
    max_iter: int = 100,
    seed: int | None = None,
) -> LatentModel:
    """Return factor analysis by EM: one product with S (one pass) per iteration, and one that finds the last log-likelihood.

    With more than some 50 features, and ``expand``, ten iterations are enough as a rule.

    Parameters
    ----------
    diagonal : of S, the variances of the columns (divisor n)
    """
    check_variance(float(diagonal.sum()))
    now = random_start(np.zeros_like(diagonal), diagonal, n_components, True, seed) if start is None else start
    W, noise = now.W, np.maximum(now.noise, noise_floor(diagonal, True))
    track = Track(tol, max_iter)
    while True:
        found = multiply(W / noise[:, None])
        better_W, better_noise, loglike = factor_step(found.SB, diagonal, W, noise, expand=expand)
        if track.ends(found.n * loglike, found.n):
            break
        W, noise = better_W, better_noise
    return track.model(Parameters(W, found.mean, noise), found.n)


def factor_em_by_passes(
    run: Run,
    n_features: int,
    n_components: int,
    *,
    start: Parameters | None = None,
    expand: bool = True,
    tol: float = 1e-6,
    max_iter: int = 100,
    seed: int | None = None,
) -> LatentModel:
    """Return factor analysis of rows that are read: a pass for the variances of the columns, then one per iteration of EM."""
    moments = run("moments", Moments(n_features))
    multiply = Passes(run, moments.mean)
    diagonal = moments.variance()
    return factor_em(multiply, diagonal, n_components, start=start, expand=expand, tol=tol, max_iter=max_iter, seed=seed)


def factor_profile(S: Floats, mean: Floats, n: float, n_components: int, *, tol: float = 1e-10, max_iter: int = 1000) -> LatentModel:
    """Return factor analysis from a covariance in memory by maximising the likelihood over the noise alone.

    For given noise the best W follows from the r leading eigenpairs of Psi^-1/2 S Psi^-1/2 (Joreskog 1967); what is left is a smooth
    function of the logarithms of the noise, maximised by L-BFGS on the correlation matrix. It costs some tens of eigendecompositions and
    finds the optimum to many digits, where EM
    creeps if there are few features.
    """
    d, r = len(S), n_components
    variances = S.diagonal()
    check_variance(float(variances.sum()))
    scale = np.sqrt(np.where(variances > 0, variances, variances.mean()))
    R = symmetric(S / scale / scale[:, None])
    constant = d * np.log(2 * np.pi) + 2 * np.log(scale).sum()
    track = Track(tol, max_iter, last_look=False)

    def note(intermediate_result: optimize.OptimizeResult) -> None:
        if track.ends(-0.5 * n * (constant + intermediate_result.fun), n):
            raise StopIteration

    bounds = optimize.Bounds(np.log(FACTOR_NOISE_FLOOR), 0.0)
    options = {"maxiter": max_iter, "maxfun": 20 * max_iter, "ftol": 0.0, "gtol": 1e-9, "maxcor": 20}
    first = np.full(d, np.log(0.5))
    with in_pass() if d <= ONE_THREAD_LIMIT else nullcontext():
        found = optimize.minimize(_profile, first, (R, r), "L-BFGS-B", jac=True, bounds=bounds, callback=note, options=options)
    if found.success or not track.loglike:
        track.converged = True
        track.loglike.append(max([-0.5 * n * (constant + found.fun), *track.loglike[-1:]]))
    theta, V = _leading_of_scaled(R, found.x, r)
    roots = np.exp(found.x / 2) * scale
    W = roots[:, None] * V * np.sqrt(np.maximum(theta - 1, 0.0))
    return track.model(Parameters(W, mean, roots**2), n)


def _profile(log_noise: Floats, S: Floats, r: int) -> tuple[float, Floats]:
    """Return -2 log-likelihood of a row (without constants) at the best W, and its gradient.

    It is sum ln psi + sum s / psi + sum over the r largest eigenvalues theta > 1 of Psi^-1/2 S Psi^-1/2 of (ln theta - theta + 1).
    """
    theta, V = _leading_of_scaled(S, log_noise, r)
    theta = np.maximum(theta, 1.0)
    ratios = S.diagonal() * np.exp(-log_noise)
    value = log_noise.sum() + ratios.sum() + (np.log(theta) - theta + 1).sum()
    return float(value), 1 - ratios + np.einsum("ij,ij,j->i", V, V, theta - 1)


def _leading_of_scaled(S: Floats, log_noise: Floats, r: int) -> tuple[Floats, Floats]:
    """Return the r leading eigenpairs of Psi^-1/2 S Psi^-1/2, largest first."""
    roots = np.exp(log_noise / 2)
    d = len(S)
    theta, V = linalg.eigh(S / roots / roots[:, None], check_finite=False, driver="evr", subset_by_index=(d - r, d - 1))
    return theta[::-1], V[:, ::-1]
