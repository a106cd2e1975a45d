"""What all iterations to the maximum of a likelihood share: where they start and end, the covariance times thin matrices, one form of W.

The model is x = W z + mean + e, C = W W^T + noise; S is the covariance with divisor n. Complete data enters only through products
of S with thin matrices (``Multiply``: S in memory, or one pass each).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from streampca.errors import DataError, UsageError
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.solvers.spectrum import fix_signs
from streampca.statistics.products import Products

Run = Callable[[str, Any], Any]

NOISE_FLOOR = 1e-10  # of the mean variance: less noise would leave r x r matrices too close to singular
FACTOR_NOISE_FLOOR = 1e-6  # of a feature's variance: a likelihood without a bound (too few rows) ends there


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


# --------------------------------------------------------------------------------------------- where iterations start


def random_start(mean: Floats, variances: Floats, r: int, per_feature_noise: bool, seed: int | None) -> Parameters:
    """Return parameters that share the variance of each column between noise and random components."""
    W = np.random.default_rng(seed).standard_normal((len(mean), r)) * np.sqrt(variances / (2 * r))[:, None]
    return Parameters(W, mean, variances / 2 if per_feature_noise else float(variances.mean() / 2))


def noise_floor(variances: Floats, per_feature_noise: bool) -> Floats:
    """Return the least noise that is allowed: less would leave matrices singular, or the likelihood without a bound."""
    mean = variances.mean()
    return FACTOR_NOISE_FLOOR * np.where(variances > 0, variances, mean) if per_feature_noise else NOISE_FLOOR * mean


def check_variance(trace: float) -> None:
    """Refuse data without any variance."""
    if trace <= 0:
        raise DataError("all columns are constant: there is no variance to model; check the input")


# ----------------------------------------------------------------------------------------------- where they end


def canonical(W: Floats, noise: float | Floats) -> Floats:
    """Return W rotated so that W^T Psi^-1 W is diagonal, largest first, with the signs fixed; the model is the same.

    >>> np.abs(canonical(np.array([[0.0, 2.0], [1.0, 0.0]]), 1.0)).tolist()
    [[2.0, 0.0], [0.0, 1.0]]
    """
    roots = np.sqrt(np.asarray(noise)).reshape(-1, 1) if np.all(np.asarray(noise) > 0) else np.ones((1, 1))
    _, _, Vt = linalg.svd(W / roots, full_matrices=False, check_finite=False)
    return fix_signs((W @ Vt.T).T).T


@dataclass
class Track:
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
        """Iterations so far."""
        return len(self.loglike) - self.last_look

    def model(self, found: Parameters, n: float, n_skipped: float = 0) -> LatentModel:
        """Return the model of the last parameters."""
        noise = found.noise if np.ndim(found.noise) else float(found.noise)
        W = canonical(found.W, noise)
        return LatentModel(W, found.mean, noise, whole(n), np.array(self.loglike), self.converged, max(self.n_iter, 0), whole(n_skipped))


def whole(number: float) -> float:
    """Return an integer where a sum of weights is one."""
    return int(number) if number == int(number) else float(number)
