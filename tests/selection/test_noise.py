from __future__ import annotations

import numpy as np
import pytest

from streampca.errors import UsageError
from streampca.selection import Spectrum
from streampca.selection.noise import median_noise, noise_of, tail_noise
from tests.selection.planted import first, planted, spectrum_of


@pytest.mark.parametrize(("n", "d"), [(300, 60), (60, 300), (100, 100)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_both_find_the_noise_under_a_signal(n: int, d: int, scale: float) -> None:
    X = scale * planted(n, d, 3, 5, np.random.default_rng(0))
    spectrum = spectrum_of(X)
    assert median_noise(spectrum).variance == pytest.approx(scale**2, rel=0.1)
    assert tail_noise(spectrum).variance == pytest.approx(scale**2, rel=0.03)


@pytest.mark.parametrize("keep", [4, 10, 59])
def test_the_tail_needs_only_the_components_that_stand_out(keep: int) -> None:
    spectrum = spectrum_of(planted(300, 60, 3, 5, np.random.default_rng(0)))
    part = tail_noise(first(spectrum, keep))
    assert part.variance == pytest.approx(tail_noise(spectrum).variance, rel=1e-12)
    assert part.settled


def test_a_tail_with_signal_is_not_settled_and_too_large() -> None:
    spectrum = spectrum_of(planted(300, 60, 6, 6, np.random.default_rng(0)))
    part = tail_noise(first(spectrum, 3))
    assert not part.settled
    assert part.variance > 1.5 * tail_noise(spectrum).variance


@pytest.mark.parametrize(("limit", "needed"), [(6, 4), (7, 4)])
def test_the_median_needs_half(limit: int, needed: int) -> None:
    spectrum = Spectrum(np.linspace(3, 1, limit), 50, limit, float(np.linspace(3, 1, limit).sum()))
    assert median_noise(first(spectrum, needed)).variance == pytest.approx(median_noise(spectrum).variance, rel=1e-12)
    with pytest.raises(UsageError, match=f"at least {needed} components.*noise='tail'"):
        median_noise(first(spectrum, needed - 1))


def test_no_noise_is_found_in_data_without_noise() -> None:
    spectrum = Spectrum(np.array([4.0, 1.0, 0.0, 0.0, 0.0]), 30, 5, 5.0)
    assert median_noise(spectrum).variance == tail_noise(spectrum).variance == 0


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_variance_is_not_negative(value: float) -> None:
    with pytest.raises(UsageError, match="at least 0"):
        noise_of(Spectrum(np.ones(2), 9, 2, 2.0), value, "median")


def test_there_are_two_ways() -> None:
    with pytest.raises(UsageError, match="'median', 'tail'"):
        noise_of(Spectrum(np.ones(2), 9, 2, 2.0), None, "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize("weight", [1.01, 1.5, 2.3, 3.7])
def test_small_sums_of_weights_do_no_harm(weight: float) -> None:
    spectrum = Spectrum(np.array([1e6, 1e6, 1e6, 1e-9, 0.0]), weight, 5, 3e6 + 1e-9)
    for noise in (median_noise(spectrum), tail_noise(spectrum)):
        assert 0 <= noise.variance < np.inf
