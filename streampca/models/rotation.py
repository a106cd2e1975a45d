"""Rotations of loadings to a simple structure: varimax, quartimax, and the oblique promax. Pure functions of a d x k matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import UsageError
from streampca.models.pca import Floats

_MAX_SWEEPS = 200
_GAIN = 1e-13  # of the sum of fourth powers: a sweep that gains less is the last


def varimax(loadings: ArrayLike) -> tuple[Floats, Floats]:
    """Return loadings rotated so that the squares within each column vary most, and the rotation.

    H. Kaiser, 1958, without row normalisation. ``rotated = loadings @ rotation``; the rotation is orthogonal.

    Parameters
    ----------
    loadings : array-like
        d features by k factors.

    Examples
    --------
    >>> rotated, rotation = varimax([[1.0, 1.0], [2.0, 2.0], [1.0, -1.0]])
    >>> np.abs(rotated).round(6).tolist()
    [[1.414214, 0.0], [2.828427, 0.0], [0.0, 1.414214]]
    """
    return _orthomax(_checked(loadings), 1.0)


def quartimax(loadings: ArrayLike) -> tuple[Floats, Floats]:
    """Return loadings rotated so that the sum of their fourth powers is largest, and the rotation.

    Parameters
    ----------
    loadings : array-like
        d features by k factors.

    Examples
    --------
    >>> rotated, rotation = quartimax([[1.0, 1.0], [2.0, 2.0], [1.0, -1.0]])
    >>> np.abs(rotated).round(6).tolist()
    [[1.414214, 0.0], [2.828427, 0.0], [0.0, 1.414214]]
    """
    return _orthomax(_checked(loadings), 0.0)


def promax(loadings: ArrayLike, power: float = 4.0) -> tuple[Floats, Floats]:
    """Return loadings turned, each factor on its own, toward a sharpened varimax solution, and the matrix that turns them.

    A. Hendrickson, P. White, 1964. ``rotated = loadings @ rotation``; the factors have unit variance and the correlations
    ``inv(rotation.T @ rotation)``.

    Parameters
    ----------
    loadings : array-like
        d features by k factors, linearly independent.
    power : float
        The target is the varimax loadings to this power, with their signs; more than 1.

    Examples
    --------
    >>> loadings = np.array([[1.0, 0.1], [0.9, 0.2], [0.5, 1.0], [0.4, 0.8]])
    >>> rotated, rotation = promax(loadings)
    >>> np.linalg.inv(rotation.T @ rotation).diagonal().round(12).tolist()
    [1.0, 1.0]
    """
    start = _checked(loadings)
    if not power > 1:
        raise UsageError(f"power={power}: must be more than 1, which would leave the varimax loadings as they are")
    if np.linalg.matrix_rank(start) < start.shape[1]:
        raise UsageError(f"the {start.shape[1]} columns of loadings depend on each other: an oblique rotation needs fewer factors")
    turned, rotation = _orthomax(start, 1.0)
    turned_unit = turned / np.abs(turned).max()  # powers neither overflow nor vanish
    target = turned_unit * np.abs(turned_unit) ** (power - 1)
    onto = np.linalg.lstsq(turned_unit, target, rcond=None)[0]
    onto *= np.sqrt(np.linalg.inv(onto.T @ onto).diagonal())
    rotation = rotation @ onto
    return start @ rotation, rotation


ROTATIONS: dict[str, Callable[[ArrayLike], tuple[Floats, Floats]]] = {"varimax": varimax, "quartimax": quartimax, "promax": promax}


def _orthomax(loadings: Floats, gamma: float) -> tuple[Floats, Floats]:
    """Maximise sum_j (sum_i b_ij^4 - gamma/d (sum_i b_ij^2)^2) by turning two columns at a time by their best angle (Kaiser).

    No turn lowers the criterion, and the sweeps converge quadratically, as Jacobi's do.
    """
    d, k = loadings.shape
    scale = float(np.abs(loadings).max(initial=0.0))
    columns = np.ascontiguousarray(loadings.T) / (scale or 1.0)
    rotation = np.eye(k)  # transposed, like the columns
    enough = _GAIN * float((columns**4).sum())
    for _ in range(_MAX_SWEEPS):
        gain = 0.0
        for p in range(k - 1):
            for q in range(p + 1, k):
                angle, better = _best_angle(columns[p], columns[q], gamma / d)
                if better > 0:
                    gain += better
                    _turn(columns, p, q, angle)
                    _turn(rotation, p, q, angle)
        if gain <= enough:
            break
    return loadings @ rotation.T, rotation.T.copy()


def _best_angle(x: Floats, y: Floats, weight: float) -> tuple[float, float]:
    """Return the angle, within 45 degrees, at which the criterion of two columns is largest, and what is gained; 0 if it is rounding."""
    u, v = (x - y) * (x + y), 2 * x * y
    # einsum, not @: BLAS would start threads for each of these short sums.
    uu, vv, uv = np.einsum("i,i->", u, u), np.einsum("i,i->", v, v), np.einsum("i,i->", u, v)
    su, sv = u.sum(), v.sum()
    sine = 2 * (uv - weight * su * sv)
    cosine = uu - vv - weight * (su**2 - sv**2)
    gain = float(np.hypot(sine, cosine) - cosine) / 4
    return (float(np.arctan2(sine, cosine)) / 4, gain) if gain > 1e-15 * (uu + vv) else (0.0, 0.0)


def _turn(rows: Floats, p: int, q: int, angle: float) -> None:
    c, s = np.cos(angle), np.sin(angle)
    rows[p], rows[q] = c * rows[p] + s * rows[q], c * rows[q] - s * rows[p]


def _checked(loadings: ArrayLike) -> Floats:
    matrix = np.array(loadings, np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UsageError(f"loadings have shape {matrix.shape}, but must be a matrix of d features by k factors")
    if not np.isfinite(matrix).all():
        raise UsageError("loadings must be finite numbers")
    return matrix
