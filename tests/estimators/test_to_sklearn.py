from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA as SklearnPCA  # noqa: N811
from sklearn.exceptions import NotFittedError

import streampca as sp
from streampca.errors import UsageError


@pytest.fixture
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(200, 7)) @ rng.normal(size=(7, 7)) + 50


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("solver", ["covariance", "tsqr"])
def test_it_does_what_the_fit_does(X: np.ndarray, whiten: bool, solver: str) -> None:
    ours = sp.PCA(3, whiten=whiten, solver=solver).fit(X)
    theirs = ours.to_sklearn()
    assert type(theirs) is SklearnPCA
    np.testing.assert_allclose(theirs.transform(X), ours.transform(X), atol=1e-9)
    np.testing.assert_allclose(theirs.inverse_transform(theirs.transform(X)), ours.inverse_transform(ours.transform(X)), atol=1e-9)
    if not whiten:  # scikit-learn scales the covariance of whitened components twice
        np.testing.assert_allclose(theirs.score_samples(X), ours.score_samples(X), rtol=1e-9)
        np.testing.assert_allclose(theirs.get_covariance(), ours.get_covariance(), rtol=1e-9)


def test_it_is_as_scikit_learn_would_have_fitted_it(X: np.ndarray) -> None:
    found, expected = sp.PCA(3).fit(X).to_sklearn(), SklearnPCA(3, svd_solver="full").fit(X)
    assert vars(expected).keys() <= vars(found).keys()
    np.testing.assert_allclose(np.abs(found.components_), np.abs(expected.components_), atol=1e-9)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "noise_variance_", "n_samples_"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)
    np.testing.assert_allclose(np.abs(clone(found).fit_transform(X)), np.abs(found.transform(X)), atol=1e-9)
    assert list(found.get_feature_names_out()) == list(expected.get_feature_names_out())


def test_names_of_features_go_along() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["a", "b", "c"])
    assert list(sp.PCA(2).fit(table).to_sklearn().feature_names_in_) == ["a", "b", "c"]


def test_nothing_is_shared(X: np.ndarray) -> None:
    ours = sp.PCA(2).fit(X)
    before = ours.components_.copy()
    ours.to_sklearn().components_[:] = 0
    np.testing.assert_array_equal(ours.components_, before)


def test_what_cannot_be(X: np.ndarray) -> None:
    with pytest.raises(UsageError, match="StandardScaler"):
        sp.PCA(2, standardize=True).fit(X).to_sklearn()
    with pytest.raises(NotFittedError):
        sp.PCA(2).to_sklearn()
