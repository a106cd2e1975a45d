"""Minka's choice: the number of components with the largest evidence, by Laplace's approximation.

T. Minka, Automatic Choice of Dimensionality for PCA, 2000. The same number as scikit-learn's ``PCA(n_components="mle")``.
"""

from __future__ import annotations

from math import log, pi

import numpy as np
from scipy.special import gammaln

from streampca.errors import UsageError
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Floats, Spectrum


def mle(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the number of components, 1 to d - 1, of the largest evidence. Needs the whole spectrum and n >= d."""
    d = spectrum.n_features
    if spectrum.n_samples < d:
        raise UsageError(
            f"criterion 'mle' needs as many samples as features, but there are {spectrum.n_samples:g} and {d}: "
            "use 'bic' or 'gavish-donoho', which take any shape"
        )
    if not spectrum.complete:
        raise UsageError(
            f"criterion 'mle' needs all {spectrum.limit} variances, but only {spectrum.known} are known: "
            "keep all components, or use 'bic', which needs only the sum of the others"
        )
    # Relative to the largest, so that no unit is too small or too large; it scales the density of all numbers of components alike.
    largest = float(spectrum.variances[0])
    relative = np.pad(spectrum.variances / largest, (0, d - spectrum.known))
    values = evidence(relative, spectrum.n_samples, spectrum.negligible / largest) - spectrum.n_samples * d / 2 * log(largest)
    k = int(np.argmax(values))
    if values.size == 1:
        return Selection(0, "mle", values, np.arange(1), "one feature leaves no number of components to choose")
    reason = f"the log evidence is largest, {values[k]:.6g}, with {k} of at most {d - 1} components"
    return Selection(k, "mle", values, np.arange(d), reason)


def evidence(variances: Floats, n_samples: float, negligible: float) -> Floats:
    """Return ln p(data | r), equation (30) of the paper, for r = 0 (minus infinity) ... d - 1.

    Each pair of components i < j, i <= r has the factor n (l_i - l_j)(1/l^_j - 1/l^_i), where l^ is l up to r, then the noise. Pairs that
    are equal to rounding have no order to know: their factor is 1.
    """
    d, n = variances.size, n_samples
    rank = int((variances > negligible).sum())
    logs = np.log(np.maximum(variances, negligible))
    values = np.full(d, -np.inf)
    i = np.arange(1, d + 1)
    log_areas = gammaln((d - i + 1) / 2) - log(pi) * (d - i + 1) / 2
    prior = kept = pairs_kept = pairs_all = 0.0
    for r in range(1, min(rank, d - 1) + 1):
        new = variances[r - 1]
        prior += log_areas[r - 1] - log(2)
        kept += logs[r - 1]
        before, after = _gaps(variances[: r - 1], new, negligible), _gaps(new, variances[r:], negligible)
        # Pairs within the first r: n (l_i - l_j)^2 / (l_i l_j); the others share one half, n (l_i - l_j), and the noise below.
        equal = before == 0
        pairs_kept += _sum_logs(before) + ((log(n) - logs[: r - 1] - logs[r - 1]) * ~equal).sum()
        pairs_all += _sum_logs(after)
        noise = max(float(variances[r:].sum()) / (d - r), negligible)
        angles = pairs_kept + pairs_all + _noise_pairs(variances, r, noise, n, negligible)
        m = d * r - r * (r + 1) / 2
        values[r] = prior - n / 2 * (kept + (d - r) * log(noise)) + (m + r) / 2 * log(2 * pi) - angles / 2 - r / 2 * log(n)
    return values


def _noise_pairs(variances: Floats, r: int, noise: float, n: float, negligible: float) -> float:
    """Return the sum of ln(n (1/noise - 1/l_i)) over the pairs of a kept and a dropped component."""
    first = variances[:r]
    excess = np.maximum(first - noise, 0.0)
    apart = excess > negligible
    factors = np.log(np.where(apart, n * excess / (noise * first), 1.0))
    return float(factors.sum() * (variances.size - r))


def _gaps(larger: Floats, smaller: Floats, negligible: float) -> Floats:
    """Return the differences, 0 where they are rounding."""
    gaps = np.subtract(larger, smaller)
    return np.where(gaps > negligible, gaps, 0.0)


def _sum_logs(gaps: Floats) -> float:
    return float(np.log(np.where(gaps > 0, gaps, 1.0)).sum())
