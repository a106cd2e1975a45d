"""What each criterion says of the number of components, from the spectrum of the fit alone; or why it can say nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streampca.errors import UsageError
from streampca.models.ica import ICAModel
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.selection import Spectrum, as_spectrum
from streampca.solvers.choice import choose, known_spectrum

WANTED: dict[str, str | float] = {
    "90% of the variance": 0.9,
    "95% of the variance": 0.95,
    "99% of the variance": 0.99,
    "elbow": "elbow",
    "Minka's evidence (mle)": "mle",
    "BIC": "bic",
    "AIC": "aic",
    "G-AIC": "gaic",
    "Gavish-Donoho threshold": "gavish-donoho",
    "parallel analysis": "parallel",
}


@dataclass(frozen=True)
class Verdict:
    """What one criterion says."""

    name: str
    k: int | None  # None: it cannot tell
    bound: bool  # whether more may be needed
    reason: str

    @property
    def number(self) -> str:
        """The number as text."""
        return "–" if self.k is None else f"≥ {self.k}" if self.bound else str(self.k)


def verdicts(estimator: Any) -> list[Verdict]:
    """Return what each criterion says of a fitted PCA; nothing for other models.

    >>> import numpy as np, streampca as sp
    >>> model = sp.PCA(2).fit(np.random.default_rng(0).normal(size=(100, 4)) * [9, 7, 1, 1])
    >>> [each.number for each in verdicts(model) if each.name == "BIC"]
    ['2']
    """
    known = _spectrum(estimator)
    return [] if known is None else [_verdict(name, wanted, known) for name, wanted in WANTED.items()]


def _spectrum(estimator: Any) -> Spectrum | None:
    model = getattr(estimator, "_model", None)
    try:
        if isinstance(model, PCAModel):
            variances = model.explained_variance if model.spectrum is None else model.spectrum
            weight = float(model.n_samples) if model.weight is None else model.weight
            return known_spectrum(variances, model.n_samples, weight, model.n_features, model.total_variance)
        if isinstance(model, (KernelModel, ICAModel)):  # their criteria would be those of another covariance
            return None
        return as_spectrum(estimator) if hasattr(estimator, "explained_variance_ratio_") else None
    except UsageError:
        return None


def _verdict(name: str, wanted: str | float, known: Spectrum) -> Verdict:
    try:
        found = choose(known, wanted)
    except UsageError as error:
        return Verdict(name, None, False, str(error))
    return Verdict(name, found.k, found.bound, found.reason)
