"""The number of components that predicts rows best that were not used to fit: the curve is measured elsewhere and given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streampca.errors import UsageError
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Spectrum


def held_out(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the number of components with the largest held-out log-likelihood; of equal ones, the least.

    The curve is a mapping from the number of components to the log-likelihood, or a sequence for 1, 2, 3, ... components.
    The best at the end of the curve is a bound.
    """
    curve = options.held_out
    if curve is None or len(curve) == 0:
        raise UsageError("criterion 'held-out' needs held_out: the log-likelihood of held-out rows for each number of components")
    pairs = curve if isinstance(curve, Mapping) else dict(enumerate(curve, start=1))
    candidates = np.array(sorted(pairs), np.int64)
    values = np.array([pairs[r] for r in candidates], np.float64)
    if np.isnan(values).any() or np.isposinf(values).any() or np.isneginf(values).all():
        raise UsageError("held_out has NaN or infinite log-likelihoods: leave out the numbers of components that have no density")
    if candidates[0] < 0 or candidates[-1] > spectrum.n_features:
        raise UsageError(f"held_out has {candidates[0]} to {candidates[-1]} components, but the data has 0 to {spectrum.n_features}")
    k = int(candidates[np.argmax(values)])
    bound = k == candidates[-1] and k < spectrum.limit
    reason = f"the held-out log-likelihood is largest, {values.max():.6g}, with {k} of at most {candidates[-1]} components"
    return Selection(k, "held-out", values, candidates, reason + ("; more may be better still" if bound else ""), bound)
