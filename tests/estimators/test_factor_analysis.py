"""FactorAnalysis against scikit-learn's, scipy's normal density and the truth of generated data, on every path."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning

import streampca as sp
from streampca import FactorAnalysis
from streampca.engine import choose_scheduler
from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.memory import MIB
from streampca.planning import process_baseline
from tests.estimators.planted import planted, stored, with_holes


def noises(d: int) -> np.ndarray:
    return np.random.default_rng(d).uniform(0.3, 2, d)


@pytest.mark.parametrize(("n", "d", "r"), [(1000, 12, 3), (400, 40, 4), (60, 80, 2), (500, 6, 1)])
def test_the_likelihood_and_the_noise_are_scikit_learns(n: int, d: int, r: int) -> None:
    _, X = planted(n, d, r, noise=noises(d))
    model = FactorAnalysis(r).fit(X)
    theirs = decomposition.FactorAnalysis(r, tol=1e-8, max_iter=5000, svd_method="lapack").fit(X)
    assert (model.solver_, model.n_passes_, model.converged_) == ("profile", 1, True)
    assert model.score(X) == pytest.approx(theirs.score(X), rel=1e-6)
    assert model.loglike_[-1] == pytest.approx(n * theirs.score(X), rel=1e-6)
    np.testing.assert_allclose(model.noise_variance_, theirs.noise_variance_, rtol=1e-2)
    np.testing.assert_allclose(model.get_covariance(), theirs.get_covariance(), atol=1e-3 * np.abs(theirs.get_covariance()).max())
    np.testing.assert_allclose(model.mean_, theirs.mean_)
    np.testing.assert_array_equal(model.components_, model.W_.T)
    gram = model.W_.T @ (model.W_ / model.noise_variance_[:, None])
    np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-7 * gram[0, 0])


@pytest.mark.parametrize("d", [600])
def test_wide_data_beyond_the_budget_is_the_same_by_passes(d: int, tmp_path: Path) -> None:
    _, X = planted(900, d, 4, noise=noises(d))
    path = stored(X, tmp_path, "h5")
    reference = FactorAnalysis(4).fit(path)
    model = FactorAnalysis(4, memory=process_baseline() + 70 * MIB).fit(path)
    assert (reference.solver_, model.solver_) == ("profile", "em")
    assert model.converged_
    assert model.n_passes_ <= 14
    assert (np.diff(model.loglike_) >= 0).all()
    assert model.loglike_[-1] == pytest.approx(reference.loglike_[-1], rel=1e-5)
    np.testing.assert_allclose(model.noise_variance_, reference.noise_variance_, rtol=1e-2)


@pytest.mark.parametrize("rotation", ["varimax", "quartimax"])
def test_rotations_are_scikit_learns(rotation: Any) -> None:
    _, X = planted(1000, 10, 3, noise=noises(10))
    plain, turned = FactorAnalysis(3).fit(X), FactorAnalysis(3, rotation=rotation).fit(X)
    theirs = decomposition.FactorAnalysis(3, rotation=rotation, tol=1e-8, max_iter=5000, svd_method="lapack").fit(X)
    np.testing.assert_allclose(turned.get_covariance(), plain.get_covariance(), atol=1e-10)
    assert turned.score(X) == pytest.approx(plain.score(X), rel=1e-12)
    ours, other = np.abs(turned.components_), np.abs(theirs.components_)
    assert min(np.abs(ours[list(order)] - other).max() for order in permutations(range(3))) < 2e-2
    sizes = np.linalg.norm(turned.W_, axis=0)
    assert (np.diff(sizes) <= 0).all()


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_likelihoods_are_those_of_scipy(share: float) -> None:
    _, X = planted(60, 6, 2, noise=noises(6))
    X = with_holes(X, share)
    model = FactorAnalysis(2, tol=1e-4).fit(X)
    C = model.get_covariance()
    seen = ~np.isnan(X)
    expected = [multivariate_normal(model.mean_[o], C[np.ix_(o, o)]).logpdf(x[o]) if o.any() else 0.0 for x, o in zip(X, seen, strict=True)]
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-8, atol=1e-8)
    assert model.loglike_[-1] == pytest.approx(np.sum(expected), rel=1e-8)
    means, covariances = model.posterior(X)
    for x, o, z, K in zip(X, seen, means, covariances, strict=True):
        W, psi = model.W_[o], model.noise_variance_[o]
        wanted = np.linalg.inv(np.eye(2) + W.T @ (W / psi[:, None]))
        np.testing.assert_allclose(K, wanted, atol=1e-9)
        np.testing.assert_allclose(z, wanted @ W.T @ ((x[o] - model.mean_[o]) / psi), atol=1e-9)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_truth_within_statistical_error(share: float) -> None:
    noise = noises(20)
    truth, X = planted(4000, 20, 3, noise=noise)
    holes = with_holes(X, share)
    model = FactorAnalysis(3, tol=1e-8).fit(holes)
    assert model.solver_ == "em-missing"
    assert (np.diff(model.loglike_) >= -1e-9 * np.abs(model.loglike_[-1])).all()
    assert model.loglike_[-1] >= truth.score_samples(holes).sum()
    observed = (~np.isnan(holes)).sum(axis=0)
    assert (np.abs(model.noise_variance_ - noise) < 6 * noise * np.sqrt(2 / observed) * 1.5).all()
    missing = np.isnan(holes)
    found, best = (np.sqrt(np.mean((each.impute(holes) - X)[missing] ** 2)) for each in (model, truth))
    assert found < 1.01 * best


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_same_bits_on_threads_and_on_a_cluster(share: float, tmp_path: Path, two_processes: Client) -> None:
    _, X = planted(1500, 16, 2, noise=noises(16))
    source = sp.open_source(stored(with_holes(X, share) if share else X, tmp_path, "zarr"))
    schedulers = (choose_scheduler(workers=2), choose_scheduler(two_processes))
    one, other = (FactorAnalysis(2, memory="1GiB").fit_source(source, scheduler=each) for each in schedulers)
    for name in ("W_", "mean_", "noise_variance_", "loglike_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_saved_and_loaded(tmp_path: Path) -> None:
    _, X = planted(300, 7, 2, noise=noises(7))
    X = with_holes(X, 0.2)
    model = FactorAnalysis(2, rotation="varimax").fit(X)
    model.save(tmp_path / "m.zarr")
    again = sp.load(tmp_path / "m.zarr")
    assert isinstance(again, FactorAnalysis)
    for name in ("W_", "mean_", "noise_variance_", "loglike_", "components_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    np.testing.assert_array_equal(again.impute(X), model.impute(X))


def test_weights_count_rows() -> None:
    _, X = planted(300, 7, 2, noise=noises(7))
    weights = np.random.default_rng(0).integers(0, 4, 300)
    one, other = FactorAnalysis(2).fit(X, sample_weight=weights), FactorAnalysis(2).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(one.noise_variance_, other.noise_variance_, rtol=1e-4)
    assert one.loglike_[-1] == pytest.approx(other.loglike_[-1], rel=1e-8)


def test_columns_without_values() -> None:
    _, X = planted(300, 6, 2, noise=noises(6))
    X = with_holes(X, 0.1)
    X[:, 0] = np.nan
    with pytest.raises(DataError, match="column 0: no row has a value"):
        FactorAnalysis(2).fit(X)
    model, narrow = FactorAnalysis(2, unobserved="drop").fit(X), FactorAnalysis(2).fit(X[:, 1:])
    np.testing.assert_allclose(model.noise_variance_[1:], narrow.noise_variance_)
    np.testing.assert_allclose(model.score_samples(X), narrow.score_samples(X[:, 1:]), rtol=1e-9)
    assert np.isnan(model.impute(X)[:, 0]).all()


def test_what_is_refused_or_warned_of() -> None:
    _, X = planted(300, 6, 2, noise=noises(6))
    wrong: Any = "oblimin"
    with pytest.raises(UsageError, match="rotation must be None, 'varimax' or 'quartimax'"):
        FactorAnalysis(2, rotation=wrong).fit(X)
    with pytest.warns(ConvergenceWarning, match="after 1 iterations"):
        FactorAnalysis(2, max_iter=1).fit(with_holes(X, 0.2))
    X[7, 5] = -np.inf
    with pytest.raises(NonFiniteError, match="row 7, column 5"):
        FactorAnalysis(2).fit(X)
