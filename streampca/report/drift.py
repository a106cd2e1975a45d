"""How far a model has moved from an older one of the same features: the angle of the subspaces, each variance, and the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.linalg import subspace_angles

from streampca.errors import UsageError
from streampca.plotting.fitted import Fitted, Floats, as_fitted

_MOST_MOVED = 10  # features
_MOST_COMPONENTS = 12


@dataclass(frozen=True, eq=False)
class Drift:
    """What has changed from one model to another.

    Attributes
    ----------
    angle : float
        The largest angle between the subspaces of the components, in degrees.
    before, now : ndarray
        Variances of the components, as many as both have.
    moved : ndarray of shape (n_features,)
        What the mean has moved by, in standard deviations of the older model.
    names : list of str
        Names of the features.
    rows : tuple of float
        Rows of the older model and of this one.
    """

    angle: float
    before: Floats
    now: Floats
    moved: Floats
    names: list[str]
    rows: tuple[float, float]

    @property
    def changes(self) -> Floats:
        """The change of each variance, as a part of what it was."""
        known = self.before > 0
        return np.where(known, self.now / np.where(known, self.before, 1.0) - 1, np.where(self.now > 0, np.inf, 0.0))

    def variances(self) -> list[dict[str, float]]:
        """Return the variances of the first components, before and now, as rows of a table."""
        rows = zip(self.before, self.now, self.changes, strict=True)
        found = [{"component": i + 1, "before": float(a), "now": float(b), "change": float(c)} for i, (a, b, c) in enumerate(rows)]
        return found[:_MOST_COMPONENTS]

    def features(self) -> list[dict[str, Any]]:
        """Return the features whose mean has moved most, as rows of a table."""
        order = np.argsort(-np.abs(self.moved), kind="stable")[:_MOST_MOVED]
        return [{"feature": self.names[i], "moved": float(self.moved[i])} for i in order]

    def to_plain(self) -> dict[str, Any]:
        """Return what a manifest can hold: all but the features that have moved little."""
        most = {row["feature"]: row["moved"] if np.isfinite(row["moved"]) else None for row in self.features()}  # JSON has no infinity
        return {"angle": self.angle, "before": self.before.tolist(), "now": self.now.tolist(), "moved": most, "rows": list(self.rows)}

    @classmethod
    def from_plain(cls, content: Any) -> Self | None:
        """Return what ``to_plain`` described, or None if it was something else."""
        try:
            moved = {str(name): np.inf if value is None else float(value) for name, value in content["moved"].items()}
            before, now = (np.array(content[name], np.float64) for name in ("before", "now"))
            first, last = content["rows"]
            found = cls(float(content["angle"]), before, now, np.array(list(moved.values())), list(moved), (float(first), float(last)))
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return found if before.shape == now.shape and before.ndim == 1 and before.size and moved else None


def drift_between(old: Any, new: Any) -> Drift:
    """Return what has changed from one fitted model to another.

    >>> import numpy as np, streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(500, 3)) * [5, 2, 1]
    >>> found = drift_between(sp.PCA(1).fit(X), sp.PCA(1).fit(X[:, [1, 0, 2]] + [0, 5, 0]))
    >>> found.angle > 85, found.features()[0]["feature"]
    (True, 'x1')
    """
    before, now = as_fitted(old), as_fitted(new)
    _check(before, now)
    both = min(before.k, now.k)
    rows = float(getattr(old, "n_samples_", 0)), float(getattr(new, "n_samples_", 0))
    angles = np.degrees(subspace_angles(before.components.T, now.components.T))
    moved = _moved(np.asarray(new.mean_) - np.asarray(old.mean_), _deviations(old, before))
    return Drift(float(angles.max(initial=0.0)), before.variances[:both], now.variances[:both], moved, now.names, rows)


def _check(before: Fitted, now: Fitted) -> None:
    for fit in (before, now):
        if not fit.table:
            raise UsageError(f"{fit.kind} has no components in the features, and so no drift of them can be told: leave 'since' out")
    if before.n_features != now.n_features:
        raise UsageError(f"the older model has {before.n_features:,} features, this one {now.n_features:,}: drift is told of the same ones")
    different = [(a, b) for a, b in zip(before.names, now.names, strict=True) if a != b]
    if before.named and now.named and different:
        theirs, ours = different[0]
        raise UsageError(f"the older model has {theirs!r} where this one has {ours!r}: drift is told of the same features")


def _moved(distance: Floats, deviations: Floats) -> Floats:
    """Return distances in standard deviations; infinite where something constant has moved."""
    known = deviations > 0
    return np.where(known, distance / np.where(known, deviations, 1.0), np.where(distance == 0, 0.0, np.copysign(np.inf, distance)))


def _deviations(estimator: Any, fit: Fitted) -> Floats:
    """Return the standard deviation of each feature: from the sums of the fit if it has kept them, else as the model has it."""
    state: Any = getattr(estimator, "_state", None)
    scatter = getattr(state, "scatter", None)
    found: Floats
    if scatter is not None:
        found = np.sqrt(np.maximum(np.diagonal(scatter), 0.0) / max(float(state.count) - 1, 1.0))
        return found
    if fit.table == "mixing matrix":
        found = np.sqrt(np.square(fit.components).sum(axis=0))
        return found
    noise = getattr(estimator, "noise_variance_", 0.0)
    excess = np.maximum(fit.variances - np.mean(noise), 0.0)
    scale = getattr(getattr(estimator, "_model", None), "scale", 1.0)
    found = np.sqrt(np.square(fit.components).T @ excess + noise) * scale
    return found
