from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.decomposition import PCA as SklearnPCA  # noqa: N811

import streampca as sp
from streampca.errors import UsageError
from streampca.plotting.fitted import as_fitted


def rows(n: int = 300, d: int = 6) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3


def test_our_pca_and_scikit_learns_look_the_same() -> None:
    ours, theirs = as_fitted(sp.PCA(2).fit(rows())), as_fitted(SklearnPCA(2, svd_solver="full").fit(rows()))
    assert (ours.k, ours.n_features, ours.names, ours.named) == (2, 6, [f"x{i}" for i in range(6)], False)
    assert ours.total == pytest.approx(theirs.total)
    assert ours.total == pytest.approx(rows().var(axis=0, ddof=1).sum())
    np.testing.assert_allclose(ours.ratios[:2], theirs.ratios)
    assert len(ours.spectrum) == 6  # all that the solver knows
    assert ours.shown() == 6
    assert ours.loglike.size == 0


def test_a_latent_model_has_directions_of_unit_length() -> None:
    W = np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    fit = as_fitted(SimpleNamespace(W_=W, noise_variance_=0.5, mean_=np.zeros(3), loglike_=[-3.0, -2.0]))
    np.testing.assert_allclose(fit.components, np.eye(3)[:2])
    np.testing.assert_allclose(fit.variances, [9.5, 4.5])
    assert fit.total == pytest.approx(13 + 1.5)
    assert fit.loglike.tolist() == [-3, -2]


def test_the_longest_and_the_leading() -> None:
    fit = as_fitted(SimpleNamespace(components_=np.array([[0.1, 0.9, 0.2, 0.3]]), explained_variance_=np.ones(1)))
    assert fit.longest_arrows(2).tolist() == [1, 3]
    assert fit.leading_features(1, 3).tolist() == [1, 2, 3]


def test_what_is_not_fitted() -> None:
    with pytest.raises(UsageError, match="has no components to draw: fit it first"):
        as_fitted(sp.PCA(2))
