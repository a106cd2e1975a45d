"""What one product S Q of the covariance with a thin basis tells: eigenpairs, how far off they are, and a better basis.

The eigenpairs are those of the Nystrom approximation Y (Q^T Y)^-1 Y^T with Y = S Q: its vectors lie in the span of S Q and are a power
step better than the Ritz vectors of Q. Only m x m matrices are formed beside Q and Y, which may be single precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from streampca.models.pca import Array, Floats

_PANEL_BYTES = 2**20
_DEPENDENT = 1e-12  # of the largest eigenvalue of a basis' Gram matrix: less is no direction of its own
_NOISE = 0.2  # of a unit of rounding over the root of the number of rows: measured
_UNSURE = 1.002  # the variance that a basis misses is an estimate: values nearer to it are taken as equal


@dataclass(frozen=True)
class Extraction:
    """Eigenpairs from a basis Q and its products Y, as coefficients."""

    ritz: Floats  # Ritz values of Q, largest first
    ritz_coefficients: Floats  # m x m': Q times these are the Ritz vectors
    residuals: Floats  # |S q - theta q| / theta of each Ritz vector
    variances: Floats  # Nystrom's eigenvalues, largest first
    coefficients: Floats  # m x m': Y times these are its orthonormal eigenvectors
    overlap: Floats  # of its eigenvectors (rows) with the Ritz vectors (columns)
    rounding: float  # the unit of the products' precision
    noise: float  # of the products, relative to the largest variance: rounding in single precision averages out over the rows

    def outward(self, k: int, outside: float) -> Floats:
        """Return the estimated sine between each of k eigenvectors found and the true space, as far as the basis is to blame.

        A Ritz vector's error e has residual (theta - outside) e, if ``outside`` is the variance where the error points;
        the power step multiplies it by outside / theta. What rounding adds was measured, for spectra down to 1e-9 of the largest.
        """
        theta = self.ritz[:k]
        steepness = self.ritz[0] / theta
        rounding = 0.02 * self.rounding * np.sqrt(steepness) + 10 * (_NOISE * self.noise * steepness) ** 2
        sines: Floats = np.minimum(self._tangents(outside)[:k] * outside / theta + rounding, 1.0)
        return sines

    def errors(self, k: int, outside: float) -> Floats:
        """Return the estimated squared sine between each of k eigenvectors found and the space of the k true ones.

        Beside what the basis misses, it counts the mixing with found directions beyond k. The Nystrom approximation is off by at most
        ``outside`` times the tangents of both Ritz vectors, which turns a pair by that much over the difference of their variances; if
        it is small, by a part of it, as errors in many dimensions are nearly orthogonal.
        """
        theta, tangents = self.ritz, self._tangents(outside)
        gaps = np.maximum(self.variances[:k, None] - self.variances[k:], 1e-16 * theta[0])
        most = outside * np.outer(tangents[:k], tangents[k:]) / gaps
        rounding = 0.02 * self.rounding * np.sqrt(theta[0] * theta[:k]) + 1e3 * np.finfo(np.float64).eps * theta[:k]
        mixing = np.minimum(most * (0.02 + 0.1 * most) + rounding[:, None] / gaps, 1.0) ** 2
        squares: Floats = np.minimum(self.outward(k, outside) ** 2 + mixing.sum(axis=1), 1.0)
        return squares

    def accuracy(self, k: int, outside: float) -> Floats:
        """Return the estimated |S v - l v| / l of each of k eigenvectors found; mixing those of equal variances leaves none."""
        theta = self.ritz[:k]
        residuals: Floats = self.outward(k, outside) * np.maximum(1 - outside / theta, 0.0) + 0.002 * self.rounding * self.ritz[0] / theta
        return residuals

    def corrected(self, k: int, outside: float) -> Floats:
        """Return the variances with what the second order of perturbation theory adds to Ritz values: |r|^2 / (theta - outside).

        At least Nystrom's, which are bounds from below, and at most twice as far from the Ritz values.
        """
        theta, nystrom = self.ritz[:k], self.variances[:k]
        gap = np.maximum(theta - outside, 1e-12 * theta)
        second_order = (self.residuals[:k] * theta) ** 2 / gap
        return np.clip(theta + second_order, nystrom, np.maximum(2 * nystrom - theta, nystrom))

    def _tangents(self, outside: float) -> Floats:
        """Return the tangents of the Ritz vectors' angles; none is known where ``outside``, an estimate, is as large as the value."""
        gap = np.maximum(self.ritz - _UNSURE * outside, 1e-12 * self.ritz)
        return np.minimum(self.residuals * self.ritz / gap, 1.0)


def extract(Q: Array, Y: Array, n_rows: int) -> Extraction | None:
    """Return what products ``Y = S Q`` over so many rows tell of S; None if it is zero on the whole basis."""
    G, T, H = tall_products(Q, Q), tall_products(Q, Y), tall_products(Y, Y)
    g, P = linalg.eigh(G, check_finite=False)
    basis = (P / np.sqrt(np.maximum(g, np.finfo(np.float64).tiny)))[:, g > _DEPENDENT * g[-1]]
    theta, C = linalg.eigh(basis.T @ ((T + T.T) / 2) @ basis, check_finite=False)
    rounding = float(np.finfo(Q.dtype).eps)
    noise = rounding / np.sqrt(n_rows)
    positive = theta > max(len(theta) * np.finfo(Y.dtype).eps, 4 * noise) * max(theta[-1], 0.0)
    if not positive.any():
        return None
    theta, C = theta[positive][::-1], (basis @ C[:, positive])[:, ::-1]
    squares = np.einsum("ij,ij->j", C, H @ C)
    # A difference of squares: less than the root of the unit of rounding cannot be told from it.
    residuals = np.sqrt(np.maximum(squares / theta**2 - 1, 4 * np.finfo(np.float64).eps))
    root = C / np.sqrt(theta)
    mu, P = linalg.eigh(root.T @ H @ root, check_finite=False)
    mu, P = np.maximum(mu[::-1], np.finfo(np.float64).tiny), P[:, ::-1]
    A = (root @ P) / np.sqrt(mu)
    return Extraction(theta, C, residuals, mu, A, A.T @ T.T @ C, rounding, noise)


def better_basis(found: Extraction, Q: Array, Y: Array, leading: int, width: int) -> Array:
    """Return up to ``width`` columns that span the ``leading`` first eigenvectors found and, as far as there is room, Ritz vectors.

    The eigenvectors lie in the span of S Q, the Ritz vectors in that of Q: together a block Krylov space, whose nearly
    dependent directions are dropped.
    """
    A, C, K = found.coefficients[:, :leading], found.ritz_coefficients[:, :leading], found.overlap[:leading, :leading]
    g, P = linalg.eigh(np.eye(leading) - K.T @ K, check_finite=False)
    P = (P / np.sqrt(np.maximum(g, np.finfo(np.float64).tiny)))[:, g > _DEPENDENT][:, ::-1][:, : width - leading]
    from_Y = np.hstack([A, -A @ (K @ P)]).astype(Q.dtype)
    from_Q = np.hstack([np.zeros_like(A), C @ P]).astype(Q.dtype)
    result = np.empty((len(Q), from_Y.shape[1]), Q.dtype)
    for rows in row_panels(Q):
        result[rows] = Y[rows].astype(Q.dtype, copy=False) @ from_Y + Q[rows] @ from_Q
    return result


def tall_products(left: Array, right: Array) -> Floats:
    """Return ``left.T @ right`` for tall, thin arrays, added up in float64."""
    products = np.zeros((left.shape[1], right.shape[1]))
    for rows in row_panels(left):
        products += left[rows].T.astype(np.float64) @ right[rows].astype(np.float64)
    return products


def row_panels(tall: Array) -> list[slice]:
    """Cut a tall array into panels of bounded size."""
    height = max(_PANEL_BYTES // (8 * max(tall.shape[1], 1)), 64)
    return [slice(start, start + height) for start in range(0, len(tall), height)]
