"""The table of criteria, and the one function that applies them: how many components, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import UsageError, did_you_mean
from streampca.selection import information, thresholds
from streampca.selection.elbow import elbow
from streampca.selection.held_out import held_out as by_held_out
from streampca.selection.minka import mle
from streampca.selection.noise import NoiseFrom
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Spectrum, as_spectrum

_NOISE = frozenset({"noise_variance", "noise"})


@dataclass(frozen=True)
class Criterion:
    """How to choose, and which options it takes."""

    choose: Callable[[Spectrum, Options], Selection]
    takes: frozenset[str] = frozenset()


CRITERIA: dict[str, Criterion] = {
    "fraction": Criterion(thresholds.fraction, frozenset({"threshold"})),
    "threshold": Criterion(thresholds.threshold, frozenset({"threshold"})),
    "soft": Criterion(thresholds.soft, frozenset({"threshold"})),
    "rank-penalty": Criterion(thresholds.rank_penalty, frozenset({"threshold"})),
    "gavish-donoho": Criterion(thresholds.gavish_donoho, _NOISE),
    "parallel": Criterion(thresholds.parallel, _NOISE | {"confidence"}),
    "elbow": Criterion(elbow),
    "mle": Criterion(mle),
    "bic": Criterion(information.bic, frozenset({"noise_variance"})),
    "aic": Criterion(information.aic, frozenset({"noise_variance"})),
    "gaic": Criterion(information.gaic, _NOISE),
    "residual-bic": Criterion(information.residual_bic, _NOISE),
    "residual-aic": Criterion(information.residual_aic, _NOISE),
    "held-out": Criterion(by_held_out, frozenset({"held_out"})),
}


def select_components(
    spectrum_or_model: Any,
    criterion: str | float = "bic",
    *,
    n_samples: float | None = None,
    n_features: int | None = None,
    total_variance: float | None = None,
    threshold: float | None = None,
    noise_variance: float | None = None,
    noise: NoiseFrom | None = None,
    confidence: float | None = None,
    held_out: Mapping[int, float] | Sequence[float] | None = None,
) -> Selection:
    """Choose the number of components from the spectrum alone.

    Parameters
    ----------
    spectrum_or_model : Spectrum, fitted PCA, or array-like
        The variances of the components (divisor n - 1), largest first: all, or the leading ones with the exact total.
    criterion : str or float
        A fraction of the variance in (0, 1), or one of

        - ``"bic"``, ``"aic"``: likelihood of probabilistic PCA against its parameters; ``"mle"``: Minka's evidence (n >= d);
        - ``"gaic"``: J(r) + 2 (D r - r^2 + N r) s2; ``"residual-bic"``, ``"residual-aic"``: J(r) + ln(N) or 2 times (D r - r^2) s2;
        - ``"gavish-donoho"``: above the optimal hard threshold; ``"parallel"``: above what noise alone would show;
        - ``"elbow"``: the most stable minimiser of a L_{r+1}^2 + b r;
        - ``"fraction"``, ``"threshold"`` (L_i > threshold), ``"soft"`` (the same, of shrunk values), ``"rank-penalty"``
          (L_i^2 > threshold): by ``threshold``;
        - ``"held-out"``: the best of ``held_out``.
    n_samples, n_features, total_variance : optional
        What an array, or a model, does not say.
    threshold : float, optional
        The level of the criteria that need one. L_i are singular values of the centred data, sqrt((n - 1) variance).
    noise_variance : float, optional
        Variance of the noise in each entry, if it is known.
    noise : {"median", "tail"}, optional
        How it is estimated, if not: from the median singular value (half of the spectrum is needed), or from the exact sum of the tail
        (sound if all signal is in the components known).
    confidence : float, optional
        Of ``"parallel"``: the probability that pure noise shows no component, 0.99 by default.
    held_out : mapping or sequence, optional
        Held-out log-likelihoods by number of components, or for 1, 2, 3, ...

    Returns
    -------
    Selection
        The number ``k``, the curve it was read from, the reason, and whether a truncated spectrum makes it a lower bound.

    Examples
    --------
    >>> chosen = select_components([9.0, 7.0, 1.1, 1.0, 0.9], "bic", n_samples=100)
    >>> chosen.k
    2
    >>> select_components([9.0, 7.0, 1.1, 1.0, 0.9], 0.8, n_samples=100).reason
    '2 components explain 0.842105 of the variance, more than 0.8'
    """
    if isinstance(criterion, (float, np.floating)):
        if threshold is not None:
            raise UsageError(f"criterion={criterion} is the fraction itself: leave out threshold={threshold}")
        criterion, threshold = "fraction", float(criterion)
    criterion = str(criterion)
    if criterion not in CRITERIA:
        known = ", ".join(CRITERIA)
        raise UsageError(f"criterion={criterion!r}: must be a fraction in (0, 1) or one of {known}.{did_you_mean(criterion, CRITERIA)}")
    spectrum = as_spectrum(spectrum_or_model, n_samples=n_samples, n_features=n_features, total_variance=total_variance)
    given = {
        "threshold": threshold,
        "noise_variance": noise_variance,
        "noise": noise,
        "confidence": confidence,
        "held_out": held_out,
    }
    options = _options(criterion, {name: value for name, value in given.items() if value is not None})
    if criterion != "held-out" and spectrum.negligible == 0:
        return Selection(0, criterion, np.zeros(1), np.arange(1), "the data has no variance: all rows are equal")
    return CRITERIA[criterion].choose(spectrum, options)


def _options(criterion: str, given: dict[str, Any]) -> Options:
    takes = CRITERIA[criterion].takes
    for name in given:
        if name not in takes:
            known = f"it takes {' and '.join(sorted(takes))}" if takes else "it takes none"
            raise UsageError(f"criterion {criterion!r} has no use for {name}: leave it out ({known})")
    if "threshold" in takes and "threshold" not in given:
        raise UsageError(f"criterion {criterion!r} needs threshold, a number")
    return Options(**given)
