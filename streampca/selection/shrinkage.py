"""Shrinkage of singular values, for denoising: hard and soft thresholds, and the shrinker of least squared error.

Asymptotically optimal for a low-rank matrix in white noise (M. Gavish, D. Donoho, 2014 and 2017). Pure functions of the values.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import UsageError
from streampca.selection.marchenko_pastur import aspect_ratio, hard_threshold, median
from streampca.selection.spectrum import Floats

Kind = Literal["hard", "soft", "optimal"]


def shrink(singular_values: ArrayLike, n_samples: int, n_features: int, kind: Kind = "hard", noise: float | None = None) -> Floats:
    """Return singular values with the part that is noise taken away.

    Parameters
    ----------
    singular_values : array-like
        Singular values of an n x d matrix: all of them, or, with ``noise``, any of them.
    n_samples, n_features : int
        The shape of the matrix. Centred rows count as one less: pass n - 1.
    kind : {"hard", "soft", "optimal"}
        ``"hard"`` keeps those above lambda(beta); ``"soft"`` takes 1 + sqrt(beta), the edge of the noise, from each; ``"optimal"`` has the
        least squared error of all: sqrt((y^2 - beta - 1)^2 - 4 beta)/y above the edge. In units of sigma times the square root of
        the longer side; at worst their squared errors are 3, 6 and 2 times n r sigma^2 (square, rank r), and 5 for truncation at r.
    noise : float, optional
        Standard deviation sigma of the noise in each entry; by default from the median singular value.

    Examples
    --------
    >>> shrink([50.0, 21.0, 19.0], 100, 100, noise=1.0)
    array([50.,  0.,  0.])
    >>> shrink([50.0, 21.0, 19.0], 100, 100, "soft", noise=1.0)
    array([30.,  1.,  0.])
    >>> shrink([50.0, 21.0, 19.0], 100, 100, "optimal", noise=1.0).round(2)
    array([45.83,  6.4 ,  0.  ])
    """
    values = np.array(singular_values, np.float64)
    if kind not in get_args(Kind):
        raise UsageError(f"kind={kind!r}: must be one of {', '.join(map(repr, get_args(Kind)))}")
    if min(n_samples, n_features) < 1:
        raise UsageError(f"a matrix of {n_samples} x {n_features} has no singular values: both must be at least 1")
    if values.ndim != 1 or values.size > min(n_samples, n_features) or not np.isfinite(values).all() or (values < 0).any():
        raise UsageError(
            f"singular values of a {n_samples} x {n_features} matrix are a vector of at most {min(n_samples, n_features)} "
            f"finite numbers >= 0, not an array of shape {values.shape} with others"
        )
    beta = aspect_ratio(n_samples, n_features)
    unit = _noise(values, n_samples, n_features, noise) * sqrt(max(n_samples, n_features))
    if unit == 0:
        return values
    if kind == "hard":
        return np.where(values > unit * hard_threshold(beta), values, 0.0)
    if kind == "soft":
        return np.maximum(values - unit * (1 + sqrt(beta)), 0.0)
    return _optimal(values / unit, beta) * unit


def _optimal(y: Floats, beta: float) -> Floats:
    """Return the shrinker of least Frobenius error, of values in units of the noise."""
    above = np.maximum(y, 1 + sqrt(beta))
    # (y^2 - beta - 1)^2 - 4 beta as a product of its roots: exact near the edge, and no overflow for large y.
    edge, other = 1 + sqrt(beta), 1 - sqrt(beta)
    result: Floats = np.sqrt(above - edge) * np.sqrt(above + edge) * np.sqrt(above - other) * np.sqrt(above + other) / above
    return result


def _noise(values: Floats, n_samples: int, n_features: int, noise: float | None) -> float:
    if noise is not None:
        if not 0 <= noise < np.inf:
            raise UsageError(f"noise={noise}: a standard deviation is a number of at least 0")
        return float(noise)
    if values.size < min(n_samples, n_features):
        raise UsageError(
            f"the noise is estimated from the median of all {min(n_samples, n_features)} singular values, but {values.size} are given: "
            "give them all, or noise"
        )
    beta = aspect_ratio(n_samples, n_features)
    return float(np.median(values)) / sqrt(max(n_samples, n_features) * median(beta))
