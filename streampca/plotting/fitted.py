"""A fitted estimator as pictures and reports see it: plain arrays and names, whatever the class. NumPy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import UsageError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MOST_SHOWN = 500  # components
_SHORTEST_ARROW = 0.08  # of the longest


@dataclass(frozen=True, eq=False)
class Fitted:
    """What there is to draw of a fit.

    Attributes
    ----------
    kind : str
        The name of the class.
    components : ndarray of shape (k, n_features)
        Directions of unit length, or the columns of a mixing matrix; of shape (k, 0) where there are none in the features.
    variances : ndarray of shape (k,)
        Variance along each.
    spectrum : ndarray
        All variances that are known, those of the components first.
    total : float
        Variance of all features together.
    names : list of str
        Names of the features; ``x0``, ``x1``, ... where they have none.
    named : bool
        Whether they have names of their own.
    loglike : ndarray
        Log-likelihood after each pass; empty where there is none.
    table : str
        What the components are called: ``"loadings"``, ``"mixing matrix"``, or nothing where there are none in the features.
    """

    kind: str
    components: Floats
    variances: Floats
    spectrum: Floats
    total: float
    names: list[str]
    named: bool
    loglike: Floats
    table: str = "loadings"

    @property
    def k(self) -> int:
        """Number of components."""
        return len(self.variances)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.names)

    @property
    def ratios(self) -> Floats:
        """Part of the variance of each component of the spectrum."""
        return self.spectrum / self.total if self.total > 0 else np.zeros_like(self.spectrum)

    def shown(self, most: int = 60) -> int:
        """Return how many components of the spectrum to draw: those kept, and some more to see what was left out."""
        return int(min(len(self.spectrum), max(2 * self.k, self.k + 10), max(most, min(self.k, _MOST_SHOWN))))

    def leading_features(self, n_components: int, n_features: int) -> Integers:
        """Return the features with the largest loadings on the first components, in their order in the data."""
        sizes = np.abs(self.components[:n_components]).max(axis=0)
        return np.sort(np.argsort(-sizes, kind="stable")[:n_features])

    def longest_arrows(self, most: int) -> Integers:
        """Return the features with the longest arrows in the plane of the first two components, the longest first; no mere stubs."""
        lengths = np.linalg.norm(self.components[:2], axis=0)
        order: Integers = np.argsort(-lengths, kind="stable")[:most]
        longer: Integers = order[lengths[order] >= _SHORTEST_ARROW * lengths.max(initial=0.0)]
        return longer


def as_fitted(model: Any) -> Fitted:
    """Return what there is to draw of a fitted estimator: of streampca, or one like scikit-learn's PCA.

    Parameters
    ----------
    model : estimator
        With ``components_`` and ``explained_variance_``, with ``W_`` and ``noise_variance_``, with ``mixing_``, or with ``eigenvalues_``.

    Examples
    --------
    >>> from sklearn.decomposition import PCA
    >>> as_fitted(PCA(1).fit([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])).names
    ['x0', 'x1']
    """
    components, variances = _directions(model)
    inner = getattr(model, "_model", None)
    spectrum = getattr(inner, "spectrum", None)
    spectrum = variances if spectrum is None else np.asarray(spectrum, np.float64)
    names = getattr(model, "feature_names_in_", None)
    return Fitted(
        kind=type(model).__name__,
        components=components,
        variances=variances,
        spectrum=spectrum,
        total=_total(model, inner, variances),
        names=[f"x{index}" for index in range(_width(model, components))] if names is None else [str(name) for name in names],
        named=names is not None,
        loglike=np.atleast_1d(np.asarray(getattr(model, "loglike_", ()), np.float64)),
        table="mixing matrix" if hasattr(model, "mixing_") else "loadings" if components.size else "",
    )


def _width(model: Any, components: Floats) -> int:
    return int(components.shape[1] or getattr(model, "n_features_in_", 0))


def _directions(model: Any) -> tuple[Floats, Floats]:
    """Return directions of unit length (or what sources are mixed by) and the variances along them."""
    if hasattr(model, "components_") and hasattr(model, "explained_variance_"):
        return np.asarray(model.components_, np.float64), np.asarray(model.explained_variance_, np.float64)
    if hasattr(model, "W_"):
        W = np.asarray(model.W_, np.float64)
        lengths = np.linalg.norm(W, axis=0)
        noise = float(np.mean(getattr(model, "noise_variance_", 0.0)))
        return (W / np.where(lengths > 0, lengths, 1.0)).T, lengths**2 + noise
    if hasattr(model, "mixing_"):
        mixing = np.asarray(model.mixing_, np.float64).T
        return mixing, np.square(mixing).sum(axis=1)
    if hasattr(model, "eigenvalues_"):
        eigenvalues = np.asarray(model.eigenvalues_, np.float64)
        weight = getattr(getattr(model, "_model", None), "weight", 2.0)
        return np.empty((len(eigenvalues), 0)), eigenvalues / max(weight - 1, 1.0)
    raise UsageError(f"{type(model).__name__} has no components to draw: fit it first, or load a fitted model with streampca.load")


def _total(model: Any, inner: Any, variances: Floats) -> float:
    stated = getattr(inner, "total_variance", None)
    if stated is not None:
        return float(stated)
    ratios = np.asarray(getattr(model, "explained_variance_ratio_", ()), np.float64)
    if ratios.size and ratios.sum() > 0:
        return float(variances[: ratios.size].sum() / ratios.sum())
    noise = np.sum(np.broadcast_to(getattr(model, "noise_variance_", 0.0), np.shape(getattr(model, "mean_", ()))))
    W = getattr(model, "W_", None)
    return float(variances.sum() if W is None else np.square(W).sum() + noise)
