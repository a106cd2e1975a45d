"""The held-out log-likelihood against scipy's normal density, and the choice of planted ranks."""

from __future__ import annotations

import warnings
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn import decomposition

import streampca as sp
from streampca.errors import DataError, UsageError
from streampca.statistics.split import is_held_out


def planted(n: int = 1000, d: int = 12, rank: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, n, d])
    return 3 * rng.normal(size=(n, rank)) @ rng.normal(size=(rank, d)) + rng.normal(size=(n, d)) + 100


@pytest.mark.parametrize("standardize", [False, True])
def test_the_curve_is_the_mean_log_density_of_the_held_out_rows(standardize: bool) -> None:
    X = planted()
    held = is_held_out(X)
    kept, scale = X[~held], X[~held].std(axis=0) if standardize else np.ones(12)
    curve = sp.PCA("held-out", standardize=standardize).fit(X).selection_.values
    assert len(curve) == 12
    for r in (0, 1, 4, 11):
        covariance = np.cov(kept / scale, rowvar=False, bias=True)
        values, vectors = np.linalg.eigh(covariance)
        values = np.where(np.arange(12) < 12 - r, values[: 12 - r].mean(), values)
        model = (vectors * values) @ vectors.T * np.outer(scale, scale)
        assert curve[r] == pytest.approx(multivariate_normal(kept.mean(axis=0), model).logpdf(X[held]).mean(), rel=1e-9)


def test_planted_ranks_are_found_and_the_fit_is_that_of_all_rows(tmp_path: Path) -> None:
    found = [sp.PCA("held-out").fit(planted(seed=seed)).n_components_ for seed in range(10)]
    assert np.mean(np.array(found) == 4) >= 0.6  # like cross-validation, it sometimes takes one too many
    assert min(found) == 4
    X = planted()
    pca = sp.PCA("held-out").fit(X)
    np.testing.assert_allclose(pca.explained_variance_, decomposition.PCA(pca.n_components_).fit(X).explained_variance_, rtol=1e-12)
    assert pca.n_passes_ == 1
    lazy = sp.PCA("held-out", memory="1GiB").fit(da.from_array(X, chunks=(99, 5)))
    np.testing.assert_allclose(lazy.selection_.values, pca.selection_.values, rtol=1e-10)
    pca.save(tmp_path / "m.zarr")
    again = sp.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(again.selection_.values, pca.selection_.values)
    assert "held-out" in again.selection_.reason


def test_degenerate_rows() -> None:
    with pytest.raises(DataError, match="too few rows to hold some out"):
        sp.PCA("held-out").fit(np.eye(3))
    with pytest.raises(DataError, match="too few rows to hold some out"):  # equal rows stay together
        sp.PCA("held-out").fit(np.ones((2000, 3)))
    X = planted(500, 6, 2)
    X[:, 3] = 7.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(sp.PCA("held-out", standardize=True).fit(X).selection_.values).all()
    with pytest.raises(UsageError, match="use 'covariance'"):
        sp.PCA("held-out", solver="sketch").fit(X)
