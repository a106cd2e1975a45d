"""Rows with missing entries (NaN): moments of what is observed, and the sums of one EM pass of a latent model. NumPy only.

The model is x = W z + mean + e with z ~ N(0, I) and independent noise e. For every row only the observed entries count. No
loop over rows: all W_o^T Psi_o^-1 W_o of a strip are one product of its mask with the products of columns of W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, NonFiniteError
from streampca.statistics.base import Array, Floats, Statistic

_STRIP_BYTES = 2**23
_PANEL_BYTES = 2**20
_FEWEST_ROWS, _MOST_ROWS = 64, 4096  # of a strip
_SWEEP_LIMIT = 24  # by measurement: up to this many components, sweeping all rows of a strip at once beats LAPACK row by row


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
    return int(np.clip(_STRIP_BYTES // (8 * _row_floats(n_features, n_components)), _FEWEST_ROWS, _MOST_ROWS))


def _row_floats(n_features: int, n_components: int) -> int:
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
        if r <= _SWEEP_LIMIT:
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


# ----------------------------------------------------------------------------------------------- the EM statistic


class Missing(Statistic):
    """What one EM pass needs of rows with missing entries, and their log-likelihood, at given parameters.

    Per feature j, over the rows in which it is observed, with z^ = (z, 1) and x centred on ``mean``: the sums of <z^ z^T>
    (``gram``), of x_j <z^> (``products``) and of x_j^2 (``squares``). All are plain sums of rows.

    Parameters
    ----------
    W : array, d x r
    mean : array of d
    noise : variance of the noise, positive: a number or one per feature

    Examples
    --------
    >>> statistic = Missing(np.array([[1.0], [1.0]]), np.zeros(2), 1.0)
    >>> statistic.update(np.array([[1.0, np.nan], [np.nan, np.nan], [2.0, 2.0]]))
    >>> statistic.count, statistic.skipped, statistic.observed.tolist(), statistic.squares.tolist()
    (2.0, 1.0, [2.0, 1.0], [5.0, 4.0])
    """

    tolerance = 1e-11
    allows_nan = True

    def __init__(self, W: Floats, mean: Floats, noise: float | Floats) -> None:
        self.W, self.mean, self.noise = W, mean, noise
        d, r = W.shape
        size = packed_size(r + 1)
        self.grams: Floats = np.zeros((d, size))  # of rows with missing entries
        self.shared: Floats = np.zeros(size)  # of complete rows, the same for every feature
        self.total: Floats = np.zeros(size)  # of all rows
        self.products: Floats = np.zeros((d, r + 1))
        self.squares: Floats = np.zeros(d)
        self.loglike = 0.0
        self.skipped = 0.0
        self._posterior: Posterior | None = None

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.squares)

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.products.shape[1]) - 1

    @property
    def count(self) -> float:
        """Number of rows (sum of their weights) with something observed."""
        return float(self.total[-1])

    @property
    def observed(self) -> Floats:
        """Number of observed entries of each feature."""
        counts: Floats = self.grams[:, -1] + self.shared[-1]
        return counts

    def gram(self, features: slice) -> Floats:
        """Return the sums of <z^ z^T> of some features (k x (r+1) x (r+1))."""
        return unpack(self.grams[features] + self.shared, self.n_components + 1)

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.W, self.mean, self.noise)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        if self._posterior is None:
            self._posterior = Posterior(self.W, self.noise)
        for part in parts(block, self.mean, strip_rows(self.n_features, self.n_components)):
            w = np.ones(len(part.x)) if weights is None else weights[part.rows]
            with np.errstate(invalid="ignore", over="ignore"):
                if part.seen is None:
                    self._add_complete(self._posterior, part.x, w)
                else:
                    self._add_partial(self._posterior, part.x, part.seen, w)
                self.squares += w @ (part.x * part.x)
            if not np.isfinite(self.squares).all():
                refuse_infinite(block)

    def _add_complete(self, posterior: Posterior, x: Floats, w: Floats) -> None:
        """Add rows without missing entries: one covariance of z serves all of them and all features."""
        r = self.n_components
        z = np.ones((len(x), r + 1))
        z[:, :r] = posterior.means(x)
        self.loglike += float(w @ posterior.log_likelihoods(x, None, z[:, :r], posterior.log_determinant))
        weighted = z * w[:, None]
        moments = z.T @ weighted
        moments[:r, :r] += w.sum() * posterior.covariance
        packed = moments[np.tril_indices(r + 1)]
        self.shared += packed
        self.total += packed
        self.products += x.T @ weighted

    def _add_partial(self, posterior: Posterior, x: Floats, seen: Floats, w: Floats) -> None:
        """Add rows with missing entries, each with a covariance of its own."""
        r = self.n_components
        size = packed_size(r)
        empty = ~seen.any(axis=1)
        if empty.any():
            self.skipped += float(w @ empty)
            w = np.where(empty, 0.0, w)
        packed, log_determinants = posterior.moments(x, seen)
        z = packed[size:-1]
        self.loglike += float(w @ posterior.log_likelihoods(x, seen, z.T, log_determinants))
        for i in range(r):  # from covariances to second moments
            packed[packed_size(i) : packed_size(i + 1)] += z[i] * z[: i + 1]
        packed *= w
        self.total += packed.sum(axis=1)
        self.products += x.T @ packed[size:].T
        panel = max(_PANEL_BYTES // (8 * len(packed)), 1)
        for start in range(0, self.n_features, panel):
            features = slice(start, start + panel)
            self.grams[features] += seen[:, features].T @ packed.T

    def merge(self, other: Self) -> None:  # noqa: D102
        self.grams += other.grams
        self.shared += other.shared
        self.total += other.total
        self.products += other.products
        self.squares += other.squares
        self.loglike += other.loglike
        self.skipped += other.skipped

    def release(self) -> None:  # noqa: D102
        self._posterior = None

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        arrays: dict[str, Array] = {name: getattr(self, name) for name in ("grams", "shared", "total", "products", "squares")}
        return {**arrays, "loglike": np.array(self.loglike), "skipped": np.array(self.skipped)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the sums that ``to_arrays`` described; they can be read and merged, not updated: the parameters are not among them."""
        one = cls.__new__(cls)
        one.grams, one.shared, one.total = arrays["grams"], arrays["shared"], arrays["total"]
        one.products, one.squares = arrays["products"], arrays["squares"]
        one.loglike, one.skipped = float(arrays["loglike"]), float(arrays["skipped"])
        return one

    @property
    def nbytes(self) -> int:  # noqa: D102
        return state_bytes(self.n_features, self.n_components)

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self.n_components)


def state_bytes(n_features: int, n_components: int) -> int:
    """Return the bytes of the sums of an EM pass, without making them."""
    size = packed_size(n_components + 1)
    return 8 * (n_features * (size + n_components + 2) + 2 * size)


def workspace_bytes(n_features: int, n_components: int) -> int:
    """Return the bytes that updates need beside the sums: a strip, the products of columns of W, and copies of W."""
    r = n_components
    constants = n_features * (3 * packed_size(r) + 4 * (r + 1) + 8) + 8 * (r + 1) ** 2
    wide = 0 if r <= _SWEEP_LIMIT else 4 * r * r * strip_rows(n_features, r)
    return 8 * (strip_rows(n_features, r) * _row_floats(n_features, r) + constants + wide) + 3 * _PANEL_BYTES


# -------------------------------------------------------------------------------------- moments of observed entries


class ObservedMoments(Statistic):
    """Count, mean and variance of the observed entries of every column.

    >>> moments = ObservedMoments(2)
    >>> moments.update(np.array([[1e8, np.nan], [1e8 + 2, 5.0]]))
    >>> moments.counts.tolist(), moments.mean.tolist(), moments.variance.tolist()
    ([2.0, 1.0], [100000001.0, 5.0], [1.0, 0.0])
    """

    tolerance = 1e-12
    allows_nan = True

    def __init__(self, n_features: int) -> None:
        self.counts: Floats = np.zeros(n_features)
        self.pivot: Floats = np.zeros(n_features)
        self.offset: Floats = np.zeros(n_features)  # the mean is pivot + offset: see Centre
        self.squares: Floats = np.zeros(n_features)  # sums of squared deviations from the mean

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.counts)

    @property
    def mean(self) -> Floats:
        """Mean of the observed entries of each column; 0 where there are none."""
        return self.pivot + self.offset

    @property
    def variance(self) -> Floats:
        """Variance of the observed entries of each column, with their number as divisor; 0 where there are none."""
        result: Floats = self.squares / np.where(self.counts > 0, self.counts, 1.0)
        return result

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        height = self._strip_rows()
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(block), height):
                strip = block[start : start + height].astype(np.float64, order="C")
                w = np.ones(len(strip)) if weights is None else weights[start : start + height]
                self._join(*_column_moments(strip, w))
                if not np.isfinite(self.squares).all():
                    refuse_infinite(block)

    def _join(self, counts: Floats, pivot: Floats, offset: Floats, squares: Floats) -> None:
        """Fold in moments by Chan's formula, column by column."""
        first = (self.counts == 0) & (counts > 0)
        self.pivot[first], self.offset[first] = pivot[first], offset[first]
        total = self.counts + counts
        share = counts / np.where(total > 0, total, 1.0)
        delta = np.where(counts > 0, (pivot - self.pivot) + (offset - self.offset), 0.0)
        self.squares += squares + delta * delta * (self.counts * share)
        self.offset += delta * share
        self.counts = total

    def merge(self, other: Self) -> None:  # noqa: D102
        self._join(other.counts, other.pivot, other.offset, other.squares)

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {"counts": self.counts, "pivot": self.pivot, "offset": self.offset, "squares": self.squares}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        moments = cls.__new__(cls)
        moments.counts, moments.pivot = arrays["counts"], arrays["pivot"]
        moments.offset, moments.squares = arrays["offset"], arrays["squares"]
        return moments

    @property
    def nbytes(self) -> int:  # noqa: D102
        return 4 * self.counts.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return 8 * self.n_features * (4 * min(rows, self._strip_rows()) + 16)

    def _strip_rows(self) -> int:
        return int(np.clip(_PANEL_BYTES // (8 * self.n_features), _FEWEST_ROWS, _MOST_ROWS))


def _column_moments(strip: Floats, w: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return counts, pivots, offsets and squared deviations of the observed entries of a few rows. Overwrites them."""
    missing = np.isnan(strip)
    counted = ~missing & (w > 0)[:, None]
    first = np.argmax(counted, axis=0)
    pivot = np.where(counted.any(axis=0), strip[first, np.arange(strip.shape[1])], 0.0)
    strip -= pivot
    np.copyto(strip, 0.0, where=missing)
    counts = w @ ~missing
    offset = (w @ strip) / np.where(counts > 0, counts, 1.0)
    strip -= offset
    np.copyto(strip, 0.0, where=missing)
    np.multiply(strip, strip, out=strip)
    return counts, pivot, offset, w @ strip
