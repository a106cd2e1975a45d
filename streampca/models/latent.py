"""A fitted latent-variable model: probabilistic PCA or factor analysis, and what follows from it, block by block.

x = W z + mean + e with z ~ N(0, I_r); the noise e has one variance (probabilistic PCA) or one per feature (factor analysis).
NaN is a missing entry everywhere. All goes through r x r matrices; d x d ones are made only when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, Self, overload

import numpy as np

from streampca.errors import CorruptDataError, UsageError
from streampca.models.pca import Array, Floats, scores_dtype
from streampca.statistics.posterior import Part, Posterior, packed_size, parts, strip_rows, unpack

# Noise below these parts of a feature's variance is computed with as if it were that: the r x r matrices would be too close to
# singular. Complete rows stand much less of it than rows with missing entries, which may determine only some of z.
_LEAST_NOISE, _LEAST_NOISE_PARTIAL = 1e-15, 1e-11


@dataclass(frozen=True, eq=False)
class LatentModel:
    """Probabilistic PCA (one noise variance) or factor analysis (one per feature), by maximum likelihood (divisor n).

    Examples
    --------
    >>> model = LatentModel(np.array([[1.0], [1.0]]), np.zeros(2), 1.0, n_samples=10)
    >>> model.transform(np.array([[3.0, 3.0], [3.0, np.nan]])).tolist()
    [[2.0], [1.5]]
    >>> model.impute(np.array([[3.0, np.nan]])).tolist()
    [[3.0, 1.5]]
    """

    W: Floats  # d x r
    mean: Floats  # NaN for a column without any value, which then counts as missing everywhere
    noise: float | Floats  # variance: a number (probabilistic PCA) or one per feature (factor analysis)
    n_samples: float  # number of rows, or the sum of their weights
    loglike: Floats = field(default_factory=lambda: np.empty(0))  # total, at each set of parameters that was tried; the last is this one's
    converged: bool = True
    n_iter: int = 0
    n_skipped: float = 0  # rows without any observed entry, which say nothing

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.W.shape[1])

    @property
    def n_features(self) -> int:
        """Number of columns of the data."""
        return len(self.mean)

    @property
    def isotropic(self) -> bool:
        """Whether the noise is the same for all features: probabilistic PCA."""
        return np.ndim(self.noise) == 0

    @property
    def noise_variances(self) -> Floats:
        """Variance of the noise of each feature."""
        return np.broadcast_to(np.asarray(self.noise, np.float64), self.n_features)

    @property
    def n_parameters(self) -> int:
        """Number of free parameters: mean, W up to a rotation, noise; never more than those of a full covariance."""
        d, r = self.n_features, self.n_components
        free = d * r - r * (r - 1) // 2 + (1 if self.isotropic else d)
        return d + min(free, d * (d + 1) // 2)

    def bic(self, loglike: float | None = None, n: float | None = None) -> float:
        """Return the Bayesian information criterion (smaller is better), by default that of the rows of the fit."""
        n = self.n_samples if n is None else n
        return float(self.n_parameters * np.log(n) - 2 * self._total(loglike))

    def aic(self, loglike: float | None = None) -> float:
        """Return Akaike's information criterion (smaller is better), by default that of the rows of the fit."""
        return float(2 * self.n_parameters - 2 * self._total(loglike))

    # ------------------------------------------------------------------------------------------------ rows to z

    def posterior(self, block: Array) -> tuple[Floats, Floats]:
        """Return mean (n x r) and covariance of z given the observed entries of rows.

        Without missing entries all rows have the same covariance (r x r); with any in the block, each its own (n x r x r).
        """
        r = self.n_components
        means = np.empty((len(block), r))
        own: Floats | None = None
        for part in self._parts(block):
            if part.seen is None:
                means[part.rows] = self._complete.means(part.x)
                continue
            if own is None:
                own = np.empty((len(block), r, r))
                own[:] = self._complete.covariance
            packed, _ = self._partial.moments(part.x, part.seen)
            means[part.rows] = packed[packed_size(r) : -1].T
            own[part.rows] = unpack(packed[: packed_size(r)].T, r)
        return means, self._complete.covariance.copy() if own is None else own

    def transform(self, block: Array) -> Array:
        """Return the mean of z given the observed entries of rows: float32 for float32 rows, else float64."""
        scores = np.empty((len(block), self.n_components), scores_dtype(block.dtype))
        for part in self._parts(block):
            scores[part.rows] = self._means(part)
        return scores

    def score_samples(self, block: Array) -> Floats:
        """Return the log-likelihood of the observed entries of each row; 0 if there are none."""
        self._check_density()
        result = np.empty(len(block))
        for part in self._parts(block):
            if part.seen is None:
                posterior, means, determinant = self._complete, self._complete.means(part.x), self._complete.log_determinant
                result[part.rows] = posterior.log_likelihoods(part.x, None, means, determinant)
            else:
                packed, determinants = self._partial.moments(part.x, part.seen)
                means = packed[packed_size(self.n_components) : -1].T
                result[part.rows] = self._partial.log_likelihoods(part.x, part.seen, means, determinants)
        return result

    @overload
    def impute(self, block: Array, return_variance: Literal[False] = False) -> Array: ...

    @overload
    def impute(self, block: Array, return_variance: Literal[True]) -> tuple[Array, Floats]: ...

    def impute(self, block: Array, return_variance: bool = False) -> Array | tuple[Array, Floats]:
        """Return the rows with each missing entry replaced by its mean given the observed ones, which are left as they are.

        With ``return_variance`` also the variance of each missing entry, given the same (n x d; 0 where an entry is observed).
        """
        r = self.n_components
        filled, variances = block.copy(), np.zeros(block.shape if return_variance else (0, 0))
        for part in self._parts(block):
            if part.seen is None:
                continue
            packed, _ = self._partial.moments(part.x, part.seen)
            guess = (packed[packed_size(r) : -1].T @ self.W.T + self.mean).astype(block.dtype)
            filled[part.rows] = np.where(part.seen == 1, block[part.rows], guess)
            if return_variance:
                variance = packed[: packed_size(r)].T @ self._weighted_pairs.T + self.noise_variances
                variances[part.rows] = variance * (1 - part.seen)
        return (filled, variances) if return_variance else filled

    # ------------------------------------------------------------------------------------------------ z to rows

    def inverse_transform(self, scores: Array) -> Array:
        """Return the mean of x given z, ``W z + mean``: float32 for float32 scores, else float64."""
        return self._rows(scores, self.W)

    def reconstruct(self, scores: Array) -> Array:
        """Return the best linear reconstruction of rows from their ``transform``, ``W (W^T W)^-1 M z + mean``.

        With factor analysis, distances are weighted by the inverse noise. Unlike ``inverse_transform`` it undoes the shrinkage of
        the posterior mean: with probabilistic PCA it is the orthogonal projection of the rows.
        """
        gram = self._complete.W.T @ self._complete.scaled
        back = np.linalg.pinv(gram, hermitian=True) @ (gram + np.eye(self.n_components))
        return self._rows(scores, self.W @ back)

    def sample(self, n: int, seed: int | np.random.Generator | None = None) -> Floats:
        """Return random rows of the model."""
        random = np.random.default_rng(seed)
        rows: Floats = random.standard_normal((n, self.n_components)) @ self.W.T
        rows += random.standard_normal((n, self.n_features)) * np.sqrt(self.noise_variances)
        rows += self.mean
        return rows

    # --------------------------------------------------------------------------------------------- d x d, on demand

    def covariance(self) -> Floats:
        """Return the d x d covariance of the model, ``W W^T`` plus the noise."""
        covariance = self.W @ self.W.T
        covariance.flat[:: self.n_features + 1] += self.noise_variances
        return covariance

    def precision(self) -> Floats:
        """Return the inverse of ``covariance()``."""
        self._check_density()
        roots = np.sqrt(self._complete.noise)
        U, s, _ = np.linalg.svd(self.W / roots[:, None], full_matrices=False)
        if self.n_components == self.n_features:
            precision = (U / (1 + s * s)) @ U.T
        else:
            precision = -(U * (s * s / (1 + s * s))) @ U.T
            precision.flat[:: self.n_features + 1] += 1.0
        precision /= roots
        precision /= roots[:, None]
        result: Floats = (precision + precision.T) / 2
        return result

    # ------------------------------------------------------------------------------------------------------ storage

    def to_arrays(self) -> dict[str, Array]:
        """Return everything as named arrays."""
        return {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the model that ``to_arrays`` described, after checking that its parts fit together."""
        wanted = {each.name for each in fields(cls)}
        if arrays.keys() != wanted or arrays["W"].ndim != 2:
            raise CorruptDataError(f"a model has the arrays {', '.join(sorted(wanted))}, but these are stored: {', '.join(sorted(arrays))}")
        d, r = arrays["W"].shape
        shapes: dict[str, set[tuple[int, ...]]] = {
            "W": {(d, r)},
            "mean": {(d,)},
            "noise": {(), (d,)},
            "loglike": {(arrays["loglike"].size,)},
        }
        for name, array in arrays.items():
            fits = array.shape in shapes.get(name, {()}) and array.dtype.kind in "biuf"
            # A covariance without noise is singular; its log-likelihood is infinite. The mean of a column without values is NaN.
            finite = fits and (name == "mean" or not np.isnan(array).any()) and (name == "loglike" or not np.isinf(array).any())
            if not finite or (name == "noise" and (array < 0).any()):
                raise CorruptDataError(f"array {name!r} of the model has shape {array.shape} or entries that do not fit the others")
        plain: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in arrays.items()}
        return cls(**plain)

    # ------------------------------------------------------------------------------------------------------- inside

    def _parts(self, block: Array) -> Iterator[Part]:
        return parts(block, self.mean, strip_rows(self.n_features, self.n_components))

    def _means(self, part: Part) -> Floats:
        """Return the posterior means of some rows (n x r)."""
        if part.seen is None:
            return self._complete.means(part.x)
        packed, _ = self._partial.moments(part.x, part.seen)
        means: Floats = packed[packed_size(self.n_components) : -1].T
        return means

    def _rows(self, scores: Array, basis: Floats) -> Array:
        dtype = scores_dtype(scores.dtype)
        rows: Array = (scores.astype(dtype, copy=False) @ basis.T.astype(dtype, copy=False) + self.mean).astype(dtype, copy=False)
        return rows

    @cached_property
    def _weighted_pairs(self) -> Floats:
        """What the lower triangle of a covariance of z is multiplied by to give the variances of W z (d x r(r+1)/2)."""
        i, j = np.tril_indices(self.n_components)
        pairs: Floats = self.W[:, i] * self.W[:, j] * np.where(i == j, 1.0, 2.0)
        return pairs

    @cached_property
    def _complete(self) -> Posterior:
        return Posterior(self.W, self._at_least(_LEAST_NOISE))

    @cached_property
    def _partial(self) -> Posterior:
        return Posterior(self.W, self._at_least(_LEAST_NOISE_PARTIAL))

    def _at_least(self, share: float) -> Floats:
        """Return the noise variances, each at least a share of its feature's variance (or of the mean variance, if it is isotropic)."""
        variances = np.einsum("ij,ij->i", self.W, self.W) + self.noise_variances
        mean = variances.mean() if variances.any() else 1.0
        limits = mean if self.isotropic else np.where(variances > 0, variances, mean)
        return np.maximum(self.noise_variances, share * limits)

    def _check_density(self) -> None:
        full = self.n_components == self.n_features and np.linalg.matrix_rank(self.W) == self.n_features
        if not (self.noise_variances > 0).all() and not full:
            raise UsageError(
                "the model's covariance is singular (some direction has no noise), so it has no density and no inverse: "
                f"fit fewer than {self.n_components} components"
            )

    def _total(self, loglike: float | None) -> float:
        if loglike is not None:
            return loglike
        if not len(self.loglike):
            raise UsageError("the model does not hold the log-likelihood of its fit: pass loglike=...")
        return float(self.loglike[-1])
