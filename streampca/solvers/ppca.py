"""Probabilistic PCA of complete data by maximum likelihood: closed form, EM, and a subspace method that needs few passes.

The symbols are those of ``likelihood.py``; rows with missing entries are in ``ppca_missing.py``, factor analysis in ``factor_analysis.py``.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from streampca.engine import in_pass
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.planning.latent import BLOCKS, EXTRA
from streampca.solvers.likelihood import NOISE_FLOOR, Multiply, Parameters, Track, check_variance, whole
from streampca.solvers.spectrum import fix_signs
from streampca.statistics.posterior import symmetric

_ROUNDING = 8 * np.finfo(np.float64).eps  # of the trace: a smaller eigenvalue is none
_DEPENDENT = 1e-10  # of a direction's length: what is left of it outside a subspace is rounding
_LARGE = 1e-6  # of the largest eigenvalue: products with smaller ones are too much rounding for another power step


# ------------------------------------------------------------------------------------------------------- closed form


def closed_form(variances: Floats, vectors: Floats, trace: float, n_components: int) -> tuple[Floats, float]:
    """Return W and the noise variance of probabilistic PCA (Tipping & Bishop 1999) from eigenpairs of S.

    Parameters
    ----------
    variances : at least ``n_components`` leading eigenvalues of S (divisor n), largest first
    vectors : their eigenvectors, one per row
    trace : of S

    Examples
    --------
    >>> W, noise = closed_form(np.array([5.0, 2.0, 0.0]), np.eye(3), 7.0, 1)
    >>> W.tolist(), noise
    ([[2.0], [0.0], [0.0]], 1.0)
    """
    d = vectors.shape[1]
    used, noise = _isotropic(variances, trace, d, n_components)
    scales = np.zeros(n_components)
    scales[:used] = np.sqrt(variances[:used] - noise)
    return fix_signs(vectors[:n_components]).T * scales, noise


def closed_form_model(variances: Floats, vectors: Floats, trace: float, n_components: int, mean: Floats, n: float) -> LatentModel:
    """Return probabilistic PCA from eigenpairs of S; its log-likelihood is infinite if the rows leave no noise."""
    W, noise = closed_form(variances, vectors, trace, n_components)
    used, _ = _isotropic(variances, trace, len(mean), n_components)
    total = n * _log_likelihood(variances[:used], noise, len(mean), trace)
    return LatentModel(W, mean, noise, whole(n), np.array([total]))


def _isotropic(theta: Floats, trace: float, d: int, r: int) -> tuple[int, float]:
    """Return how many of r leading (Ritz) values are components, and the mean variance of all the rest.

    Those of true eigenvectors all are. A subspace may hold values below the noise; these only lower the likelihood.
    """
    for used in range(min(r, len(theta)), -1, -1):
        rest = theta[used:].sum() if len(theta) == d else max(trace - theta[:used].sum(), 0.0)
        noise = float(rest / (d - used)) if used < d else 0.0
        if noise <= _ROUNDING * trace:
            noise = 0.0
        if used == 0 or theta[used - 1] >= noise:
            break
    return used, max(noise, 0.0)


def _log_likelihood(theta: Floats, noise: float, d: int, trace: float) -> float:
    """Return the log-likelihood of a row, on average, where C has the variances of S along the components and on average beside them."""
    rest = np.full(d - len(theta), noise)
    if min(theta.min(initial=np.inf), rest.min(initial=np.inf)) <= _ROUNDING * trace:
        return float("inf")
    return float(-0.5 * (d * np.log(2 * np.pi) + np.log(theta).sum() + np.log(rest).sum() + d))


# --------------------------------------------------------------------------------------------- EM on complete data


def em_step(SW: Floats, trace: float, W: Floats, noise: float, d: int) -> tuple[Floats, float, float]:
    """Return W and noise after one EM step of probabilistic PCA, and the log-likelihood of a row (on average) before it.

    Only S W and the trace of S are needed: W~ = S W (noise I + M^-1 W^T S W)^-1 and
    noise~ = Tr(S - S W M^-1 W~^T) / d, with M = W^T W + noise I.

    >>> S = np.diag([3.0, 1.0])
    >>> W, noise, loglike = em_step(S @ np.array([[1.0], [0.0]]), 4.0, np.array([[1.0], [0.0]]), 1.0, 2)
    >>> W.ravel().round(2).tolist(), round(noise, 2)
    ([1.2, 0.0], 1.1)
    """
    r = W.shape[1]
    M = W.T @ W + noise * np.eye(r)
    T = symmetric(W.T @ SW)
    A = noise * M + T  # so that W~ = S W A^-1 M
    log_determinant = np.linalg.slogdet(M)[1] + (d - r) * np.log(noise)
    distance = (trace - np.linalg.solve(M, T).trace()) / noise
    loglike = -0.5 * (d * np.log(2 * np.pi) + log_determinant + distance)
    inverse = np.linalg.inv(A)
    rest = trace - float(np.sum((SW.T @ SW) * inverse))
    return SW @ (inverse @ M), max(rest / d, NOISE_FLOOR * trace / d), float(loglike)


def em(
    multiply: Multiply,
    n_features: int,
    n_components: int,
    *,
    start: Parameters | None = None,
    tol: float = 1e-6,
    max_iter: int = 100,
    seed: int | None = None,
) -> LatentModel:
    """Return probabilistic PCA by plain EM: one product with S (one pass) per iteration, and one that finds the last log-likelihood.

    It is there to compare with; ``subspace`` needs far fewer products for the same answer.
    """
    d, r = n_features, n_components
    if start is None:
        Q = _orthonormal(np.random.default_rng(seed).standard_normal((d, r)))
        found = multiply(Q)
        check_variance(found.trace)
        scale, noise = np.sqrt(found.trace / (2 * r)), found.trace / (2 * d)
        W, SW = scale * Q, scale * found.SB
    else:
        W, noise = start.W, float(start.noise)
        found = multiply(W)
        SW = found.SB
    track = Track(tol, max_iter)
    while True:
        better_W, better_noise, loglike = em_step(SW, found.trace, W, noise, d)
        if track.ends(found.n * loglike, found.n):
            break
        W, noise = better_W, better_noise
        found = multiply(W)
        SW = found.SB
    return track.model(Parameters(W, found.mean, noise), found.n)


# --------------------------------------------------------------------------------- probabilistic PCA in few products


def subspace(
    multiply: Multiply,
    n_features: int,
    n_components: int,
    *,
    start: Floats | None = None,
    tol: float = 1e-6,
    max_iter: int = 100,
    refine: int = 0,
    seed: int | None = None,
) -> LatentModel:
    """Return probabilistic PCA by maximising the likelihood exactly within a subspace that each product with S widens.

    Where S times a basis is known, so is the likelihood of every W in its span, and the best is in closed form (Rayleigh-Ritz).
    The subspace always holds the last W, so the likelihood never falls. New directions are the residuals of the Ritz vectors, which make
    it a block Krylov space: a few products do what takes EM hundreds.

    Parameters
    ----------
    start : columns (d x any number) near the leading directions, if there are any
    tol : the relative gain in log-likelihood below which it has converged
    refine : products, in all, up to which it goes on even so while W W^T is off by more than ``tol``: an error of the
        directions shows in the log-likelihood only by its square
    """
    d, r = n_features, n_components
    width = min(r + EXTRA, d)
    Q = _start_block(start, d, width, seed)
    K, SK = np.empty((d, 0)), np.empty((d, 0))
    track = Track(tol, max_iter, last_look=False)
    while True:
        found = multiply(Q)
        K, SK = np.hstack([K, Q]), np.hstack([SK, found.SB])
        theta, U = (each[..., ::-1] for each in linalg.eigh(symmetric(K.T @ SK), check_finite=False))
        theta = np.maximum(theta, 0.0)
        used, noise = _isotropic(theta, found.trace, d, r)
        loglike = found.n * _log_likelihood(theta[:used], noise, d, found.trace)
        ends = track.ends(loglike, found.n)
        if ends and (np.isinf(loglike) or track.n_iter >= min(max(refine, 1), max_iter)):
            break
        residuals = SK @ U[:, :width] - (K @ U[:, :width]) * theta[:width]
        Q = _beyond(K, residuals, found.trace / d)
        if not Q.shape[1]:
            track.converged = True
            break
        settled = ends or track.gains_little(_gain_left(theta, residuals, used, noise) * found.n, found.n)
        if settled and (track.n_iter >= refine or _error_left(theta, residuals, used, noise) <= tol):
            track.converged = True
            break
        K, SK = _compressed(K, SK, U, width)
    W = np.zeros((d, r))
    W[:, :used] = _power_step(K @ U[:, :used], SK @ U[:, :used], theta[:used]) * np.sqrt(theta[:used] - noise)
    return track.model(Parameters(W, found.mean, noise), found.n)


def _power_step(vectors: Floats, products: Floats, theta: Floats) -> Floats:
    """Return Ritz vectors after one more step of the power method, orthonormal: their products with S are known already."""
    large = theta > _LARGE * theta.max(initial=0.0)
    better = vectors.copy()
    better[:, large] = products[:, large] / theta[large]
    g, P = linalg.eigh(better.T @ better, check_finite=False)
    return better @ ((P / np.sqrt(g)) @ P.T) if len(g) and g[0] > 0.5 else vectors


def _gain_left(theta: Floats, residuals: Floats, used: int, noise: float) -> float:
    """Return about how much the log-likelihood of a row, on average, can still grow.

    A Ritz value is below its eigenvalue by the square of its residual over the gap to the values that are left out.
    """
    outside = theta[used] if used < len(theta) else noise
    gaps = theta[:used] - outside
    if not used or gaps[-1] <= 0:
        return np.inf
    lacking = np.einsum("ij,ij->j", residuals[:, :used], residuals[:, :used]) / gaps
    return float(0.5 * (lacking * (1 / noise - 1 / theta[:used])).sum())


def _error_left(theta: Floats, residuals: Floats, used: int, noise: float) -> float:
    """Return about how far W W^T is off, relative to its norm: the sines of the angles that residuals and gaps tell of."""
    outside = theta[used] if used < len(theta) else noise
    gaps = theta[:used] - outside
    if not used or gaps[-1] <= 0 or theta[0] <= noise:
        return np.inf
    sines = np.linalg.norm(residuals[:, :used], axis=0) / gaps
    return float((sines * (theta[:used] - noise)).max() / (theta[0] - noise))


def _start_block(start: Floats | None, d: int, width: int, seed: int | None) -> Floats:
    """Return orthonormal columns: those given and random ones, ``width`` in all (or as many as given)."""
    if width == d:
        return np.eye(d)
    given = np.empty((d, 0)) if start is None else start
    random = np.random.default_rng(seed).standard_normal((d, max(width - given.shape[1], 0)))
    return _orthonormal(np.hstack([given, random]))


def _orthonormal(columns: Floats) -> Floats:
    with in_pass():  # of many small products: threads would mostly wait for each other
        Q: Floats = linalg.qr(columns, mode="economic", check_finite=False)[0]
    return Q


def _beyond(K: Floats, directions: Floats, unit: float) -> Floats:
    """Return orthonormal columns for what the directions have outside the span of K, if it is more than rounding."""
    outside = directions
    for _ in range(2):  # twice is enough
        outside = outside - K @ (K.T @ outside)
    lengths = np.linalg.norm(outside, axis=0)
    outside = outside[:, lengths > _DEPENDENT * max(unit, np.linalg.norm(directions, axis=0).max(initial=0.0))]
    if not outside.shape[1] or K.shape[1] == len(K):
        return np.empty((len(K), 0))
    with in_pass():
        Q, R, _ = linalg.qr(outside, mode="economic", pivoting=True, check_finite=False)
    independent = np.abs(R.diagonal()) > _DEPENDENT * abs(R[0, 0])
    Q = Q[:, : len(independent)][:, independent][:, : len(K) - K.shape[1]]
    Q = Q - K @ (K.T @ Q)
    return _orthonormal(Q)


def _compressed(K: Floats, SK: Floats, U: Floats, width: int) -> tuple[Floats, Floats]:
    """Return a subspace and its products, reduced to its leading directions if there would be no room for another block."""
    if K.shape[1] < BLOCKS * width:
        return K, SK
    leading = np.ascontiguousarray(U[:, : (BLOCKS - 1) * width])
    return K @ leading, SK @ leading
