"""The noise variance from a spectrum alone: from the median singular value, or from the exact sum of the tail.

Both take the noise to be white: of the same variance in every entry, so that it follows the Marchenko-Pastur law.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from streampca.errors import UsageError
from streampca.selection.marchenko_pastur import aspect_ratio, largest_of_noise, median
from streampca.selection.spectrum import Spectrum

NoiseFrom = Literal["median", "tail"]

_SIGNAL = 0.99  # confidence that a component stands out of the noise, for the tail's estimate


class Noise(NamedTuple):
    """A noise variance, where it is from, and whether components that are not known could only lower it."""

    variance: float
    origin: str
    settled: bool


def noise_of(spectrum: Spectrum, given: float | None, how: NoiseFrom) -> Noise:
    """Return the noise variance: as given, or estimated."""
    if given is not None:
        if not 0 <= given < np.inf:
            raise UsageError(f"noise_variance={given}: a variance is a number of at least 0")
        return Noise(float(given), "given", settled=True)
    if how not in get_args(NoiseFrom):
        raise UsageError(f"noise={how!r}: must be one of {', '.join(map(repr, get_args(NoiseFrom)))}")
    return median_noise(spectrum) if how == "median" else tail_noise(spectrum)


def median_noise(spectrum: Spectrum) -> Noise:
    """Return the noise variance whose Marchenko-Pastur median is the median squared singular value.

    Signal in less than half of the components hardly moves it. Needs half of the spectrum.

    >>> noise = median_noise(Spectrum(np.full(60, 2.0), n_samples=301, n_features=60, total_variance=120.0))
    >>> round(noise.variance, 3)
    2.144
    """
    needed = spectrum.limit // 2 + 1
    if spectrum.known < needed:
        raise UsageError(
            f"the noise is estimated from the median of {spectrum.limit} singular values, but only {spectrum.known} are known: "
            f"keep at least {needed} components, or give noise_variance, or noise='tail' (from the exact sum of the others, "
            "if all signal is in those kept)"
        )
    middle = float(np.median(np.pad(spectrum.singular_values, (0, spectrum.limit - spectrum.known))))
    beta = aspect_ratio(spectrum.rows, spectrum.n_features)
    variance = middle**2 / (max(spectrum.rows, spectrum.n_features) * median(beta))
    return Noise(variance, "from the median singular value", settled=True)


def tail_noise(spectrum: Spectrum) -> Noise:
    """Return the noise variance from the exact sum of what is left after the components that stand out.

    After k components of signal, white noise leaves E J(k) = s2 (n - 1 - k)(d - k). The number k and s2 depend on each other; starting
    from k = 0, each step strips components above the noise, which lowers s2, so the steps end at the least k that fits, the largest s2.
    Only the trace and the leading components are needed. It is sound if the noise is white and the signal has few components, all of
    them known; signal in the tail makes it too large, hence the selection too small, never too large.

    >>> noise = tail_noise(Spectrum(np.array([50.0]), n_samples=101, n_features=20, total_variance=50 + 19 * 0.99))
    >>> round(noise.variance, 3)
    1.0
    """
    factor = largest_of_noise(spectrum.rows, spectrum.n_features, _SIGNAL)
    k = 0
    while k < min(spectrum.limit, spectrum.rows):  # the sum of small weights may be less than the rank
        variance = float(spectrum.residuals[k]) / ((spectrum.rows - k) * (spectrum.n_features - k))
        above, more = spectrum.count_above(factor * variance)
        if above <= k:
            return Noise(variance, f"from the sum of the tail after {k} components", settled=not more)
        k = above
    return Noise(0.0, "from an empty tail", settled=True)
