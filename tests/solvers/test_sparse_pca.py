"""Sparse PCA from sums: against PCA, the elastic net's own conditions, scikit-learn, and planted supports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet

from streampca.errors import DataError
from streampca.solvers.covariance import eigenpairs
from streampca.solvers.sparse_pca import (
    Effort,
    ElasticNets,
    Penalty,
    adjusted_variances,
    model_of,
    nearest_orthonormal,
    solve,
    sparse_components,
)
from streampca.solvers.spectrum import Spectrum, fix_signs
from streampca.statistics import Scatter


def scatter_of(X: np.ndarray) -> Scatter:
    scatter = Scatter(X.shape[1])
    scatter.update(X)
    return scatter


def spectrum_of(X: np.ndarray) -> Spectrum:
    return eigenpairs(scatter_of(X), np.ones(X.shape[1]), X.shape[1])


def planted(n: int = 1000, d: int = 40, *, size: int = 6, noise: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of three components, each of ``size`` columns of its own, and these components."""
    rng = np.random.default_rng([seed, n, d])
    V = np.zeros((3, d))
    for j in range(3):
        V[j, j * size : (j + 1) * size] = rng.choice([-1, 1], size) * rng.uniform(0.7, 1.3, size)
    V = fix_signs(V / np.linalg.norm(V, axis=1, keepdims=True))
    return rng.standard_normal((n, 3)) * [4.0, 3.0, 2.0] @ V + noise * rng.standard_normal((n, d)) + 1e3, V


def random_rows(n: int = 300, d: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, n, d])
    return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) - 5


# --- without a penalty -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.01, 10.0])
@pytest.mark.parametrize("shape", [(300, 12), (8, 12), (50, 1), (2, 3)], ids=str)
def test_no_penalty_is_pca(shape: tuple[int, int], ridge: float) -> None:
    X = random_rows(*shape)
    k = min(shape[0] - 1, shape[1])
    model = model_of(scatter_of(X), k, Penalty(0.0, ridge), Effort())
    _, L, V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(model.components, fix_signs(V[:k]), atol=1e-6)
    np.testing.assert_allclose(model.explained_variance, L[:k] ** 2 / (len(X) - 1), rtol=1e-9)
    assert model.total_variance == pytest.approx(X.var(axis=0, ddof=1).sum())
    assert model.n_iter == 2


def test_a_penalty_that_vanishes_is_pca_too() -> None:
    X = random_rows()
    V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2]
    model = model_of(scatter_of(X), 4, Penalty(1e-9), Effort(tol=1e-9))
    np.testing.assert_allclose(model.components, fix_signs(V[:4]), atol=1e-6)


# --- the regressions ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6), alpha=st.floats(0.01, 3), ridge=st.floats(0.001, 1), k=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_each_regression_meets_the_conditions_of_its_minimum(seed: int, alpha: float, ridge: float, k: int) -> None:
    X = random_rows(60, 8, seed)
    spectrum = spectrum_of(X)
    unit = spectrum.trace / 8
    A = np.linalg.qr(np.random.default_rng(seed).standard_normal((8, k)))[0]
    B = ElasticNets(spectrum, Penalty(alpha, ridge), unit).solve(A, np.zeros((8, k)))
    S = np.cov(X.T)
    slopes = 2 * S @ (A - B) - 2 * ridge * unit * B  # of the smooth part, downward
    zero = B == 0
    slack = 1e-3 * alpha * unit + 1e-6 * unit
    assert (np.abs(slopes[zero]) <= alpha * unit + slack).all()
    np.testing.assert_allclose(slopes[~zero], alpha * unit * np.sign(B[~zero]), atol=slack + 1e-3 * np.abs(S).max())


def test_a_regression_is_scikit_learns_on_the_rows() -> None:
    X = random_rows()
    centred, n, d = X - X.mean(axis=0), *X.shape
    spectrum = spectrum_of(X)
    unit, alpha, ridge = spectrum.trace / d, 0.3, 0.05
    a = spectrum.vectors[:1].T
    ours = ElasticNets(spectrum, Penalty(alpha, ridge), unit).solve(a, np.zeros((d, 1)))[:, 0]
    # theirs: |z - X b|^2 / 2n + penalty (ratio |b|_1 + (1 - ratio) |b|^2 / 2), ours with 1 / (n - 1)
    first, second = alpha * unit / 2 * (n - 1) / n, ridge * unit * (n - 1) / n
    net = ElasticNet(alpha=first + second, l1_ratio=first / (first + second), fit_intercept=False, tol=1e-12, max_iter=100_000)
    theirs = net.fit(centred, centred @ a[:, 0]).coef_
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert 0 < np.count_nonzero(ours) < d
    np.testing.assert_array_equal(ours == 0, theirs == 0)


@pytest.mark.parametrize("count", [1, 3, 7, 12])
def test_as_many_columns_as_wanted(count: int) -> None:
    model = model_of(scatter_of(random_rows()), 3, Penalty(n_nonzero=count), Effort(tol=1e-4, max_iter=2000))
    assert (np.count_nonzero(model.components, axis=1) <= count).all()
    assert np.count_nonzero(model.components[0]) == count
    np.testing.assert_allclose(np.linalg.norm(model.components, axis=1), 1)


def test_one_column_is_the_one_of_most_variance() -> None:
    X = np.random.default_rng(0).standard_normal((500, 5)) * [1, 5, 1, 3, 1]
    model = model_of(scatter_of(X), 2, Penalty(n_nonzero=1), Effort())
    np.testing.assert_array_equal(model.components, np.eye(5)[[1, 3]])


# --- planted components ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [Penalty(0.3), Penalty(1.0), Penalty(0.2, 0.01), Penalty(n_nonzero=6)], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_support_is_found_exactly(penalty: Penalty, seed: int) -> None:
    X, V = planted(seed=seed)
    model = model_of(scatter_of(X), 3, penalty, Effort())
    np.testing.assert_array_equal(model.components != 0, V != 0)
    assert ((model.components * V).sum(axis=1) > 0.97).all()


def test_more_penalty_means_fewer_columns() -> None:
    X, _ = planted(noise=2.0)
    counts = [np.count_nonzero(model_of(scatter_of(X), 3, Penalty(alpha), Effort()).components) for alpha in (0.0, 0.02, 0.1, 0.4, 1.2)]
    assert counts[0] == 120
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 5


def test_neither_the_unit_nor_repeated_rows_matter() -> None:
    X, _ = planted(200, noise=1.0)
    model = model_of(scatter_of(X), 3, Penalty(0.2), Effort())
    for other in (X * 1e-6, X * 1e9, np.repeat(X, 3, axis=0)):
        same = model_of(scatter_of(other), 3, Penalty(0.2), Effort())
        np.testing.assert_allclose(same.components, model.components, atol=5e-3 if len(other) > 200 else 1e-7)


# --- variances ---------------------------------------------------------------------------------------------------


def test_adjusted_variances_are_those_of_the_scores_qr() -> None:
    X, _ = planted(noise=1.0)
    model = model_of(scatter_of(X), 3, Penalty(0.3), Effort())
    R = np.linalg.qr((X - X.mean(axis=0)) @ model.components.T, mode="r")
    np.testing.assert_allclose(model.explained_variance, np.diag(R) ** 2 / (len(X) - 1), rtol=1e-9)
    assert model.explained_variance.sum() <= spectrum_of(X).variances[:3].sum()


def test_a_repeated_component_explains_nothing_more() -> None:
    spectrum = spectrum_of(random_rows())
    twice = np.repeat(spectrum.vectors[:1], 2, axis=0)
    np.testing.assert_allclose(adjusted_variances(spectrum, twice), [spectrum.variances[0], 0], atol=1e-10)


# --- hard data ---------------------------------------------------------------------------------------------------


def test_constant_columns_and_equal_columns() -> None:
    X, _ = planted()
    X[:, -1] = 7.0
    X[:, -2] = X[:, 0]
    model = model_of(scatter_of(X), 3, Penalty(0.5), Effort())
    assert (model.components[:, -1] == 0).all()
    assert model.components[0, 0] == pytest.approx(model.components[0, -2], rel=1e-3)  # the ridge shares
    counted = model_of(scatter_of(X), 3, Penalty(n_nonzero=5), Effort())
    assert (np.count_nonzero(counted.components, axis=1) <= 5).all()


def test_no_variance_at_all() -> None:
    with pytest.warns(UserWarning, match="2 of 2 components are zero"):
        model = model_of(scatter_of(np.ones((5, 3))), 2, Penalty(), Effort())
    assert not model.components.any()
    assert not model.transform(np.ones((2, 3))).any()


@pytest.mark.parametrize("penalty", [Penalty(0.0), Penalty(0.1), Penalty(n_nonzero=2)], ids=str)
def test_no_component_beyond_the_rank(penalty: Penalty) -> None:
    X = random_rows(5, 12)
    with pytest.warns(UserWarning, match="of 5 components are zero: the data has no variance left"):
        model = model_of(scatter_of(X), None, penalty, Effort(max_iter=5000, tol=1e-3))
    assert len(model.components) == 5
    assert not model.components[4].any()
    assert model.components[:3].any(axis=1).all()


def test_a_penalty_that_is_too_large_is_told() -> None:
    X, _ = planted()
    with pytest.warns(UserWarning, match=r"3 of 3 components are zero: .* or alpha=1000 is too large \(the last one starts at"):
        model_of(scatter_of(X), 3, Penalty(1000.0), Effort())


def test_too_few_iterations_are_told() -> None:
    X, _ = planted(noise=2.0)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations the components still change by"):
        model_of(scatter_of(X), 3, Penalty(0.1), Effort(max_iter=2))


def test_one_row_has_no_variance() -> None:
    with pytest.raises(DataError, match="at least 2"):
        model_of(scatter_of(np.ones((1, 3))), 1, Penalty(), Effort())


def test_standardised_columns() -> None:
    X, _ = planted()
    scales = np.geomspace(1e-3, 1e3, 40)
    model = model_of(scatter_of(X * scales), 3, Penalty(0.5), Effort(), standardize=True)
    same = model_of(scatter_of((X - X.mean(axis=0)) / X.std(axis=0)), 3, Penalty(0.5), Effort())
    np.testing.assert_allclose(model.components, same.components, atol=1e-6)
    np.testing.assert_allclose(model.scale, (X * scales).std(axis=0))


def test_weights_are_repeated_rows() -> None:
    X, _ = planted(200)
    weights = np.arange(200) % 3
    weighted = Scatter(40)
    weighted.update(X, weights.astype(float))
    model = model_of(weighted, 3, Penalty(0.5), Effort())
    same = model_of(scatter_of(np.repeat(X, weights, axis=0)), 3, Penalty(0.5), Effort())
    np.testing.assert_allclose(model.components, same.components, atol=1e-9)
    np.testing.assert_allclose(model.explained_variance, same.explained_variance, rtol=1e-9)


def test_one_pass() -> None:
    X, V = planted()
    passes = []

    def run(name: str, statistic: Any) -> Any:
        passes.append(name)
        for start in range(0, len(X), 64):
            statistic.update(X[start : start + 64])
        return statistic

    model = solve(40, 3, Penalty(), Effort(), run, precision="float64")
    assert passes == ["scatter"]
    np.testing.assert_array_equal(model.components != 0, V != 0)


def test_transform_is_least_squares() -> None:
    X, _ = planted(100, noise=1.0)
    model = model_of(scatter_of(X), 3, Penalty(0.1), Effort())
    wanted = np.linalg.lstsq(model.components.T, (X - model.mean).T, rcond=None)[0].T
    np.testing.assert_allclose(model.transform(X), wanted, atol=1e-9)
    np.testing.assert_allclose(model.inverse_transform(model.transform(X)), wanted @ model.components + model.mean, atol=1e-9)


def test_the_nearest_orthonormal_columns() -> None:
    rng = np.random.default_rng(0)
    M, before = rng.standard_normal((7, 3)), np.linalg.qr(rng.standard_normal((7, 3)))[0]
    U, _, W = np.linalg.svd(M, full_matrices=False)
    np.testing.assert_allclose(nearest_orthonormal(M, before), U @ W, atol=1e-12)
    M[:, 2] = M[:, 0]  # says nothing of their difference
    found = nearest_orthonormal(M, before)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-12)
    best = np.trace(M.T @ found)
    assert best == pytest.approx(np.linalg.svd(M, compute_uv=False).sum())
    np.testing.assert_allclose(nearest_orthonormal(M + 1e-14 * rng.standard_normal(M.shape), before), found, atol=1e-9)


def test_signs_are_fixed() -> None:
    components = sparse_components(spectrum_of(random_rows()), 4, Penalty(0.2), Effort()).components
    np.testing.assert_array_equal(components, fix_signs(components))
    assert not np.signbit(components[components == 0]).any()
