"""Probabilistic PCA and factor analysis by maximum likelihood: closed form, EM, and subspace methods that need few passes.

The model is x = W z + mean + e, C = W W^T + noise; S is the covariance with divisor n. Complete data enters only through products
of S with thin matrices (``Multiply``: S in memory, or one pass each); missing entries need a pass per iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize

from streampca.engine import in_pass
from streampca.errors import DataError, UsageError
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.planning.latent import BLOCKS, EXTRA
from streampca.solvers.spectrum import ONE_THREAD_LIMIT, fix_signs
from streampca.statistics.missing import Missing, ObservedMoments, symmetric, unpack
from streampca.statistics.moments import Moments
from streampca.statistics.products import Products

Run = Callable[[str, Any], Any]

NOISE_FLOOR = 1e-10  # of the mean variance: less noise would leave r x r matrices too close to singular
FACTOR_NOISE_FLOOR = 1e-6  # of a feature's variance: a likelihood without a bound (too few rows) ends there
_ROUNDING = 8 * np.finfo(np.float64).eps  # of the trace: a smaller eigenvalue is none
_DEPENDENT = 1e-10  # of a direction's length: what is left of it outside a subspace is rounding
_LARGE = 1e-6  # of the largest eigenvalue: products with smaller ones are too much rounding for another power step
_PANEL_BYTES = 2**24


class Parameters(NamedTuple):
    """A point in the space of models: where an iteration starts, or is."""

    W: Floats  # d x r
    mean: Floats
    noise: float | Floats  # a number (probabilistic PCA) or one per feature (factor analysis)


# ---------------------------------------------------------------------------------- the covariance times a thin matrix


class Product(NamedTuple):
    """The covariance times a basis, and what else a pass tells."""

    SB: Floats
    trace: float
    mean: Floats
    n: float  # rows, or the sum of their weights


Multiply = Callable[[Floats], Product]


def by_matrix(S: Floats, mean: Floats, n: float) -> Multiply:
    """Return the product with a covariance (divisor n) in memory."""
    trace = float(S.trace())
    return lambda basis: Product(S @ basis, trace, mean, n)


class Passes:
    """The product with the covariance of rows that are read: one pass each, named ``products-1``, ``products-2``, ...

    Parameters
    ----------
    run : makes the pass
    pivot : a point near the mean; after each pass it is the mean
    """

    def __init__(self, run: Run, pivot: Floats) -> None:
        self.run, self.pivot, self.n_passes = run, pivot, 0

    def __call__(self, basis: Floats) -> Product:  # noqa: D102
        self.n_passes += 1
        found = self.run(f"products-{self.n_passes}", Products(basis, self.pivot))
        self.pivot, n = found.mean, float(found.count)
        if not n:
            raise DataError("there are no rows of positive weight: nothing can be fitted to them")
        return Product(found.products / n, found.total / n, found.mean, n)


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
    return LatentModel(W, mean, noise, _whole(n), np.array([total]))


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
        _check_variance(found.trace)
        scale, noise = np.sqrt(found.trace / (2 * r)), found.trace / (2 * d)
        W, SW = scale * Q, scale * found.SB
    else:
        W, noise = start.W, float(start.noise)
        found = multiply(W)
        SW = found.SB
    track = _Track(tol, max_iter)
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
    track = _Track(tol, max_iter, last_look=False)
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


# ------------------------------------------------------------------------------------------------- missing entries


def em_missing(
    run: Run,
    n_features: int,
    n_components: int,
    *,
    per_feature_noise: bool = False,
    start: Parameters | None = None,
    expand: bool = True,
    tol: float = 1e-6,
    max_iter: int = 100,
    seed: int | None = None,
    names: Sequence[str] | None = None,
    moments: ObservedMoments | None = None,
) -> LatentModel:
    """Return probabilistic PCA, or factor analysis with ``per_feature_noise``, of rows with missing entries (NaN).

    One pass for the moments of the columns, then one per iteration of EM, and one that finds the last log-likelihood: that of the
    observed entries, which never falls. With ``expand`` z may have any mean and covariance within a step (parameter-expanded
    EM: Liu, Rubin & Wu 1998), which takes fewer iterations; without, it is plain EM. ``moments`` saves the pass for them.
    """
    moments = run("moments", ObservedMoments(n_features)) if moments is None else moments
    _check_observed(moments.counts, names)
    variances = moments.variance
    _check_variance(float(variances.sum()))
    floor = _noise_floor(variances, per_feature_noise)
    now = _random_start(moments.mean, variances, n_components, per_feature_noise, seed) if start is None else start
    now = now._replace(noise=np.maximum(now.noise, floor) if per_feature_noise else max(float(now.noise), float(floor)))
    track = _Track(tol, max_iter)
    while True:
        statistic = run(f"em-{len(track.loglike) + 1}", Missing(now.W, now.mean, now.noise))
        if track.ends(statistic.loglike, statistic.count):
            break
        now = maximise(statistic, now.mean, floor, per_feature_noise=per_feature_noise, expand=expand)
    return track.model(now, statistic.count, n_skipped=statistic.skipped)


def maximise(statistic: Missing, mean: Floats, floor: float | Floats, *, per_feature_noise: bool, expand: bool) -> Parameters:
    """Return the parameters that an EM pass at ``mean`` leads to: for each feature, a regression on (z, 1) over its observed rows."""
    d, r = statistic.n_features, statistic.n_components
    solution, rest = np.empty((d, r + 1)), np.empty(d)
    panel = max(_PANEL_BYTES // (8 * (r + 1) ** 2), 1)
    for start in range(0, d, panel):
        features = slice(start, start + panel)
        right = statistic.products[features]
        solution[features] = np.linalg.solve(statistic.gram(features), right[:, :, None])[:, :, 0]
        rest[features] = statistic.squares[features] - np.einsum("ij,ij->i", right, solution[features])
    W, mean = solution[:, :r], mean + solution[:, r]
    observed = statistic.observed
    noise = np.maximum(rest / observed, floor) if per_feature_noise else max(float(rest.sum() / observed.sum()), float(floor))
    if expand:
        moments = unpack(statistic.total, r + 1) / statistic.count
        shift = moments[r, :r]
        values, vectors = np.linalg.eigh(moments[:r, :r] - np.outer(shift, shift))
        mean = mean + W @ shift
        W = W @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    return Parameters(W, mean, noise)


def _random_start(mean: Floats, variances: Floats, r: int, per_feature_noise: bool, seed: int | None) -> Parameters:
    """Return parameters that share the variance of each column between noise and random components."""
    W = np.random.default_rng(seed).standard_normal((len(mean), r)) * np.sqrt(variances / (2 * r))[:, None]
    return Parameters(W, mean, variances / 2 if per_feature_noise else float(variances.mean() / 2))


def _noise_floor(variances: Floats, per_feature_noise: bool) -> Floats:
    mean = variances.mean()
    return FACTOR_NOISE_FLOOR * np.where(variances > 0, variances, mean) if per_feature_noise else NOISE_FLOOR * mean


def _check_observed(counts: Floats, names: Sequence[str] | None) -> None:
    if (counts > 0).all():
        return
    never = np.flatnonzero(counts == 0)
    name = f" ({names[never[0]]!r})" if names else ""
    more = f", and {len(never) - 1} more" if len(never) > 1 else ""
    raise DataError(f"column {never[0]}{name}{more}: no row has a value there, so nothing can be learnt of it; leave it out")


def _check_variance(trace: float) -> None:
    if trace <= 0:
        raise DataError("all columns are constant: there is no variance to model; check the input")


# -------------------------------------------------------------------------------- factor analysis of complete data


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
    return better, np.maximum(rest, _noise_floor(diagonal, True)), float(loglike)


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
    _check_variance(float(diagonal.sum()))
    now = _random_start(np.zeros_like(diagonal), diagonal, n_components, True, seed) if start is None else start
    W, noise = now.W, np.maximum(now.noise, _noise_floor(diagonal, True))
    track = _Track(tol, max_iter)
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
    _check_variance(float(variances.sum()))
    scale = np.sqrt(np.where(variances > 0, variances, variances.mean()))
    R = symmetric(S / scale / scale[:, None])
    constant = d * np.log(2 * np.pi) + 2 * np.log(scale).sum()
    track = _Track(tol, max_iter, last_look=False)

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


# -------------------------------------------------------------------------------------------------- common to all


def canonical(W: Floats, noise: float | Floats) -> Floats:
    """Return W rotated so that W^T Psi^-1 W is diagonal, largest first, with the signs fixed; the model is the same.

    >>> np.abs(canonical(np.array([[0.0, 2.0], [1.0, 0.0]]), 1.0)).tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    roots = np.sqrt(np.asarray(noise)).reshape(-1, 1) if np.all(np.asarray(noise) > 0) else np.ones((1, 1))
    _, _, Vt = linalg.svd(W / roots, full_matrices=False, check_finite=False)
    return fix_signs((W @ Vt.T).T).T


@dataclass
class _Track:
    """The log-likelihoods of an iteration, and when it ends: the relative gain is below ``tol``, or ``max_iter`` is reached.

    With ``last_look`` the log-likelihood is known one step late, so one step more is needed to know that of the last parameters.
    """

    tol: float
    max_iter: int
    last_look: bool = True
    converged: bool = False

    def __post_init__(self) -> None:
        if self.max_iter < 1:
            raise UsageError(f"max_iter is {self.max_iter}, but at least 1 iteration is needed")
        self.loglike: list[float] = []

    def ends(self, loglike: float, n: float) -> bool:
        """Note the log-likelihood of n rows; return whether that was the last one."""
        if np.isnan(loglike):
            raise DataError("the log-likelihood is not a number: the values are too large or too small for float64, rescale the data")
        self.loglike.append(loglike)
        if np.isinf(loglike):
            self.converged = True
        elif len(self.loglike) > 1:
            self.converged = self.gains_little(loglike - self.loglike[-2], n)
        return self.converged or self.n_iter >= self.max_iter

    def gains_little(self, gain: float, n: float) -> bool:
        """Return whether a gain is below the tolerance, relative to the log-likelihood of n rows."""
        return gain <= self.tol * max(abs(self.loglike[-1]), n)

    @property
    def n_iter(self) -> int:
        return len(self.loglike) - self.last_look

    def model(self, found: Parameters, n: float, n_skipped: float = 0) -> LatentModel:
        """Return the model of the last parameters."""
        noise = found.noise if np.ndim(found.noise) else float(found.noise)
        W = canonical(found.W, noise)
        return LatentModel(W, found.mean, noise, _whole(n), np.array(self.loglike), self.converged, max(self.n_iter, 0), _whole(n_skipped))


def _whole(number: float) -> float:
    """Return an integer where a sum of weights is one."""
    return int(number) if number == int(number) else float(number)
