"""The spectrum of a covariance as the criteria see it: the leading variances, the shape of the data, the exact trace.

A truncated spectrum knows the sum of the variances that were not kept, not its parts; everything here keeps to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ROUNDING = 1e-6  # what sums and variances from different sources may differ by, relative to the total


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Variances of the components (divisor n - 1), largest first, all of them or the leading ones.

    Variances that must be zero are filled in or dropped, so that a complete spectrum has ``limit`` entries.

    Parameters
    ----------
    variances : ndarray
        Eigenvalues of the covariance with divisor n - 1, largest first.
    n_samples : float
        Number of rows n, more than one; with weights, their sum.
    n_features : int
        Number of columns d.
    total_variance : float
        Trace of the covariance: the sum of all d eigenvalues.

    Examples
    --------
    >>> spectrum = Spectrum(np.array([4.0, 2.0]), n_samples=11, n_features=4, total_variance=7.0)
    >>> spectrum.complete, spectrum.residuals.tolist()
    (False, [70.0, 30.0, 10.0])
    """

    variances: Floats
    n_samples: float
    n_features: int
    total_variance: float

    def __post_init__(self) -> None:
        variances = np.array(self.variances, np.float64)
        self._check(variances)
        variances = np.sort(np.maximum(variances, 0.0))[::-1]
        beyond = float(variances[self.limit :].sum())
        if beyond > _ROUNDING * self.total_variance:
            raise UsageError(
                f"{self.n_samples:g} rows of {self.n_features} features have at most {self.limit} components with variance, "
                f"but those after it have {beyond:.3g} of {self.total_variance:.3g}: check n_samples and n_features"
            )
        variances = variances[: self.limit]
        if self.total_variance - variances.sum() <= max(self.n_features, 16) * np.finfo(np.float64).eps * self.total_variance:
            variances = np.pad(variances, (0, self.limit - variances.size))  # nothing is left for the others
        variances.flags.writeable = False
        object.__setattr__(self, "variances", variances)
        rest = self.total_variance - float(variances.sum())
        if rest < -_ROUNDING * self.total_variance or (self.complete and rest > _ROUNDING * self.total_variance):
            raise UsageError(
                f"the {variances.size} variances add up to {variances.sum():.6g}, but total_variance is {self.total_variance:.6g}: "
                "both must have the divisor n - 1 and come from the same rows"
            )

    def _check(self, variances: Floats) -> None:
        if not self.n_samples > 1 or not np.isfinite(self.n_samples):
            raise UsageError(f"n_samples={self.n_samples}: a variance needs at least 2 rows")
        if variances.ndim != 1 or not 1 <= variances.size <= self.n_features:
            raise UsageError(
                f"the variances have shape {variances.shape}, but {self.n_features} features have 1 to {self.n_features} of them: "
                "give a vector, and n_features"
            )
        if not np.isfinite(variances).all() or not np.isfinite(self.total_variance):
            raise UsageError("the variances and total_variance must be finite numbers")
        slack = _ROUNDING * np.abs(variances).max()
        if variances.min() < -slack or (np.diff(variances) > slack).any():
            raise UsageError("the variances must be at least 0 and sorted, largest first: they are the eigenvalues of a covariance")

    @property
    def rows(self) -> float:
        """Rows of white noise that the centred noise of n rows is equivalent to, n - 1: the mean takes one."""
        return self.n_samples - 1

    @property
    def limit(self) -> int:
        """The most components that can have variance: n - 1 or d; a sum of fractional weights does not tell the rows."""
        counted = float(self.n_samples).is_integer()
        return min(int(self.rows), self.n_features) if counted else self.n_features

    @property
    def known(self) -> int:
        """Number of variances that are known."""
        return int(self.variances.size)

    @property
    def complete(self) -> bool:
        """Whether all variances are known."""
        return self.known == self.limit

    @property
    def negligible(self) -> float:
        """What a variance of zero may be computed as."""
        return float(max(self.n_samples, self.n_features) * np.finfo(np.float64).eps * self.variances[0])

    @property
    def rank(self) -> int:
        """Number of known variances that are more than rounding."""
        return int((self.variances > self.negligible).sum())

    @cached_property
    def singular_values(self) -> Floats:
        """Singular values L_i of the centred data, as far as known."""
        return np.sqrt(self.variances * self.rows)

    @cached_property
    def residuals(self) -> Floats:
        """J(r) = sum of L_i^2 over i > r, for r = 0 ... known; exact for a truncated spectrum too, through the trace."""
        tail = 0.0 if self.complete else max(self.total_variance - float(self.variances.sum()), 0.0)
        parts = np.append(self.variances, tail)  # the small ones are added first
        return parts[::-1].cumsum()[::-1] * self.rows

    def next_values(self) -> tuple[Integers, Floats]:
        """Return the candidates r and the singular value L_{r+1} that comes next after each (0 after the last)."""
        values = np.append(self.singular_values, 0.0) if self.complete else self.singular_values
        return np.arange(values.size), values

    def count_above(self, cut: float) -> tuple[int, bool]:
        """Return how many L_i^2 exceed ``cut``, and whether there may be more among those that are not known.

        Each unknown one is at most their sum, which is known.
        """
        floor = max(cut, self.negligible * self.rows)
        k = int((self.variances * self.rows > floor).sum())
        return k, k == self.known and not self.complete and bool(self.residuals[-1] > floor)


def as_spectrum(
    source: Any, *, n_samples: float | None = None, n_features: int | None = None, total_variance: float | None = None
) -> Spectrum:
    """Return the spectrum of a fitted model, or of an array of variances.

    Parameters
    ----------
    source : Spectrum, fitted PCA, or array-like
        A model has ``explained_variance_`` (or ``explained_variance``) and the like; an array holds variances, largest first.
    n_samples, n_features, total_variance : optional
        What ``source`` does not say. By default an array is the whole spectrum: as many features as variances, their sum the total.

    Examples
    --------
    >>> as_spectrum([3.0, 1.0], n_samples=10).total_variance
    4.0
    """
    if isinstance(source, Spectrum):
        given = {"n_samples": n_samples, "n_features": n_features, "total_variance": total_variance}
        extra = [name for name, value in given.items() if value is not None]
        if extra:
            raise UsageError(f"a Spectrum has its own {' and '.join(extra)}: leave out the argument")
        return source
    variances = _attribute(source, "explained_variance_", "explained_variance")
    if variances is None:
        variances = _vector(source)
    else:
        n_samples = _attribute(source, "n_samples_", "n_samples") if n_samples is None else n_samples
        n_features = _attribute(source, "n_features_in_", "n_features") if n_features is None else n_features
        total_variance = _total_of_model(source) if total_variance is None else total_variance
    if n_samples is None:
        raise UsageError("n_samples is missing: the number of rows that the variances come from")
    d = len(variances) if n_features is None else int(n_features)
    if total_variance is None:
        if len(variances) < min(n_samples - 1, d):
            raise UsageError(
                f"only {len(variances)} of {d} variances are given, so total_variance is needed: "
                "the trace of the covariance (divisor n - 1)"
            )
        total_variance = float(np.sum(variances))
    return Spectrum(np.asarray(variances, np.float64), float(n_samples), d, float(total_variance))


def _vector(source: Any) -> Floats:
    try:
        variances = np.asarray(source, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a spectrum, a fitted PCA or an array of variances is wanted, not {type(source).__name__}") from error
    if variances.ndim != 1 or not variances.size:
        raise UsageError(f"the variances have shape {variances.shape}, but must be a vector, largest first")
    return variances


def _total_of_model(model: Any) -> float | None:
    """Return the total variance that a model states, or that its ratios imply."""
    total = _attribute(model, "total_variance", "total_variance_")
    ratios = _attribute(model, "explained_variance_ratio_")
    if total is not None or ratios is None or not np.sum(ratios) > 0:
        return None if total is None else float(total)
    return float(np.sum(_attribute(model, "explained_variance_")) / np.sum(ratios))


def _attribute(source: Any, *names: str) -> Any:
    return next((getattr(source, name) for name in names if hasattr(source, name)), None)
