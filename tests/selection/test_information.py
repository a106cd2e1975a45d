from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from streampca.selection import Spectrum, select_components
from streampca.selection.information import likelihoods, parameters
from tests.selection.planted import first, planted, spectrum_of

# N = 10, D = 3; l_i = L_i^2/10 = 8, 2, 1 (divisor N), so J = 110, 30, 10, 0.
EXAMPLE = Spectrum(np.array([80.0, 20.0, 10.0]) / 9, 10, 3, 110 / 9)


def test_the_geometric_aic_by_hand() -> None:
    # J + 2 (3 r - r^2 + 10 r) s2 with s2 = 1.5: 110, 30 + 36, 10 + 66, 0 + 90
    chosen = select_components(EXAMPLE, "gaic", noise_variance=1.5)
    np.testing.assert_allclose(chosen.values, [110, 66, 76, 90])
    assert chosen.k == 1


def test_the_residual_forms_by_hand() -> None:
    # J + c (3 r - r^2) s2 up to D/2 = 1.5: 110, 30 + 2 c s2
    aic = select_components(EXAMPLE, "residual-aic", noise_variance=1.5)
    bic = select_components(EXAMPLE, "residual-bic", noise_variance=50.0)
    np.testing.assert_allclose(aic.values, [110, 30 + 2 * 2 * 1.5])
    np.testing.assert_allclose(bic.values, [110, 30 + np.log(10) * 2 * 50])
    assert (aic.k, bic.k) == (1, 0)


def test_bic_and_aic_by_hand() -> None:
    # -2 ln L = N (D ln 2pi + D + sum ln l_i + (D - r) ln s2), s2 = 11/3, 3/2, 1; parameters 1, 4, 6
    constant = 10 * (3 * np.log(2 * np.pi) + 3)
    fits = constant + 10 * np.array([3 * np.log(11 / 3), np.log(8) + 2 * np.log(1.5), np.log(8) + np.log(2)])
    np.testing.assert_allclose(select_components(EXAMPLE, "bic").values, fits + np.log(10) * np.array([1, 4, 6]))
    np.testing.assert_allclose(select_components(EXAMPLE, "aic").values, fits + 2 * np.array([1, 4, 6]))
    assert select_components(EXAMPLE, "bic").k == select_components(EXAMPLE, "aic").k == 1


def test_bic_with_known_noise_by_hand() -> None:
    # s2 = 2: the second component, l = 2, adds nothing to the fit and costs 2 parameters
    shared = 10 * 3 * np.log(2 * np.pi)
    fits = shared + 10 * np.array([3 * np.log(2) + 11 / 2, np.log(8) + 1 + 2 * np.log(2) + 3 / 2, np.log(8) + 1 + 2 * np.log(2) + 3 / 2])
    chosen = select_components(EXAMPLE, "bic", noise_variance=2.0)
    np.testing.assert_allclose(chosen.values, fits + np.log(10) * np.array([0, 3, 5]))
    assert chosen.k == 1


@pytest.mark.parametrize("noise", [None, 0.8])
def test_likelihoods_are_those_of_the_rows(noise: float | None) -> None:
    X = planted(60, 5, 2, 4, np.random.default_rng(0))
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    values, vectors = values[::-1], vectors[:, ::-1]
    for r, found in enumerate(likelihoods(spectrum_of(X), noise)):
        s2 = values[r:].mean() if noise is None else noise
        W = vectors[:, :r] * np.sqrt(np.maximum(values[:r] - s2, 0))
        density = multivariate_normal(X.mean(axis=0), W @ W.T + s2 * np.eye(5))
        assert found == pytest.approx(density.logpdf(X).sum(), rel=1e-10)


def test_parameters_are_those_of_a_covariance_when_nothing_is_left_out() -> None:
    for d in range(1, 8):
        r = np.arange(d + 1)
        counts = parameters(r, d, noise=True)
        assert counts[d - 1] == d * (d + 1) // 2
        assert (np.diff(counts[:d]) > 0).all()


def test_a_truncated_spectrum_has_the_same_curve() -> None:
    spectrum = spectrum_of(planted(60, 12, 2, 4, np.random.default_rng(0)))
    for criterion in ("bic", "aic"):
        whole, part = select_components(spectrum, criterion), select_components(first(spectrum, 5), criterion)
        np.testing.assert_allclose(part.values, whole.values[:6], rtol=1e-12)
        assert (part.k, part.bound) == (whole.k, False)
    assert select_components(first(spectrum, 1), "bic").bound


def test_rows_and_columns_may_be_exchanged() -> None:
    """White noise is the same both ways: with the mean known to be zero, the transpose has the same answer."""
    X = planted(40, 200, 3, 4, np.random.default_rng(0))
    X -= X.mean(axis=0)
    squares = np.linalg.svd(X, compute_uv=False)[:39] ** 2
    tall = Spectrum(squares / 199, 200, 39, float(squares.sum() / 199))
    assert select_components(spectrum_of(X), "bic").k == select_components(tall, "bic").k == 3
    np.testing.assert_allclose(select_components(spectrum_of(X), "bic").values, select_components(tall, "bic").values, rtol=1e-9)


def test_the_residual_bic_is_for_few_samples_of_many_features() -> None:
    rng = np.random.default_rng(0)
    wide, tall = spectrum_of(planted(60, 300, 4, 4, rng)), spectrum_of(planted(300, 60, 4, 4, rng))
    assert select_components(wide, "residual-bic", noise_variance=1.0).k == 4
    assert select_components(tall, "residual-bic", noise_variance=1.0).k == 30  # all that it may: why bic is the other one
    assert select_components(tall, "bic", noise_variance=1.0).k == 4
