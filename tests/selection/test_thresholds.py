from __future__ import annotations

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from streampca.selection import Spectrum, select_components
from streampca.selection.marchenko_pastur import hard_threshold, hard_threshold_of_median
from tests.selection.planted import first, planted, spectrum_of

# Singular values 8, 6, 3, 2 of 5 rows more than the divisor: variances L^2/4.
EXAMPLE = Spectrum(np.array([64.0, 36.0, 9.0, 4.0]) / 4, 5, 6, 113 / 4)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
@pytest.mark.parametrize("fraction", [0.05, 0.5, 0.9, 0.99, 0.999999])
def test_fractions_are_scikit_learns(load: object, fraction: float) -> None:
    X = load().data[:400]  # type: ignore[operator]
    reference = decomposition.PCA(fraction, svd_solver="full").fit(X)
    whole = decomposition.PCA(svd_solver="full").fit(X)
    assert select_components(whole, fraction).k == reference.n_components_
    kept = decomposition.PCA(int(reference.n_components_), svd_solver="full").fit(X)
    chosen = select_components(kept, fraction)
    assert (chosen.k, chosen.bound) == (reference.n_components_, False)


def test_ties_need_more_than_the_fraction() -> None:
    ks = [select_components(np.ones(4), part, n_samples=10).k for part in (0.2, 0.25, 0.3, 0.5, 0.75, 0.99)]
    assert ks == [1, 2, 2, 3, 4, 4]


def test_a_fraction_out_of_reach_is_a_bound_with_what_would_be_needed() -> None:
    chosen = select_components([5.0, 2.0], 0.9, n_samples=50, n_features=10, total_variance=12.0)
    assert (chosen.k, chosen.bound) == (2, True)
    assert "at least 4 components" in chosen.reason  # 10.8 of 12 is 3.8 more, at most 2 each
    np.testing.assert_allclose(chosen.values, [0, 5 / 12, 7 / 12])


@pytest.mark.parametrize(("level", "k"), [(0, 4), (1.9, 4), (2.5, 3), (5, 2), (7, 1), (9, 0)])
def test_thresholds_on_singular_values(level: float, k: int) -> None:
    assert select_components(EXAMPLE, "threshold", threshold=level).k == k
    assert select_components(EXAMPLE, "soft", threshold=level).k == k
    chosen = select_components(EXAMPLE, "rank-penalty", threshold=level**2)
    assert chosen.k == k == np.argmin(chosen.values)


def test_curves() -> None:
    np.testing.assert_allclose(select_components(EXAMPLE, "threshold", threshold=5).values, [8, 6, 3, 2, 0])
    np.testing.assert_allclose(select_components(EXAMPLE, "soft", threshold=5).values, [3, 1, 0, 0, 0])
    np.testing.assert_allclose(select_components(EXAMPLE, "rank-penalty", threshold=25).values, [113, 74, 63, 79, 100])


@pytest.mark.parametrize(("level", "bound"), [(3.7, False), (3.5, True)])
def test_the_sum_of_the_tail_bounds_its_parts(level: float, bound: bool) -> None:
    chosen = select_components(first(EXAMPLE, 2), "threshold", threshold=level)  # the others: 9 + 4, at most sqrt(13) = 3.6
    assert (chosen.k, chosen.bound) == (2, bound)


@pytest.mark.parametrize(("n", "d"), [(101, 20), (21, 100), (51, 50)])
def test_gavish_donoho_by_its_formulas(n: int, d: int) -> None:
    spectrum = spectrum_of(planted(n, d, 3, 2, np.random.default_rng(n)))
    L, beta, longer = spectrum.singular_values, min(n - 1, d) / max(n - 1, d), max(n - 1, d)
    unknown = (hard_threshold_of_median(beta) * np.median(L) < L).sum()
    known = (1.1 * np.sqrt(longer) * hard_threshold(beta) < L).sum()
    assert select_components(spectrum, "gavish-donoho").k == unknown
    assert select_components(spectrum, "gavish-donoho", noise_variance=1.21).k == known


def test_noise_shows_through_parallel_as_often_as_the_confidence_allows() -> None:
    rng = np.random.default_rng(1)
    spectra = [spectrum_of(rng.standard_normal((60, 20))) for _ in range(200)]
    for confidence in (0.5, 0.9):
        none = [select_components(s, "parallel", noise_variance=1.0, confidence=confidence).k == 0 for s in spectra]
        assert np.mean(none) == pytest.approx(confidence, abs=0.07)


def test_held_out_takes_the_best_and_the_least_of_equals() -> None:
    spectrum = spectrum_of(np.random.default_rng(0).standard_normal((30, 6)))
    chosen = select_components(spectrum, "held-out", held_out=[-9.0, -5.0, -5.0, -6.0])
    assert (chosen.k, chosen.bound, chosen.candidates.tolist()) == (2, False, [1, 2, 3, 4])
    chosen = select_components(spectrum, "held-out", held_out={4: -3.0, 0: -9.0, 2: -np.inf})
    assert (chosen.k, chosen.bound, chosen.candidates.tolist()) == (4, True, [0, 2, 4])
    assert not select_components(spectrum, "held-out", held_out={1: -3.0, 6: -2.0}).bound  # there are no more
