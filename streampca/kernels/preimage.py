"""Pre-images: rows of the input space for points of the feature space, in bounded memory.

``RidgePreimage`` learns the way back from scores to rows on a sample, by kernel ridge regression as scikit-learn's
``fit_inverse_transform``. ``fixed_point`` finds, for the rbf kernel, the row whose image is nearest (Mika et al. 1999).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from scipy import linalg

from streampca.errors import UsageError
from streampca.kernels.functions import Kernel, Rbf, check_rows, gamma_of, kernel_from
from streampca.kernels.maps import strips
from streampca.kernels.nystrom import gram
from streampca.statistics.base import Array, Floats

_STRIP_BYTES = 2**20
_ALPHAS = np.logspace(-8, 1, 19)
_WIDTHS = (0.25, 1.0, 4.0)  # of the median heuristic's gamma
MAX_ITERATIONS = 100


@dataclass(frozen=True, eq=False, repr=False)
class RidgePreimage:
    """Kernel ridge regression from scores onto rows.

    >>> t = np.linspace(-1, 1, 30)[:, None]
    >>> back = RidgePreimage.fit(t, np.hstack([t, t**2]))
    >>> bool(abs(back.inverse_transform(t) - np.hstack([t, t**2])).max() < 1e-3)
    True
    """

    kernel: Kernel  # on scores
    scores: Floats
    dual: Floats
    mean: Floats  # of the rows
    alpha: float

    @classmethod
    def fit(cls, scores: Array, rows: Array, alpha: float | Literal["auto"] = "auto", kernel: Kernel | None = None) -> Self:
        """Return the regression, trained on the scores of some rows.

        Parameters
        ----------
        scores, rows : ndarray of shape (s, k) and (s, d)
            A sample, or the landmarks: s x s numbers are held.
        alpha : float or "auto"
            Ridge; ``"auto"`` is that with the smallest leave-one-out error.
        kernel : Kernel, optional
            On scores; by default rbf, its gamma by leave-one-out too, near the median heuristic's.
        """
        if len(scores) != len(rows) or len(rows) == 0:
            raise UsageError(f"as many scores as rows are needed, and at least one, not {len(scores)} and {len(rows)}")
        if alpha != "auto" and not (np.isfinite(alpha) and alpha > 0):
            raise UsageError(f"alpha must be a positive number or 'auto', not {alpha!r}")
        scores, mean = scores.astype(np.float64), rows.mean(axis=0, dtype=np.float64)
        targets = np.subtract(rows, mean, dtype=np.float64)
        middle = gamma_of("median", "rbf", scores.shape[1], scores)
        candidates: list[Kernel] = [kernel] if kernel is not None else [Rbf(width * middle) for width in _WIDTHS]
        alphas = _ALPHAS if alpha == "auto" else np.array([alpha])
        best = min((_regression(each, scores, targets, alphas) for each in candidates), key=lambda found: found[0])
        _, kernel, dual, chosen = best
        return cls(kernel, scores, dual, mean, chosen)

    def inverse_transform(self, scores: Array) -> Floats:
        """Return the rows that scores stand for."""
        check_rows(scores, self.scores.shape[1])
        rows = np.empty((len(scores), len(self.mean)))
        fill = self.kernel.against(self.scores, np.dtype(np.float64))
        for part in strips(len(scores), max(_STRIP_BYTES // (8 * len(self.scores)), 32)):
            values = np.empty((part.stop - part.start, len(self.scores)))
            fill(scores[part], values)
            rows[part] = values @ self.dual + self.mean
        return rows

    def to_arrays(self) -> dict[str, Array]:
        """Return the arrays, by name."""
        return {"scores": self.scores, "dual": self.dual, "mean": self.mean}

    def attributes(self) -> dict[str, Any]:
        """Return what else there is, as JSON."""
        return {"kernel": self.kernel.parameters(), "alpha": self.alpha}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:
        """Return what ``to_arrays`` and ``attributes`` described."""
        return cls(kernel_from(attributes["kernel"]), arrays["scores"], arrays["dual"], arrays["mean"], float(attributes["alpha"]))


def ridge_bytes(n_sample: int, n_features: int, n_components: int) -> int:
    """Return the bytes of a ridge fit."""
    return 8 * n_sample * (4 * n_sample + 5 * n_features + 3 * n_components)


def _regression(kernel: Kernel, scores: Floats, targets: Floats, alphas: Floats) -> tuple[float, Kernel, Floats, float]:
    """Return the leave-one-out error, the kernel, the dual coefficients and the ridge that has the smallest.

    With K + a I = Q (L + a) Q^T the residual of a row, had it been left out, is its dual coefficient over the diagonal of the inverse.
    """
    values, vectors = linalg.eigh(gram(kernel, scores), overwrite_a=True, check_finite=False, driver="evd")
    values, rotated = np.maximum(values, 0.0), vectors.T @ targets
    squared = vectors * vectors
    errors = []
    for alpha in alphas:
        inverse = 1 / (values + alpha)
        residual = (vectors @ (inverse[:, None] * rotated)) / (squared @ inverse)[:, None]
        errors.append(float(np.einsum("ij,ij->", residual, residual)))
    best = int(np.argmin(errors))
    return errors[best], kernel, vectors @ (rotated / (values + alphas[best])[:, None]), float(alphas[best])


def fixed_point(
    coefficients: Array, points: Array, gamma: float, start: Array, *, max_iter: int = MAX_ITERATIONS, tolerance: float = 1e-6
) -> Floats:
    """Return rows whose images under the rbf kernel are near sums of the images of points.

    The row z nearest in feature space to ``sum_i c_i phi(x_i)`` is a fixed point of the mean of the points with weights
    c_i k(z, x_i). Where the weights all but cancel, the row stays where it is.

    Parameters
    ----------
    coefficients : ndarray of shape (n, m)
        Weights c of the points, from ``NystromMap.coefficients`` or ``ExactKernelPCA.coefficients``.
    points : ndarray of shape (m, d)
        Landmarks, or the rows that were fitted.
    gamma : float
        Of the rbf kernel.
    start : ndarray of shape (n, d)
        Where to start, for example ``RidgePreimage.inverse_transform``.
    max_iter, tolerance
        When to stop: after so many steps, or when a row moves by less than this share of the points' spread.

    >>> points = np.array([[0.0], [1.0]])
    >>> fixed_point(np.array([[1.0, 0.0]]), points, 0.5, np.array([[0.7]])).round(6)
    array([[0.]])
    """
    kernel, rows = Rbf(gamma), start.astype(np.float64)
    check_rows(rows, points.shape[1])
    origin = points.mean(axis=0, dtype=np.float64)
    centred = np.subtract(points, origin, dtype=np.float64)
    enough = tolerance * float(np.sqrt(np.einsum("ij,ij->", centred, centred) / len(points)))
    fill = kernel.against(centred, np.dtype(np.float64))
    for part in strips(len(rows), max(_STRIP_BYTES // (8 * len(points)), 32)):
        rows[part] = _settle(coefficients[part], centred, fill, rows[part] - origin, max_iter, enough) + origin
    return rows


def _settle(coefficients: Array, points: Floats, fill: Any, rows: Floats, max_iter: int, enough: float) -> Floats:
    moving = np.arange(len(rows))
    for _ in range(max_iter):
        values = np.empty((len(moving), len(points)))
        fill(rows[moving], values)
        values *= coefficients[moving]
        sums, sizes = values.sum(axis=1), np.abs(values).sum(axis=1)
        sound = sums > 1e-3 * sizes
        moving, values, sums = moving[sound], values[sound], sums[sound]
        if moving.size == 0:
            break
        moved = values @ points / sums[:, None]
        steps = np.sqrt(np.einsum("ij,ij->i", moved - rows[moving], moved - rows[moving]))
        rows[moving] = moved
        moving = moving[steps > enough]
        if moving.size == 0:
            break
    return rows
