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

    def errors(self, k: int, outside: float) -> Floats:
        """Return the estimated squared sine between each of k eigenvectors found and the true ones.

        A Ritz vector's error e has residual (theta - outside) e, if ``outside`` is the variance where the error points;
        the power step multiplies it by outside / theta.
        """
        theta = self.ritz[:k]
        gap = np.maximum(theta - outside, 1e-12 * theta)
        return np.minimum(self.residuals[:k] * (outside / gap) + self.rounding, 1.0) ** 2

    def corrected(self, k: int, outside: float) -> Floats:
        """Return the variances with what the second order of perturbation theory adds to Ritz values: |r|^2 / (theta - outside).

        At least Nystrom's, which are bounds from below, and at most twice as far from the Ritz values.
        """
        theta, nystrom = self.ritz[:k], self.variances[:k]
        gap = np.maximum(theta - outside, 1e-12 * theta)
        second_order = (self.residuals[:k] * theta) ** 2 / gap
        return np.clip(theta + second_order, nystrom, np.maximum(2 * nystrom - theta, nystrom))


def extract(Q: Array, Y: Array) -> Extraction | None:
    """Return what products ``Y = S Q`` tell of S; None if it is zero on the whole basis."""
    G, T, H = tall_products(Q, Q), tall_products(Q, Y), tall_products(Y, Y)
    g, P = linalg.eigh(G, check_finite=False)
    basis = (P / np.sqrt(np.maximum(g, np.finfo(np.float64).tiny)))[:, g > _DEPENDENT * g[-1]]
    theta, C = linalg.eigh(basis.T @ ((T + T.T) / 2) @ basis, check_finite=False)
    positive = theta > len(theta) * np.finfo(Y.dtype).eps * max(theta[-1], 0.0)
    if not positive.any():
        return None
    theta, C = theta[positive][::-1], (basis @ C[:, positive])[:, ::-1]
    squares = np.einsum("ij,ij->j", C, H @ C)
    residuals = np.sqrt(np.maximum(squares - theta**2, 0.0)) / theta
    root = C / np.sqrt(theta)
    mu, P = linalg.eigh(root.T @ H @ root, check_finite=False)
    mu, P = np.maximum(mu[::-1], np.finfo(np.float64).tiny), P[:, ::-1]
    A = (root @ P) / np.sqrt(mu)
    return Extraction(theta, C, residuals, mu, A, A.T @ T.T @ C, float(np.finfo(Q.dtype).eps))


def better_basis(found: Extraction, Q: Array, Y: Array, leading: int) -> Array:
    """Return up to 2 x ``leading`` columns that span as many leading eigenvectors found and as many leading Ritz vectors.

    The eigenvectors lie in the span of S Q, the Ritz vectors in that of Q: together a block Krylov space, whose nearly
    dependent directions are dropped.
    """
    A, C, K = found.coefficients[:, :leading], found.ritz_coefficients[:, :leading], found.overlap[:leading, :leading]
    g, P = linalg.eigh(np.eye(leading) - K.T @ K, check_finite=False)
    P = (P / np.sqrt(np.maximum(g, np.finfo(np.float64).tiny)))[:, g > _DEPENDENT][:, ::-1]
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
