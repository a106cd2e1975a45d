"""The sums of one EM pass of a latent model over rows with missing entries (NaN). NumPy only.

What z may be, given the observed entries of a row, is in ``posterior.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np

from streampca.statistics import posterior
from streampca.statistics.base import Array, Floats, Statistic
from streampca.statistics.posterior import Posterior, packed_size, parts, refuse_infinite, row_floats, strip_rows, unpack

_PANEL_BYTES = 2**20


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
    wide = 0 if r <= posterior.SWEEP_LIMIT else 4 * r * r * strip_rows(n_features, r)
    return 8 * (strip_rows(n_features, r) * row_floats(n_features, r) + constants + wide) + 3 * _PANEL_BYTES
