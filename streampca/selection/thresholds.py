"""Criteria that keep the components above a level: a fraction of the variance, a threshold, what noise alone would reach."""

from __future__ import annotations

from math import ceil

import numpy as np

from streampca.errors import UsageError
from streampca.selection.marchenko_pastur import aspect_ratio, hard_threshold, largest_of_noise
from streampca.selection.noise import Noise, noise_of
from streampca.selection.result import Options, Selection
from streampca.selection.spectrum import Spectrum


def fraction(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the fewest components that explain more than a fraction of the variance: J(r)/J(0) < 1 - fraction.

    As in scikit-learn. A truncated spectrum that does not reach it gives all components known, as a bound.
    """
    wanted = _number(options)
    if not 0 < wanted < 1:
        raise UsageError(f"a fraction of the variance is between 0 and 1, both excluded, not {wanted}")
    total = float(spectrum.variances.sum()) if spectrum.complete else spectrum.total_variance
    explained = np.cumsum(spectrum.variances / total)
    k = int(np.searchsorted(explained, wanted, side="right")) + 1
    bound = k > spectrum.known and not spectrum.complete
    k = min(k, spectrum.known)
    reason = f"{k} components explain {explained[k - 1]:.6g} of the variance, more than {wanted:g}"
    if bound:  # each of the others explains at most as much as the last one known
        needed = k + max(ceil((wanted - explained[-1]) / (spectrum.variances[-1] / total)), 1)
        reason = f"all {k} components known explain {explained[-1]:.6g} of the variance: {wanted:g} needs at least {needed} components"
    return Selection(k, "fraction", np.append(0.0, explained), np.arange(spectrum.known + 1), reason, bound)


def threshold(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the components whose singular value exceeds a threshold: the next one, L_{r+1}, does not."""
    return _above(spectrum, "threshold", _number(options) ** 2, f"the threshold {_number(options):.6g}")


def gavish_donoho(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the components above the hard threshold that denoises best, sigma sqrt(n) lambda(beta).

    With noise of unknown variance, sigma is that of the median singular value, which makes it omega(beta) times the median. Centred noise
    of n rows is white noise of n - 1 rows, so n - 1 stands for n here. beta is the shorter side by the longer, whichever is the rows.
    """
    noise = noise_of(spectrum, options.noise_variance, options.noise)
    rows, d = spectrum.rows, spectrum.n_features
    beta = aspect_ratio(rows, d)
    factor = max(rows, d) * hard_threshold(beta) ** 2
    return _above_noise(spectrum, "gavish-donoho", noise, factor, f"the optimal hard threshold for beta = {beta:.4g},")


def parallel(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the components above the largest that white noise of the same shape and variance would have.

    The answer of parallel analysis without its simulations: the upper edge of the Marchenko-Pastur law, raised by the Tracy-Widom
    quantile of ``confidence`` (at the edge itself, one draw of pure noise in six would show a component).
    """
    noise = noise_of(spectrum, options.noise_variance, options.noise)
    factor = largest_of_noise(spectrum.rows, spectrum.n_features, options.confidence)
    return _above_noise(spectrum, "parallel", noise, factor, f"what noise alone stays below with probability {options.confidence:g},")


def soft(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the components that survive soft thresholding (a nuclear-norm penalty): L_i > tau.

    The values are what is left of the next singular value, L_{r+1} - tau, or 0.
    """
    tau = _number(options)
    k, bound = spectrum.count_above(tau**2)
    candidates, following = spectrum.next_values()
    reason = f"{_count(k, spectrum)} not shrunk to zero by tau = {tau:.6g}" + _more(bound)
    return Selection(k, "soft", np.maximum(following - tau, 0.0), candidates, reason, bound)


def rank_penalty(spectrum: Spectrum, options: Options) -> Selection:
    """Choose the rank that minimises J(r) + tau r, which keeps L_i^2 > tau."""
    tau = _number(options)
    k, bound = spectrum.count_above(tau)
    candidates = np.arange(spectrum.known + 1)
    reason = f"{_count(k, spectrum)} worth the penalty {tau:.6g} on each: their squared singular values exceed it" + _more(bound)
    return Selection(k, "rank-penalty", spectrum.residuals + tau * candidates, candidates, reason, bound)


def _above_noise(spectrum: Spectrum, name: str, noise: Noise, factor: float, what: str) -> Selection:
    cut = factor * noise.variance
    label = f"{what} {np.sqrt(cut):.6g} (noise variance {noise.variance:.6g}, {noise.origin})"
    return _above(spectrum, name, cut, label, settled=noise.settled)


def _above(spectrum: Spectrum, name: str, cut: float, what: str, *, settled: bool = True) -> Selection:
    """Keep L_i^2 > cut. A noise estimate that is not settled could only be lower, and k larger."""
    k, open_end = spectrum.count_above(cut)
    bound = open_end or not settled
    candidates, following = spectrum.next_values()
    reason = f"{_count(k, spectrum)} above {what}"
    if k < following.size:
        reason += f"; the next singular value is {following[k]:.6g}"
    return Selection(k, name, following, candidates, reason + _more(bound), bound)


def _count(k: int, spectrum: Spectrum) -> str:
    return f"{k} of {spectrum.known} known singular values {'is' if k == 1 else 'are'}"


def _more(bound: bool) -> str:
    return "; components that are not known may be too" if bound else ""


def _number(options: Options) -> float:
    if options.threshold is None or not 0 <= options.threshold < np.inf:
        raise UsageError(f"threshold={options.threshold}: must be a number of at least 0")
    return options.threshold
