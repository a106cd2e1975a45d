"""Data with a known number of components: orthogonal signal of a chosen strength in white noise of variance one."""

from __future__ import annotations

import numpy as np

from streampca.selection import Spectrum


def planted(n: int, d: int, rank: int, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Return rows whose weakest component is ``strength`` times the weakest that can be seen at all."""
    longer, shorter = max(n - 1, d), min(n - 1, d)
    left, right = (np.linalg.qr(rng.standard_normal((side, rank)))[0] for side in (n, d))
    sizes = strength * np.sqrt(longer) * (shorter / longer) ** 0.25 * np.linspace(1.3, 1, rank)
    return rng.standard_normal((n, d)) + (left * sizes) @ right.T


def spectrum_of(X: np.ndarray, keep: int | None = None) -> Spectrum:
    centred = X - X.mean(axis=0)
    n, d = X.shape
    variances = np.linalg.svd(centred, compute_uv=False) ** 2 / (n - 1)
    return Spectrum(variances[:keep], n, d, float((centred**2).sum() / (n - 1)))


def first(spectrum: Spectrum, keep: int) -> Spectrum:
    return Spectrum(spectrum.variances[:keep], spectrum.n_samples, spectrum.n_features, spectrum.total_variance)
