"""What pure noise looks like: the law of the squared singular values of a white-noise matrix, and of the largest of them.

A matrix of p x q entries, p <= q, of variance 1 has squared singular values q x with x distributed by the Marchenko-Pastur law
of beta = p/q. Pure functions of beta.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import asin, cos, pi, sin, sqrt

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import airy

from streampca.errors import UsageError

_AIRY_REACH = 16.0  # Ai is below 1e-17 there
_AIRY_NODES, _AIRY_WEIGHTS = np.polynomial.legendre.leggauss(48)


def aspect_ratio(rows: float, columns: float) -> float:
    """Return beta, the shorter side by the longer.

    >>> aspect_ratio(100, 400)
    0.25
    """
    return min(rows, columns) / max(rows, columns)


def edges(beta: float) -> tuple[float, float]:
    """Return the least and the largest x of the law.

    >>> edges(0.25)
    (0.25, 2.25)
    """
    _check(beta)
    return (1 - sqrt(beta)) ** 2, (1 + sqrt(beta)) ** 2


def cdf(x: float, beta: float) -> float:
    """Return the part of the law below x, by numerical integration.

    >>> round(cdf(2.25, 0.25), 12)
    1.0
    """
    low, high = edges(beta)
    inside = min(max(x - low, 0.0), high - low) / (high - low)
    return _cdf_of_angle(asin(sqrt(inside)), beta)


@lru_cache(maxsize=256)
def median(beta: float) -> float:
    """Return the median of the law.

    >>> round(median(1.0), 4)
    0.6528
    """
    low, _ = edges(beta)
    angle = float(brentq(lambda t: _cdf_of_angle(t, beta) - 0.5, 0.0, pi / 2, xtol=1e-13))
    return low + 4 * sqrt(beta) * sin(angle) ** 2


def _cdf_of_angle(angle: float, beta: float) -> float:
    """Integrate the density over x = low + (high - low) sin^2 t: smooth in t, also where the density has no bound (beta = 1)."""
    low, _ = edges(beta)

    def density(t: float) -> float:
        squared = sin(t) ** 2
        x = low + 4 * sqrt(beta) * squared
        return 16 * squared * cos(t) ** 2 / (pi * x) if x > 0 else 4 / pi

    breaks, bend = [0.0], sqrt(low / (4 * sqrt(beta)))
    while 0 < bend < angle:  # the bend is close to 0 for nearly square matrices: the integration would step over it
        breaks.append(bend)
        bend *= 30
    return sum(float(quad(density, *piece, epsabs=1e-13, epsrel=1e-12)[0]) for piece in pairwise([*breaks, angle]))


def hard_threshold(beta: float) -> float:
    """Return lambda(beta): the best hard threshold of singular values, in units of sigma times the square root of the longer side.

    M. Gavish, D. Donoho, The Optimal Hard Threshold for Singular Values is 4/sqrt(3), 2014, equation (11).

    >>> round(hard_threshold(1.0) * 3**0.5, 12)
    4.0
    """
    _check(beta)
    return sqrt(2 * (beta + 1) + 8 * beta / ((beta + 1) + sqrt(beta**2 + 14 * beta + 1)))


def hard_threshold_of_median(beta: float) -> float:
    """Return omega(beta): the same threshold in units of the median singular value, for noise of unknown variance.

    >>> round(hard_threshold_of_median(1.0), 3)
    2.858
    """
    return hard_threshold(beta) / sqrt(median(beta))


def largest_of_noise(rows: float, columns: float, confidence: float) -> float:
    """Return what the largest squared singular value of white noise of variance 1 stays below, with a probability.

    The upper edge of the Marchenko-Pastur law, and the Tracy-Widom fluctuations about it (I. Johnstone, 2001; with the halves of
    Z. Ma, 2012, it holds for small matrices too).

    >>> round(largest_of_noise(299, 60, 0.99) / (299**0.5 + 60**0.5) ** 2, 3)
    1.042
    """
    n, p = (sqrt(max(side - 0.5, side / 2)) for side in (rows, columns))
    width: float = (n + p) * (1 / n + 1 / p) ** (1 / 3)
    return (n + p) ** 2 + width * tracy_widom_quantile(confidence)


def tracy_widom_cdf(s: float) -> float:
    """Return the Tracy-Widom law F_1(s) of real matrices, as the Fredholm determinant of Ferrari and Spohn (2005).

    Computed by Gauss-Legendre quadrature (F. Bornemann, 2010).

    >>> round(tracy_widom_cdf(0.9793), 4)
    0.95
    """
    half = _AIRY_REACH + max(-s, 0.0) / 2
    nodes, weights = s + half * (1 + _AIRY_NODES), half * _AIRY_WEIGHTS
    kernel = airy((nodes[:, None] + nodes) / 2)[0] / 2
    roots = np.sqrt(weights)
    return float(np.linalg.det(np.eye(nodes.size) - roots[:, None] * kernel * roots))


@lru_cache(maxsize=64)
def tracy_widom_quantile(p: float) -> float:
    """Return s with F_1(s) = p.

    >>> round(tracy_widom_quantile(0.99), 4)
    2.0234
    """
    if not 0.001 <= p <= 0.999999:
        raise UsageError(f"confidence={p}: must be between 0.001 and 0.999999")
    return float(brentq(lambda s: tracy_widom_cdf(s) - p, -8.0, 12.0, xtol=1e-10))


def _check(beta: float) -> None:
    if not 0 < beta <= 1:
        raise UsageError(f"beta={beta}: the shorter side by the longer is in (0, 1]")
