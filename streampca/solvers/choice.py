"""How many components: a number as it is, a fraction of the variance, or a criterion that reads the spectrum of the pass already made."""

from __future__ import annotations

import warnings

import numpy as np

from streampca.models.pca import Floats, PCAModel
from streampca.planning.criteria import WHITE
from streampca.selection import Selection, select_components
from streampca.selection import Spectrum as KnownSpectrum

Wanted = int | float | str | None


def known_spectrum(variances: Floats, rows: int, weight: float, n_features: int, trace: float) -> KnownSpectrum:
    """Return variances, all or the leading ones, as the criteria see them; ``weight`` is the number of rows, or the sum of their weights.

    >>> known_spectrum(np.array([3.0, 1.0, 0.0]), 3, 3.0, 3, 4.0).complete
    True
    """
    # A whole sum of weights below the number of rows is no count of rows: it must not limit the rank.
    counts_rows = weight >= rows or not float(weight).is_integer()
    n_samples = float(weight) if counts_rows else float(np.nextafter(weight, np.inf))
    limit = min(max(rows, int(weight)) - 1, n_features)
    leading = variances[: max(limit, 1)]
    # Of a complete spectrum the sum is the trace up to rounding, and so is one that exceeds it.
    total = float(leading.sum()) if len(leading) >= limit else max(trace, float(leading.sum()))
    return KnownSpectrum(leading, n_samples, n_features, total)


def choose(known: KnownSpectrum, wanted: float | str) -> Selection:
    """Return the choice of a fraction or a criterion.

    The noise is estimated from the median of a complete spectrum; of a truncated one, which has none, from the exact sum of its tail.
    """
    if wanted in WHITE and not known.complete:
        return select_components(known, wanted, noise="tail")
    return select_components(known, wanted)


def count_components(known: KnownSpectrum, wanted: Wanted, limit: int) -> int:
    """Return the number of components, at least one: as asked for, all, or by a fraction or a criterion."""
    if wanted is None:
        return limit
    return wanted if isinstance(wanted, int) else at_least_one(choose(known, wanted))


def at_least_one(selection: Selection) -> int:
    """Return the number chosen; where nothing stands out, one, and a warning."""
    if selection.k == 0 and selection.criterion != "fraction":
        warnings.warn(
            f"n_components={selection.criterion!r} keeps no component, so one is kept: {selection.reason}", UserWarning, stacklevel=2
        )
    return max(selection.k, 1)


def selection_of(model: PCAModel, wanted: Wanted) -> Selection | None:
    """Return the choice that a fraction or a criterion made for a fitted model; None for a number."""
    if wanted is None or isinstance(wanted, int) or model.spectrum is None:
        return None
    weight = float(model.n_samples) if model.weight is None else model.weight
    known = known_spectrum(model.spectrum, model.n_samples, weight, model.n_features, model.total_variance)
    if model.held_out is not None:
        return select_components(known, wanted, held_out=dict(enumerate(model.held_out)))
    return choose(known, wanted)
