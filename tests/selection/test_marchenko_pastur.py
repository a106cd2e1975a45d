from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq

from streampca.errors import UsageError
from streampca.selection.marchenko_pastur import (
    cdf,
    edges,
    hard_threshold,
    hard_threshold_of_median,
    largest_of_noise,
    median,
    tracy_widom_cdf,
    tracy_widom_quantile,
)

# Gavish and Donoho (2014), table of omega(beta); printed to four digits from their own numerical integration.
PUBLISHED = {
    0.05: 1.5194,
    0.1: 1.6089,
    0.2: 1.7650,
    0.3: 1.9061,
    0.4: 2.0403,
    0.5: 2.1711,
    0.6: 2.3021,
    0.7: 2.4339,
    0.8: 2.5697,
    1.0: 2.8582,
}


@pytest.mark.parametrize(("beta", "omega"), PUBLISHED.items())
def test_omega_is_the_published_one(beta: float, omega: float) -> None:
    assert hard_threshold_of_median(beta) == pytest.approx(omega, abs=1e-3)


@pytest.mark.parametrize("beta", np.linspace(0.001, 1, 40))
def test_omega_is_near_the_published_polynomial(beta: float) -> None:
    polynomial = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    assert abs(hard_threshold_of_median(beta) - polynomial) < 0.02


def test_lambda_in_closed_form() -> None:
    assert hard_threshold(1.0) == pytest.approx(4 / np.sqrt(3), rel=1e-15)
    assert hard_threshold(1e-12) == pytest.approx(np.sqrt(2), rel=1e-6)


@pytest.mark.parametrize("beta", [0.01, 0.1, 0.5, 1.0])
def test_at_lambda_keeping_and_dropping_a_component_are_equally_good(beta: float) -> None:
    """A signal x shows as y, turned by angles of known cosines (Benaych-Georges, Nadakuditi, 2012); dropping it costs x^2."""

    def shows_as(x: float) -> float:
        return float(np.sqrt((x + 1 / x) * (x + beta / x)))

    x = brentq(lambda t: shows_as(t) - hard_threshold(beta), beta**0.25, 10)
    cosines = (x**4 - beta) / np.sqrt((x**4 + beta * x**2) * (x**4 + x**2))
    y = hard_threshold(beta)
    assert y**2 + x**2 - 2 * x * y * cosines == pytest.approx(x**2, rel=1e-9)


@pytest.mark.parametrize("beta", [1e-9, 1e-4, 0.05, 0.3, 0.9, 0.999999, 1.0])
def test_the_median_halves_the_law(beta: float) -> None:
    low, high = edges(beta)
    assert cdf(high, beta) == pytest.approx(1, abs=1e-10)
    assert cdf(low, beta) == 0
    assert cdf(median(beta), beta) == pytest.approx(0.5, abs=1e-8)
    assert low < median(beta) < high


@pytest.mark.parametrize("beta", [0.05, 0.3, 0.9])
def test_the_law_is_the_textbook_density(beta: float) -> None:
    low, high = edges(beta)
    x = 0.3 * low + 0.7 * high
    part = quad(lambda t: np.sqrt((high - t) * (t - low)) / (2 * np.pi * beta * t), low, x)[0]
    assert cdf(x, beta) == pytest.approx(part, abs=1e-8)


def test_the_square_law_is_a_quarter_circle() -> None:
    y = 2 * np.sqrt(0.25)  # singular values: density sqrt(4 - y^2)/pi on (0, 2)
    assert cdf(y**2, 1.0) == pytest.approx((y * np.sqrt(4 - y**2) / 2 + 2 * np.arcsin(y / 2)) / np.pi, abs=1e-10)


@pytest.mark.parametrize(("p", "q"), [(300, 300), (150, 600), (40, 800)])
def test_edges_and_median_of_simulated_noise(p: int, q: int) -> None:
    squares = np.linalg.svd(np.random.default_rng(p).standard_normal((p, q)), compute_uv=False) ** 2 / q
    low, high = edges(p / q)
    assert squares.max() == pytest.approx(high, rel=0.07)
    assert squares.min() == pytest.approx(low, rel=0.1, abs=1e-3)
    assert np.median(squares) == pytest.approx(median(p / q), rel=0.02)


@pytest.mark.parametrize(("p", "s"), [(0.5, -1.26857), (0.9, 0.45014), (0.95, 0.97931), (0.99, 2.02345)])
def test_tracy_widom_quantiles_are_the_tabulated_ones(p: float, s: float) -> None:
    assert tracy_widom_quantile(p) == pytest.approx(s, abs=2e-5)
    assert tracy_widom_cdf(s) == pytest.approx(p, abs=1e-5)


def test_the_largest_of_noise_is_where_it_says() -> None:
    rng = np.random.default_rng(0)
    largest = [np.linalg.norm(rng.standard_normal((60, 20)), 2) ** 2 for _ in range(600)]
    for confidence, slack in ((0.5, 0.06), (0.95, 0.03), (0.99, 0.015)):
        assert np.mean(np.array(largest) < largest_of_noise(60, 20, confidence)) == pytest.approx(confidence, abs=slack)


@pytest.mark.parametrize("beta", [0.0, -0.1, 1.01, np.nan])
def test_beta_is_the_shorter_by_the_longer(beta: float) -> None:
    with pytest.raises(UsageError, match="shorter side"):
        hard_threshold_of_median(beta)


@pytest.mark.parametrize("p", [0.0, 1.0, np.nan])
def test_certainty_is_not_to_be_had(p: float) -> None:
    with pytest.raises(UsageError, match="confidence"):
        tracy_widom_quantile(p)
