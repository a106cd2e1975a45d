from __future__ import annotations

import numpy as np
import pytest
from sklearn import decomposition
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine

from streampca.errors import UsageError
from streampca.selection import select_components
from tests.selection.planted import planted, spectrum_of


def scikit_learns(X: np.ndarray) -> int:
    return int(decomposition.PCA("mle", svd_solver="full").fit(X).n_components_)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
@pytest.mark.parametrize("standardized", [False, True])
def test_real_data(load: object, standardized: bool) -> None:
    X = load().data[:400].astype(float)  # type: ignore[operator]
    if standardized:
        X = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1)
    assert select_components(spectrum_of(X), "mle").k == scikit_learns(X)


@pytest.mark.parametrize("seed", range(60))
def test_random_data(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 80))
    d = int(rng.integers(1, min(n, 25) + 1))
    rank = int(rng.integers(1, d + 1))
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d)) * rng.choice([0.3, 3]) + rng.standard_normal((n, d))
    assert select_components(spectrum_of(X), "mle").k == scikit_learns(X)


@pytest.mark.parametrize("strength", [1.5, 3, 10])
def test_planted_rank(strength: float) -> None:
    X = planted(200, 30, 4, strength, np.random.default_rng(0))
    assert select_components(spectrum_of(X), "mle").k == scikit_learns(X)


def test_the_evidence_itself_is_scikit_learns() -> None:
    from sklearn.decomposition._pca import _assess_dimension

    spectrum = spectrum_of(planted(100, 12, 3, 2, np.random.default_rng(0)))
    reference = [_assess_dimension(np.array(spectrum.variances), r, 100) for r in range(1, 12)]
    values = select_components(spectrum, "mle").values
    assert np.isneginf(values[0])
    np.testing.assert_allclose(values[1:], reference, rtol=1e-11)


def test_ties_have_an_answer() -> None:
    assert 1 <= select_components(np.ones(5), "mle", n_samples=50).k <= 4
    assert select_components([50.0, 50.0, 1.0, 1.0, 1.0], "mle", n_samples=50).k == 2


def test_one_feature() -> None:
    assert select_components([2.0], "mle", n_samples=9).k == 0  # scikit-learn's, too


def test_it_needs_everything() -> None:
    with pytest.raises(UsageError, match="needs all 4 variances, but only 2"):
        select_components([3.0, 1.0], "mle", n_samples=9, n_features=4, total_variance=4.5)
