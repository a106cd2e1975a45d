"""Exact kernel PCA of rows that fit in memory with their n x n kernel matrix: scikit-learn's ``KernelPCA`` to the last digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import ArpackNoConvergence, eigsh

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels.functions import Kernel, check_rows, kernel_from
from streampca.kernels.maps import strips
from streampca.kernels.nystrom import gram, signed
from streampca.statistics.base import Array, Floats

_STRIP_BYTES = 4 * 2**20
_SMALL = 1e-12  # eigenvalues below this share of the largest are zero, as scikit-learn has it
_LANCZOS_ROWS, _LANCZOS_SHARE = 1000, 20  # from so many rows on, if at most one in twenty eigenpairs is wanted


@dataclass(frozen=True, eq=False, repr=False)
class ExactKernelPCA:
    """The leading eigenpairs of the centred kernel matrix, and what is needed to project new rows.

    >>> from streampca.kernels.functions import Linear
    >>> ExactKernelPCA.fit(Linear(), np.array([[0.0], [1.0], [5.0]])).scores.round(6).ravel()
    array([-2., -1.,  3.])
    """

    kernel: Kernel
    rows: Array  # less the origin
    origin: Floats | None
    eigenvalues: Floats  # of the centred kernel matrix, largest first, as scikit-learn's eigenvalues_
    vectors: Floats  # n x k, orthonormal columns, the entry of largest magnitude positive
    column_means: Floats  # of the kernel matrix
    total_variation: float  # trace of the centred kernel matrix
    negative_share: float | None  # sum of |negative eigenvalues| over the sum of all magnitudes; None where not all were computed

    @classmethod
    def fit(cls, kernel: Kernel, X: Array, n_components: int | None = None, *, remove_zero: bool = False) -> Self:
        """Return the kernel PCA of rows.

        Parameters
        ----------
        kernel : Kernel
            The kernel.
        X : ndarray of shape (n, d)
            All rows.
        n_components : int, optional
            How many; by default all with eigenvalues other than zero.
        remove_zero : bool
            Drop components with eigenvalue zero even if so many were asked for.
        """
        n = len(X)
        if n_components is not None and not 1 <= n_components <= n:
            raise UsageError(f"n_components must be between 1 and the number of rows, {n}, not {n_components}")
        check_rows(X, X.shape[1])
        # Linear: the centred matrix is the same about any origin, and does not cancel about the mean.
        origin = X.mean(axis=0, dtype=np.float64) if kernel.shiftable else None
        rows = np.ascontiguousarray(X if origin is None else np.subtract(X, origin, dtype=np.float64))
        K = gram(kernel, rows)
        means = K.mean(axis=0)
        for part in strips(n, max(_STRIP_BYTES // (8 * n), 1)):
            K[part] -= means
            K[part] -= (means[part] - means.mean())[:, None]
        total = float(K.trace())
        values, vectors, negative = _leading(K, n_components, kernel.definite)
        if remove_zero or n_components is None:
            values, vectors = values[values > 0], vectors[:, values > 0]
        return cls(kernel, rows, origin, values, vectors, means, total, negative)

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.eigenvalues)

    @property
    def scores(self) -> Floats:
        """The scores of the rows that were fitted."""
        scores: Floats = self.vectors * np.sqrt(self.eigenvalues)
        return scores

    @cached_property
    def _dual(self) -> Floats:
        """Coefficients of the components: a_k with n l a^T a = 1; zero where the eigenvalue is."""
        inverse = np.where(self.eigenvalues > 0, 1 / np.sqrt(np.where(self.eigenvalues > 0, self.eigenvalues, 1.0)), 0.0)
        return self.vectors * inverse

    def transform(self, block: Array) -> Floats:
        """Return the scores of new rows, centred by the means of the rows that were fitted."""
        n, dual = len(self.rows), self._dual
        scores = np.empty((len(block), self.n_components))
        fill = self.kernel.against(self.rows, np.dtype(np.float64))
        sums = dual.sum(axis=0)
        for part in strips(len(block), max(_STRIP_BYTES // (8 * n), 1)):
            strip: Floats = np.empty((part.stop - part.start, n))
            try:
                fill(self._shifted(block[part]), strip)
            except NonFiniteError as error:
                raise error.at(part.start) from None
            strip -= self.column_means
            scores[part] = strip @ dual - np.outer(strip.mean(axis=1), sums)
        return scores

    def _shifted(self, block: Array) -> Array:
        if self.origin is None:
            return block
        check_rows(block, self.rows.shape[1])
        return np.subtract(block, self.origin, dtype=np.float64)

    def coefficients(self, scores: Array) -> Floats:
        """Return the weights of the rows' images whose sum is the point of feature space with these scores (n_scores x n)."""
        about_mean = scores @ self._dual.T
        weights: Floats = about_mean + (1 - about_mean.sum(axis=1, keepdims=True)) / len(self.rows)
        return weights

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays, by name."""
        arrays = {"rows": self.rows, "eigenvalues": self.eigenvalues, "vectors": self.vectors, "column_means": self.column_means}
        return arrays if self.origin is None else {**arrays, "origin": self.origin}

    def attributes(self) -> dict[str, Any]:
        """Return what else there is, as JSON."""
        return {"kernel": self.kernel.parameters(), "total_variation": self.total_variation, "negative_share": self.negative_share}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:
        """Return what ``to_arrays`` and ``attributes`` described."""
        kernel, total, negative = kernel_from(attributes["kernel"]), float(attributes["total_variation"]), attributes["negative_share"]
        found = arrays["eigenvalues"], arrays["vectors"], arrays["column_means"]
        return cls(kernel, arrays["rows"], arrays.get("origin"), *found, total, negative)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without what is prepared from the fields."""
        given = (self.kernel, self.rows, self.origin, self.eigenvalues, self.vectors, self.column_means)
        return type(self), (*given, self.total_variation, self.negative_share)


def exact_bytes(n_rows: int, n_features: int, n_components: int | None, *, definite: bool = True) -> int:
    """Return the bytes of a fit: the matrix, the eigenvectors, LAPACK's or ARPACK's workspace, the rows."""
    k = n_rows if n_components is None else n_components
    vectors = 3 * k if _few(n_rows, n_components, definite) else n_rows + k
    return 8 * n_rows * (n_rows + 2 * vectors + 3 * n_features + 40) + 2 * _STRIP_BYTES


def _few(n: int, k: int | None, definite: bool) -> bool:
    return definite and k is not None and n >= _LANCZOS_ROWS and k * _LANCZOS_SHARE <= n


def _leading(K: Floats, k: int | None, definite: bool) -> tuple[Floats, Floats, float | None]:
    """Return the largest eigenvalues, those that are negative or tiny set to zero, their vectors, and the negative share."""
    pairs = _by_lanczos(K, k) if _few(len(K), k, definite) and k is not None else None
    negative: float | None = None
    if pairs is None:
        values, vectors = linalg.eigh(K, overwrite_a=True, check_finite=False)
        values, vectors = values[::-1], vectors[:, ::-1]
        share = float(-values[values < 0].sum()) / max(float(np.abs(values).sum()), 1e-300)
        negative = share if share > len(K) * np.finfo(np.float64).eps else 0.0
        pairs = values[:k].copy(), vectors[:, :k]
    values, vectors = pairs
    values[values < _SMALL * max(float(values[0]), 0.0)] = 0.0
    if not np.isfinite(values).all():
        raise DataError("the centred kernel matrix is not finite: rescale the data")
    return np.maximum(values, 0.0), signed(vectors), negative


def _by_lanczos(K: Floats, k: int) -> tuple[Floats, Floats] | None:
    """Return the k largest eigenpairs, or None if ARPACK does not find them."""
    start = np.random.default_rng(0).uniform(-1, 1, len(K))
    try:
        values, vectors = eigsh(K, k, which="LA", v0=start, tol=0)
    except ArpackNoConvergence:
        return None
    order = np.argsort(values)[::-1]
    return values[order], vectors[:, order]
