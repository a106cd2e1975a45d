"""The latent variables of rows with missing entries (NaN): rows in strips, and the Gaussian of z given what is observed. NumPy only.

The model is x = W z + mean + e with z ~ N(0, I) and independent noise e. For every row only the observed entries count. No
loop over rows: all W_o^T Psi_o^-1 W_o of a strip are one product of its mask with the products of columns of W.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, NonFiniteError
from streampca.statistics.base import Array, Floats

_STRIP_BYTES = 2**23
FEWEST_ROWS, MOST_ROWS = 64, 4096  # of a strip
SWEEP_LIMIT = 24  # by measurement: up to this many components, sweeping all rows of a strip at once beats LAPACK row by row


# ------------------------------------------------------------------------------------------------ rows in strips


class Part(NamedTuple):
    """Some rows of a block, centred, with zeros where nothing was observed."""

    rows: slice | NDArray[np.intp]  # which rows of the block
    x: Floats
    seen: Floats | None  # 1 where an entry was observed, else 0; None if all were


def parts(block: Array, mean: Floats, height: int) -> Iterator[Part]:
    """Yield the rows of a block, a strip at a time: the complete ones, then those with NaN."""
    for start in range(0, len(block), height):
        stop = min(start + height, len(block))
        with np.errstate(invalid="ignore", over="ignore"):
            x = np.subtract(block[start:stop], mean, dtype=np.float64, casting="same_kind", order="C")
            missing = np.isnan(x)
            holes = missing.any(axis=1)
            np.copyto(x, 0.0, where=missing)
            if not np.isfinite(np.ones(len(x)) @ x).all():
                refuse_infinite(block)
        if not holes.any():
            yield Part(slice(start, stop), x, None)
        elif holes.all():
            yield Part(slice(start, stop), x, _as_mask(missing))
        else:
            yield Part(start + np.flatnonzero(~holes), x[~holes], None)
            yield Part(start + np.flatnonzero(holes), x[holes], _as_mask(missing[holes]))


def _as_mask(missing: NDArray[np.bool_]) -> Floats:
    return np.subtract(1.0, missing)


def refuse_infinite(block: Array) -> None:
    """Raise for the first infinite entry of a block whose sums are not finite."""
    bad = np.isinf(block)
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        column = int(np.argmax(bad[row]))
        raise NonFiniteError(float(block[row, column]), row, column)
    raise DataError("the values are so large that their sums overflow float64: rescale the data")


def strip_rows(n_features: int, n_components: int) -> int:
    """Return the number of rows that are worked on at a time."""
    return int(np.clip(_STRIP_BYTES // (8 * row_floats(n_features, n_components)), FEWEST_ROWS, MOST_ROWS))


def row_floats(n_features: int, n_components: int) -> int:
    """Return the most floats that a row of a strip needs at once."""
    return 6 * n_features + 5 * packed_size(n_components + 1) + 8 * (n_components + 4)


def packed_size(order: int) -> int:
    """Return the number of entries of the lower triangle of a symmetric matrix.

    >>> packed_size(3)
    6
    """
    return order * (order + 1) // 2


def unpack(packed: Floats, order: int) -> Floats:
    """Return symmetric matrices (..., order, order) from their lower triangles (..., row by row).

    >>> unpack(np.array([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    i, j = np.indices((order, order))
    low, high = np.minimum(i, j), np.maximum(i, j)
    full: Floats = packed[..., packed_size(0) + high * (high + 1) // 2 + low]
    return full


# ------------------------------------------------------------------------------------------------- what z may be


class Posterior:
    """The Gaussian of z given the observed entries of rows: all of it by r x r matrices M_i = I + W_o^T Psi_o^-1 W_o.

    Parameters
    ----------
    W : array, d x r
    noise : variance of the noise, positive: a number or one per feature
    """

    def __init__(self, W: Floats, noise: float | Floats) -> None:
        self.W = np.ascontiguousarray(W, np.float64)
        self.n_features, self.n_components = self.W.shape
        self.noise: Floats = np.ascontiguousarray(np.broadcast_to(np.asarray(noise, np.float64), self.n_features))
        self.scaled: Floats = self.W / self.noise[:, None]

    @cached_property
    def covariance(self) -> Floats:
        """Covariance (r x r) of z for a complete row."""
        inverse: Floats = np.linalg.inv(self._precision).astype(np.float64, copy=False)
        return symmetric(inverse)

    @cached_property
    def log_determinant(self) -> float:
        """Logarithm of the determinant of the covariance of a complete row x."""
        return float(np.linalg.slogdet(self._precision)[1] + np.log(self.noise).sum())

    @cached_property
    def _precision(self) -> Floats:
        """M, the inverse of the covariance of z for a complete row."""
        return symmetric(self.W.T @ self.scaled) + np.eye(self.n_components)

    @cached_property
    def pairs(self) -> Floats:
        """Products of the columns of W over the noise (d x r(r+1)/2): summed over o they are the lower triangle of W_o^T Psi_o^-1 W_o."""
        i, j = np.tril_indices(self.n_components)
        return self.scaled[:, i] * self.W[:, j]

    def means(self, x: Floats) -> Floats:
        """Return the mean of z for complete rows (n x r)."""
        scores: Floats = np.linalg.solve(self._precision, self.scaled.T @ x.T).T.astype(np.float64, copy=False)
        return scores

    def moments(self, x: Floats, seen: Floats) -> tuple[Floats, Floats]:
        """Return, for rows with missing entries, packed moments and the log-determinants of the covariance of x_o.

        The moments are (r+1)(r+2)/2 x n: the lower triangle of the covariance of z, then its mean, then a row that is 1.
        """
        r = self.n_components
        size = packed_size(r)
        packed = np.empty((packed_size(r + 1), len(x)))
        np.matmul(self.pairs.T, seen.T, out=packed[:size])
        packed[_diagonal(r)] += 1.0
        np.matmul(self.scaled.T, x.T, out=packed[size:-1])
        packed[-1] = 0.0
        log_determinants = seen @ np.log(self.noise)
        if r <= SWEEP_LIMIT:
            log_determinants += sweep(packed, r)
            np.negative(packed[:size], out=packed[:size])
        else:
            log_determinants += _invert(packed, r)
        packed[-1] = 1.0
        return packed, log_determinants

    def log_likelihoods(self, x: Floats, seen: Floats | None, means: Floats, log_determinants: float | Floats) -> Floats:
        """Return the log-density of the observed entries of each row.

        The distance x_o^T C_oo^-1 x_o is the least of |x_o - W_o z|^2 / noise + |z|^2, at the mean of z: a sum of squares
        that stays accurate however small the noise, unlike the difference in Woodbury's formula.
        """
        rest = means @ self.W.T
        np.subtract(x, rest, out=rest)
        if seen is not None:
            rest *= seen
        counts = self.n_features if seen is None else seen.sum(axis=1)
        distances = np.einsum("ij,ij->i", means, means)
        np.multiply(rest, rest, out=rest)
        distances += rest @ (1 / self.noise)
        result: Floats = -0.5 * (counts * np.log(2 * np.pi) + log_determinants + distances)
        return result


def symmetric(matrix: Floats) -> Floats:
    """Return the matrix without what rounding made asymmetric."""
    result: Floats = (matrix + matrix.T) / 2
    return result


def _diagonal(order: int) -> NDArray[np.intp]:
    """Return where the diagonal is in a packed lower triangle."""
    k = np.arange(order)
    return k * (k + 3) // 2


def sweep(packed: Floats, n_pivots: int) -> Floats:
    """Sweep symmetric matrices, packed along the first axis, on their leading pivots, in place; return the log-determinants.

    The leading block A becomes -A^-1, and the rows B below it B A^-1: an inverse and a solution in one go
    (the sweep operator of regression; no pivoting is needed where A is positive definite).

    >>> packed = np.array([[4.0], [2.0], [0.0]])  # [[4, 2], [2, 0]]
    >>> sweep(packed, 1).round(3).tolist(), packed.ravel().tolist()
    ([1.386], [-0.25, 0.5, -1.0])
    """
    order = int((np.sqrt(8 * len(packed) + 1) - 1) / 2)
    triangle = [packed[packed_size(i) : packed_size(i) + i + 1] for i in range(order)]
    column = np.empty((order, packed.shape[1]))
    scratch = np.empty_like(column)
    log_determinants = np.zeros(packed.shape[1])
    for k in range(n_pivots):
        below = np.array([packed_size(i) + k for i in range(k + 1, order)], np.intp)
        column[: k + 1], column[k + 1 :] = triangle[k], packed[below]
        pivot = column[k].copy()
        log_determinants += np.log(pivot)
        ratio = column / pivot
        for i, row in enumerate(triangle):
            row -= np.multiply(column[: i + 1], ratio[i], out=scratch[: i + 1])
        triangle[k][:k], packed[below] = ratio[:k], ratio[k + 1 :]
        triangle[k][k] = -1 / pivot
    return log_determinants


def _invert(packed: Floats, r: int) -> Floats:
    """Do the same for many components by LAPACK, row by row: inverse, solution, and log-determinants."""
    size = packed_size(r)
    M = unpack(np.ascontiguousarray(packed[:size].T), r)
    factors = np.linalg.cholesky(M)
    log_determinants: Floats = 2 * np.log(factors.diagonal(axis1=1, axis2=2)).sum(axis=1)
    del factors
    inverse = np.linalg.inv(M)
    packed[size:-1] = np.matmul(inverse, packed[size:-1].T[:, :, None])[:, :, 0].T
    i, j = np.tril_indices(r)
    packed[:size] = inverse[:, i, j].T
    return log_determinants
