"""Information criteria: the fit of r components, plus a price for what describes them.

``bic`` and ``aic`` price the parameters of probabilistic PCA against its likelihood. ``gaic`` and the ``residual`` forms price the
residual J(r) = sum of L_i^2 over i > r, in units of a noise variance that is the same for all r (K. Kanatani; Vidal, Ma, Sastry,
Generalized Principal Component Analysis, 2016).
"""

from __future__ import annotations

from math import log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.selection.noise import noise_of
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Floats, Integers, Spectrum


def bic(spectrum: Spectrum, options: Options) -> Selection:
    """Minimise -2 ln L(r) + ln(N) m(r), with the likelihood L and the m free parameters of probabilistic PCA.

    Of a truncated spectrum, the numbers up to the components known are compared, and their values are exact.
    """
    samples, _ = _longer_and_shorter(spectrum)
    return _by_likelihood(spectrum, options, "bic", log(samples))


def aic(spectrum: Spectrum, options: Options) -> Selection:
    """Minimise -2 ln L(r) + 2 m(r), with the likelihood L and the m free parameters of probabilistic PCA."""
    return _by_likelihood(spectrum, options, "aic", 2.0)


def gaic(spectrum: Spectrum, options: Options) -> Selection:
    """Minimise the geometric AIC, J(r) + 2 (D r - r^2 + N r) s2: it prices the coordinates of each sample too."""
    n, d = spectrum.n_samples, spectrum.n_features
    r = np.arange(spectrum.limit + 1)
    return _by_residual(spectrum, options, "gaic", 2.0 * (r * (d - r) + n * r))


def residual_bic(spectrum: Spectrum, options: Options) -> Selection:
    """Minimise J(r) + ln(N) (D r - r^2) s2, over r up to D/2.

    The coordinates of the samples are free, so noise lowers J(r) by about N s2 with each component: meant for N much smaller
    than D ln(N); with more samples it keeps all that it may. A subspace has as many parameters as its complement, hence D/2.
    """
    return _by_subspace(spectrum, options, "residual-bic", log(spectrum.n_samples))


def residual_aic(spectrum: Spectrum, options: Options) -> Selection:
    """Minimise J(r) + 2 (D r - r^2) s2, over r up to D/2; the same limits as ``residual_bic``."""
    return _by_subspace(spectrum, options, "residual-aic", 2.0)


def likelihoods(spectrum: Spectrum, noise_variance: float | None) -> Floats:
    """Return ln L(r) of probabilistic PCA at its maximum, for r = 0 ... the components known, at most D - 1.

    It depends on the variances l_i (divisor N) of the first r and the sum of the others, which is known: nothing else of the tail
    matters. With n - 1 < d the rows and columns are exchanged (N = d, D = n - 1): white noise is the same both ways, and the
    likelihood of more dimensions than samples has no bound.
    """
    N, D = _longer_and_shorter(spectrum)
    r = np.arange(min(spectrum.known, D - 1) + 1)
    floor = spectrum.negligible * spectrum.rows / N  # a variance of zero would have an infinite likelihood
    variances = np.maximum(spectrum.variances[: r[-1]] * spectrum.rows / N, floor)
    tail = spectrum.residuals[r] / N
    if noise_variance is None:
        s2 = np.maximum(tail / (D - r), floor)
        kept, rest = np.log(variances) + 1, (D - r) * (np.log(s2) + 1)
    else:
        known = max(noise_variance, floor)
        fitted = np.maximum(variances, known)  # a component adds variance, it takes none away
        kept, rest = np.log(fitted) + variances / fitted, (D - r) * log(known) + tail / known
    result: Floats = -N / 2 * (D * log(2 * pi) + np.append(0.0, np.cumsum(kept)) + rest)
    return result


def parameters(r: Integers, dimensions: int, *, noise: bool) -> Integers:
    """Return the free parameters of probabilistic PCA: a subspace (D r - r^2), the covariance in it, and the noise variance.

    >>> parameters(np.arange(4), 3, noise=False).tolist()
    [0, 3, 5, 6]
    """
    count: Integers = dimensions * r - r**2 + r * (r + 1) // 2 + int(noise)
    return count


def _longer_and_shorter(spectrum: Spectrum) -> tuple[float, int]:
    """Return N and D: samples and dimensions, exchanged if there are fewer samples."""
    tall = spectrum.rows >= spectrum.n_features
    return (spectrum.n_samples if tall else spectrum.n_features), spectrum.limit


def _by_likelihood(spectrum: Spectrum, options: Options, name: str, price: float) -> Selection:
    given = None if options.noise_variance is None else noise_of(spectrum, options.noise_variance, "median").variance
    _, D = _longer_and_shorter(spectrum)
    fits = likelihoods(spectrum, given)
    r = np.arange(fits.size)
    values = -2 * fits + price * parameters(r, D, noise=given is None)
    at_the_end = int(np.argmin(values)) == spectrum.known and not spectrum.complete
    return _lowest(name, values, f"{price:.4g} for each free parameter", bound=at_the_end)


def _by_residual(spectrum: Spectrum, options: Options, name: str, price: NDArray[Any]) -> Selection:
    """Minimise J(r) + price(r) s2 over the numbers that have a price. Those beyond the components known can be ruled out, or not."""
    noise = noise_of(spectrum, options.noise_variance, options.noise)
    s2 = max(noise.variance, spectrum.negligible)  # so that rounding does not pay
    known = spectrum.residuals[: price.size]
    # None of the components that are not known takes more from J than the last one known.
    beyond = spectrum.residuals[-1] - spectrum.singular_values[-1] ** 2 * np.arange(1, price.size - known.size + 1)
    least = np.append(known, np.maximum(beyond, 0.0)) + price * s2
    values = least[: known.size]
    settled = noise.settled and bool((least[known.size :] > values.min()).all())
    label = f"noise variance {noise.variance:.6g}, {noise.origin}"
    return _lowest(name, values, label, bound=not settled)


def _by_subspace(spectrum: Spectrum, options: Options, name: str, price: float) -> Selection:
    d = spectrum.n_features
    r = np.arange(min(spectrum.limit, d // 2) + 1)
    return _by_residual(spectrum, options, name, price * r * (d - r))


def _lowest(name: str, values: Floats, with_what: str, *, bound: bool) -> Selection:
    k = int(np.argmin(values))
    reason = f"{name} is least, {values[k]:.6g}, with {k} of at most {values.size - 1} components ({with_what})"
    return Selection(k, name, values, np.arange(values.size), reason + ("; more components may be better still" if bound else ""), bound)
