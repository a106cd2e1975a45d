from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.decomposition import FactorAnalysis

from streampca.errors import DataError, UsageError
from streampca.models.latent import LatentModel
from streampca.solvers.factor_analysis import factor_em, factor_em_by_passes, factor_profile, factor_step
from streampca.solvers.likelihood import NOISE_FLOOR, Parameters, Passes, by_matrix, canonical
from streampca.solvers.ppca import closed_form, closed_form_model, em, em_step, subspace
from streampca.solvers.ppca_missing import em_missing


def rows(n: int = 300, d: int = 8, r: int = 2, seed: int = 0, noise: Any = 0.5, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, r)) * np.linspace(3, 1.5, r) @ rng.normal(size=(r, d)) + rng.normal(size=(n, d)) * np.sqrt(noise) + offset


def with_holes(X: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    X = X.copy()
    X[np.random.default_rng(seed + 1).random(X.shape) < share] = np.nan
    return X


class Loop:
    """Runs passes over an array, and remembers their names."""

    def __init__(self, X: np.ndarray, weights: np.ndarray | None = None) -> None:
        self.X, self.weights = X, weights
        self.passes: list[str] = []

    def __call__(self, name: str, statistic: Any) -> Any:
        self.passes.append(name)
        for start in range(0, len(self.X), 70):
            part = slice(start, start + 70)
            statistic.update(self.X[part], None if self.weights is None else self.weights[part])
        return statistic


def covariance(X: np.ndarray) -> np.ndarray:
    centred = X - X.mean(axis=0)
    return centred.T @ centred / len(X)


def in_memory(X: np.ndarray) -> Any:
    return by_matrix(covariance(X), X.mean(axis=0), len(X))


def exact(X: np.ndarray, r: int) -> LatentModel:
    values, vectors = np.linalg.eigh(covariance(X))
    return closed_form_model(np.maximum(values[::-1], 0), vectors.T[::-1], float(values.sum()), r, X.mean(axis=0), len(X))


def same(found: LatentModel, wanted: LatentModel, tolerance: float) -> None:
    size = np.abs(wanted.covariance()).max()
    np.testing.assert_allclose(found.W @ found.W.T, wanted.W @ wanted.W.T, atol=tolerance * size)
    np.testing.assert_allclose(found.noise, wanted.noise, rtol=tolerance)
    np.testing.assert_allclose(found.loglike[-1], wanted.loglike[-1], rtol=tolerance)
    np.testing.assert_allclose(found.mean, wanted.mean, atol=tolerance * np.sqrt(size) + 1e-14 * np.abs(wanted.mean).max())


def never_falls(model: LatentModel, slack: float = 1e-10) -> None:
    L = model.loglike
    assert (np.diff(L) >= -slack * np.maximum(np.abs(L[1:]), model.n_samples * model.n_features)).all(), np.diff(L).min()


# ------------------------------------------------------------------------------------------------------- closed form


@pytest.mark.parametrize("r", [1, 3, 7])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_closed_form_has_the_likelihood_of_scipy(r: int, offset: float) -> None:
    X = rows(offset=offset)
    model = exact(X, r)
    expected = multivariate_normal(model.mean, model.covariance()).logpdf(X).sum()
    assert model.loglike[-1] == pytest.approx(expected, rel=1e-10)
    assert model.score_samples(X).sum() == pytest.approx(expected, rel=1e-10)


def test_the_closed_form_is_a_maximum() -> None:
    X = rows()
    model = exact(X, 2)
    rng = np.random.default_rng(0)
    for _ in range(20):
        W = model.W + 0.02 * rng.normal(size=model.W.shape)
        other = LatentModel(W, model.mean + 0.01 * rng.normal(size=8), model.noise * np.exp(0.02 * rng.normal()), 300)
        assert other.score_samples(X).sum() < model.loglike[-1]


def test_a_truncated_spectrum_gives_the_same() -> None:
    values, vectors = np.linalg.eigh(covariance(rows()))
    whole = closed_form(values[::-1], vectors.T[::-1], values.sum(), 3)
    part = closed_form(values[::-1][:3], vectors.T[::-1][:3], values.sum(), 3)
    np.testing.assert_allclose(part[0], whole[0], rtol=1e-10)
    assert part[1] == pytest.approx(whole[1], rel=1e-10)


def test_as_many_components_as_features() -> None:
    X = rows()
    model = exact(X, 8)
    assert model.noise == 0
    np.testing.assert_allclose(model.covariance(), covariance(X), atol=1e-12)
    expected = multivariate_normal(X.mean(axis=0), covariance(X)).logpdf(X).sum()
    assert model.loglike[-1] == pytest.approx(expected, rel=1e-11)
    assert model.score_samples(X).sum() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "r"), [(4, 3), (4, 5), (1, 1)])
def test_rows_that_leave_no_noise(n: int, r: int) -> None:
    X = rows(n)
    model = exact(X, r)
    assert model.noise == 0
    assert model.loglike[-1] == np.inf
    np.testing.assert_allclose(model.reconstruct(model.transform(X)), X, atol=1e-6)
    with pytest.raises(UsageError, match="fit fewer"):
        model.score_samples(X)


def test_fewer_rows_than_features() -> None:
    X = rows(10, 30)
    model = exact(X, 2)
    assert model.loglike[-1] == pytest.approx(multivariate_normal(model.mean, model.covariance()).logpdf(X).sum(), rel=1e-10)


def test_the_columns_of_W_are_orthogonal_ordered_and_signed() -> None:
    X = rows(r=4)
    for model in (exact(X, 4), subspace(in_memory(X), 8, 4), em_missing(Loop(with_holes(X, 0.1)), 8, 4, max_iter=20)):
        gram = model.W.T @ model.W
        np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-9 * gram[0, 0])
        assert (np.diff(gram.diagonal()) <= 0).all()
        assert (model.W[np.abs(model.W).argmax(axis=0), range(4)] > 0).all()


def test_a_canonical_W_is_the_same_model() -> None:
    rng = np.random.default_rng(0)
    W, noise = rng.normal(size=(7, 3)), rng.uniform(0.1, 2, 7)
    turned = canonical(W, noise)
    np.testing.assert_allclose(turned @ turned.T, W @ W.T, atol=1e-12)
    gram = turned.T @ (turned / noise[:, None])
    np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-12)
    np.testing.assert_allclose(canonical(W @ np.linalg.qr(rng.normal(size=(3, 3)))[0], noise), turned, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- dense EM


def test_one_fused_step_is_one_step_row_by_row() -> None:
    X = rows()
    centred, d = X - X.mean(axis=0), 8
    rng = np.random.default_rng(0)
    W, s2 = rng.normal(size=(d, 2)), 0.8
    M = W.T @ W + s2 * np.eye(2)
    z = centred @ W @ np.linalg.inv(M)
    second = len(X) * s2 * np.linalg.inv(M) + z.T @ z
    W_new = centred.T @ z @ np.linalg.inv(second)
    s2_new = ((centred**2).sum() - 2 * np.sum(z * (centred @ W_new)) + np.trace(second @ W_new.T @ W_new)) / centred.size
    S = covariance(X)
    found = em_step(S @ W, float(S.trace()), W, s2, d)
    np.testing.assert_allclose(found[0], W_new, rtol=1e-10)
    assert found[1] == pytest.approx(s2_new, rel=1e-12)
    expected = multivariate_normal(X.mean(axis=0), W @ W.T + s2 * np.eye(d)).logpdf(X).mean()
    assert found[2] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("r", [1, 3, 7])
def test_em_finds_the_closed_form(r: int) -> None:
    X = rows(d=8, r=3)
    model = em(in_memory(X), 8, r, tol=-1.0, max_iter=3000)
    same(model, exact(X, r), 1e-6)
    never_falls(model, 1e-12)


def test_em_makes_a_pass_per_iteration_and_one_to_look() -> None:
    X, run = rows(), None
    run = Loop(X)
    model = em(Passes(run, np.zeros(8)), 8, 2, tol=0.0, max_iter=5)
    assert run.passes == [f"products-{i}" for i in range(1, 7)]
    assert (model.n_iter, len(model.loglike), model.converged) == (5, 6, False)
    assert model.loglike[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-10)
    start = Parameters(model.W, model.mean, model.noise)
    assert em(in_memory(X), 8, 2, start=start, max_iter=1).loglike[0] == pytest.approx(model.loglike[-1], rel=1e-12)


# ---------------------------------------------------------------------------------------------------------- subspaces


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 60), d=st.integers(1, 40), r=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_a_subspace_never_lowers_the_likelihood_and_ends_at_the_best(n: int, d: int, r: int, seed: int) -> None:
    r = min(r, d)
    X = rows(n, d, 1 + seed % 5, seed, offset=seed % 1000)
    model, wanted = subspace(in_memory(X), d, r, tol=1e-13, seed=seed), exact(X, r)
    assert model.converged
    if np.isinf(wanted.loglike[-1]):
        assert np.isinf(model.loglike[-1])
        return
    never_falls(model, 1e-12)
    assert model.loglike[-1] == pytest.approx(wanted.loglike[-1], rel=1e-8, abs=1e-8 * n * d)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_subspace_finds_the_closed_form(offset: float) -> None:
    X = rows(200, 120, 5, offset=offset)
    run = Loop(X)
    model = subspace(Passes(run, X[0]), 120, 5, tol=1e-12, seed=0)
    same(model, exact(X, 5), 1e-6)
    assert model.n_iter == len(run.passes) == len(model.loglike) <= 8
    assert model.loglike[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-9)


@pytest.mark.parametrize("decay", [None, 1.0, 2.0])
def test_a_good_start_needs_four_passes(decay: float | None) -> None:
    rng = np.random.default_rng(0)
    X = rows(400, 300, 8) if decay is None else rng.normal(size=(400, 300)) * np.arange(1, 301.0) ** (-decay / 2)
    sketch = covariance(X) @ rng.normal(size=(300, 20))
    model = subspace(in_memory(X), 300, 8, start=sketch, seed=0)
    assert model.converged
    assert model.n_iter <= 4
    assert model.loglike[-1] == pytest.approx(exact(X, 8).loglike[-1], rel=1e-5)
    never_falls(model, 1e-13)


def test_a_poor_subspace_is_left_behind() -> None:
    """Directions below the noise are no components yet; they make room for better ones."""
    X = rows(300, 60, 2)
    worst = np.linalg.eigh(covariance(X))[1][:, :14]
    model = subspace(in_memory(X), 60, 4, start=worst + 1e-9 * np.random.default_rng(0).normal(size=worst.shape), tol=1e-12)
    never_falls(model, 1e-13)
    same(model, exact(X, 4), 1e-5)


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        subspace(Passes(Loop(np.empty((0, 3))), np.zeros(3)), 3, 1)


def test_weights_count_rows() -> None:
    X, weights = rows(), np.random.default_rng(0).integers(0, 4, 300).astype(float)
    weighted = subspace(Passes(Loop(X, weights), X[0]), 8, 2, tol=1e-13)
    repeated = exact(np.repeat(X, weights.astype(int), axis=0), 2)
    same(weighted, repeated, 1e-8)
    assert weighted.n_samples == weights.sum()
    holes = with_holes(X, 0.3)
    one = em_missing(Loop(holes, weights), 8, 2, max_iter=10, seed=0)
    other = em_missing(Loop(np.repeat(holes, weights.astype(int), axis=0)), 8, 2, max_iter=10, seed=0)
    same(one, other, 1e-9)


# ----------------------------------------------------------------------------------------------------- missing entries


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(2, 60),
    d=st.integers(1, 15),
    r=st.integers(1, 15),
    share=st.floats(0.0, 0.95),
    per_feature=st.booleans(),
    expand=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_observed_likelihood_never_falls(n: int, d: int, r: int, share: float, per_feature: bool, expand: bool, seed: int) -> None:
    X = with_holes(rows(n, d, 1 + seed % 4, seed), share, seed)
    X[seed % n] = np.where(np.isnan(X[seed % n]), 0.3, X[seed % n])  # no column without a value
    if not (np.nanvar(X, axis=0) > 0).any():
        return
    model = em_missing(Loop(X), d, min(r, d), per_feature_noise=per_feature, expand=expand, tol=0.0, max_iter=25, seed=seed)
    least = np.min(model.noise) < 1e-7 * np.nanvar(X, axis=0).mean()  # where rounding shows
    never_falls(model, 1e-6 if least else 1e-10)
    assert np.isfinite(model.loglike).all()
    assert model.loglike[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-6, abs=1e-6 * n * d)


@pytest.mark.parametrize("r", [1, 2])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_without_missing_entries_it_is_the_dense_answer(r: int, offset: float) -> None:
    X = rows(offset=offset)
    model = em_missing(Loop(X), 8, r, tol=-1.0, max_iter=500, seed=0)
    same(model, exact(X, r), 1e-8)


@pytest.mark.parametrize("r", [7, 8])
def test_components_that_are_noise_take_em_long(r: int) -> None:
    X = rows()
    model = em_missing(Loop(X), 8, r, tol=1e-9, max_iter=500, seed=0)
    never_falls(model)
    assert model.loglike[-1] == pytest.approx(exact(X, r).loglike[-1], rel=1e-3)


def test_plain_em_follows_the_dense_path() -> None:
    X = rows()
    start = Parameters(np.random.default_rng(0).normal(size=(8, 2)), X.mean(axis=0), 0.9)
    dense = em(in_memory(X), 8, 2, start=start, tol=0.0, max_iter=15)
    missing = em_missing(Loop(X), 8, 2, start=start, expand=False, tol=0.0, max_iter=15)
    np.testing.assert_allclose(missing.loglike, dense.loglike, rtol=1e-9)
    np.testing.assert_allclose(missing.W, dense.W, atol=1e-8)


def test_expanding_parameters_takes_fewer_iterations_to_the_same_maximum() -> None:
    X = with_holes(rows(500, 20, 3), 0.2)
    plain, fast = (em_missing(Loop(X), 20, 3, expand=expand, tol=1e-10, max_iter=3000, seed=0) for expand in (False, True))
    assert fast.n_iter < plain.n_iter / 3
    assert fast.loglike[-1] == pytest.approx(plain.loglike[-1], rel=1e-6)


# Log-likelihoods and imputation errors (root mean square) of ppca_rs 0.5.1, from the same start, after 1, 2, 3, 5 and 10 iterations.
PEER = {
    0.05: ([-45078.54, -31940.05, -29904.85, -29833.34, -29791.25], [0.75182, 0.72838, 0.72770, 0.72764, 0.72765]),
    0.2: ([-38095.76, -27875.90, -25647.49, -25544.90, -25526.37], [0.84821, 0.75416, 0.75261, 0.75258, 0.75257]),
    0.5: ([-24591.05, -20604.14, -17771.58, -17078.86, -17060.71], [1.47974, 0.89405, 0.80919, 0.79883, 0.79849]),
}


@pytest.mark.parametrize("share", PEER)
def test_after_as_many_iterations_the_likelihood_is_above_a_peers(share: float) -> None:
    rng = np.random.default_rng(7)
    W = rng.normal(size=(30, 3)) * np.array([2, 1.5, 1])
    X = rng.normal(size=(800, 3)) @ W.T + 0.7 * rng.normal(size=(800, 30)) + 3
    holes = X.copy()
    holes[rng.random(X.shape) < share] = np.nan
    start = Parameters(rng.normal(size=(30, 3)), np.nanmean(holes, axis=0), 1.0)
    model = em_missing(Loop(holes), 30, 3, start=start, tol=0.0, max_iter=10)
    theirs, errors = PEER[share]
    iterations = np.minimum([1, 2, 3, 5, 10], len(model.loglike) - 1)
    assert (model.loglike[iterations] > theirs).all()
    error = np.sqrt(np.mean((model.impute(holes) - X)[np.isnan(holes)] ** 2))
    assert error == pytest.approx(errors[-1], rel=2e-3)  # both are at the maximum, or close


@pytest.mark.parametrize("per_feature", [False, True])
def test_the_maximum_is_stationary(per_feature: bool) -> None:
    X = with_holes(rows(200, 6, 2), 0.3)
    model = em_missing(Loop(X), 6, 2, per_feature_noise=per_feature, tol=1e-15, max_iter=5000, seed=0)

    def total(W: np.ndarray, mean: np.ndarray, noise: Any) -> float:
        return float(LatentModel(W, mean, noise, 200).score_samples(X).sum())

    rng, step = np.random.default_rng(0), 1e-5
    for _ in range(10):
        dW, dm, dn = rng.normal(size=model.W.shape), rng.normal(size=6), rng.normal(size=np.shape(model.noise))
        sides = [
            total(
                model.W + s * dW, model.mean + s * dm, model.noise * np.exp(s * dn) if per_feature else float(model.noise * np.exp(s * dn))
            )
            for s in (step, -step)
        ]
        assert abs(sides[0] - sides[1]) / (2 * step) < 0.05
        assert max(sides) < model.loglike[-1] + 1e-6


def test_large_offsets_change_nothing() -> None:
    X = np.round(with_holes(rows(), 0.3) * 1024) / 1024
    near, far = (em_missing(Loop(each), 8, 2, tol=0.0, max_iter=15, seed=0) for each in (X, X + 1e6))
    np.testing.assert_allclose(far.loglike, near.loglike, rtol=1e-9)
    np.testing.assert_allclose(far.W, near.W, atol=1e-6)
    np.testing.assert_allclose(far.mean - 1e6, near.mean, atol=1e-6)


def test_imputation_is_close_to_that_of_the_true_model() -> None:
    truth = LatentModel(np.random.default_rng(0).normal(size=(30, 3)), np.arange(30.0), 0.25, 1)
    X = truth.sample(1500, 1)
    holes = with_holes(X, 0.3)
    model = em_missing(Loop(holes), 30, 3, tol=1e-8, seed=0)
    missing = np.isnan(holes)
    found, best = (np.mean((each.impute(holes) - X)[missing] ** 2) for each in (model, truth))
    assert found < 1.02 * best
    assert model.noise == pytest.approx(0.25, rel=0.02)
    _, variances = model.impute(holes, return_variance=True)
    assert variances[missing].mean() == pytest.approx(found, rel=0.03)


def test_factor_analysis_with_missing_entries_finds_the_noise_of_each_feature() -> None:
    noise = np.linspace(0.2, 2, 12)
    truth = LatentModel(np.random.default_rng(0).normal(size=(12, 2)), np.zeros(12), noise, 1)
    X = with_holes(truth.sample(4000, 1), 0.2)
    model = em_missing(Loop(X), 12, 2, per_feature_noise=True, tol=1e-8, seed=0)
    np.testing.assert_allclose(model.noise, noise, rtol=0.15)
    np.testing.assert_allclose(model.covariance(), truth.covariance(), atol=0.4)
    assert not model.isotropic


def test_constant_columns_and_empty_rows() -> None:
    X = with_holes(rows(), 0.3)
    X[:, 3] = np.where(np.isnan(X[:, 3]), np.nan, 7.0)
    X[[5, 6, 100]] = np.nan
    for per_feature in (False, True):
        model = em_missing(Loop(X), 8, 2, per_feature_noise=per_feature, seed=0)
        never_falls(model, 1e-9)
        assert (model.n_samples, model.n_skipped) == (297, 3)
        assert model.mean[3] == pytest.approx(7.0, abs=0.05)
        assert np.isfinite(model.impute(X)).all()
    np.testing.assert_allclose(model.impute(X)[:, 3], 7.0, atol=1e-3)


def test_rows_on_a_plane_end_at_the_least_noise() -> None:
    X = with_holes(rows(200, 10, 2, noise=0.0), 0.2)
    model = em_missing(Loop(X), 10, 2, tol=1e-9, max_iter=500, seed=0)
    never_falls(model, 1e-9)
    assert model.noise >= NOISE_FLOOR * np.nanvar(X, axis=0).mean() * 0.999
    assert model.noise < 1e-6
    np.testing.assert_allclose(model.impute(X), rows(200, 10, 2, noise=0.0), atol=1e-2)


def test_a_column_without_values_is_named() -> None:
    X = rows()
    X[:, [2, 5]] = np.nan
    with pytest.raises(DataError, match=r"column 2, and 1 more: no row has a value"):
        em_missing(Loop(X), 8, 2)
    with pytest.raises(DataError, match=r"column 2 \('c'\), and 1 more"):
        em_missing(Loop(X), 8, 2, names="abcdefgh")
    with pytest.raises(DataError, match="all columns are constant"):
        em_missing(Loop(np.ones((10, 3))), 3, 1)


def test_passes_and_iterations() -> None:
    X, run = with_holes(rows(), 0.2), None
    run = Loop(X)
    model = em_missing(run, 8, 2, tol=0.0, max_iter=3, seed=0)
    assert run.passes == ["moments", "em-1", "em-2", "em-3", "em-4"]
    assert (model.n_iter, len(model.loglike), model.converged) == (3, 4, False)
    again = em_missing(Loop(X), 8, 2, max_iter=200, start=Parameters(model.W, model.mean, model.noise))
    assert again.loglike[0] == pytest.approx(model.loglike[-1], rel=1e-12)
    assert again.converged
    with pytest.raises(UsageError, match="max_iter is 0"):
        em_missing(Loop(X), 8, 2, max_iter=0)


def test_a_seed_fixes_the_answer() -> None:
    X = with_holes(rows(), 0.2)
    one, other = (em_missing(Loop(X), 8, 2, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.W, other.W)


# --------------------------------------------------------------------------------------------------- factor analysis


FA_CASES = [(500, 12, 3), (300, 40, 4), (40, 60, 2)]


@pytest.mark.parametrize(("n", "d", "r"), FA_CASES)
@pytest.mark.parametrize("how", ["profile", "em", "passes"])
def test_factor_analysis_is_scikit_learns(n: int, d: int, r: int, how: str) -> None:
    X = rows(n, d, r, noise=np.random.default_rng(1).uniform(0.2, 2, d), offset=3.0)
    S, mean = covariance(X), X.mean(axis=0)
    if how == "profile":
        model = factor_profile(S, mean, n, r)
    elif how == "em":
        model = factor_em(by_matrix(S, mean, n), S.diagonal(), r, tol=1e-9, max_iter=2000, seed=0)
    else:
        model = factor_em_by_passes(Loop(X), d, r, tol=1e-9, max_iter=2000, seed=0)
    other = FactorAnalysis(r, tol=1e-8, max_iter=5000, svd_method="lapack").fit(X)
    assert model.converged
    assert model.loglike[-1] == pytest.approx(other.score_samples(X).sum(), rel=1e-7 if how == "profile" else 1e-6)
    assert model.loglike[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-9)
    np.testing.assert_allclose(model.noise, other.noise_variance_, rtol=1e-3 if how == "profile" else 1e-2)
    np.testing.assert_allclose(model.covariance(), other.get_covariance(), atol=1e-2 * np.abs(S).max())
    never_falls(model, 1e-12)
    gram = model.W.T @ (model.W / np.asarray(model.noise)[:, None])
    np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-8 * gram[0, 0])


def test_few_passes_are_enough_for_many_features() -> None:
    run = Loop(rows(400, 200, 4, noise=np.random.default_rng(1).uniform(0.2, 2, 200)))
    model = factor_em_by_passes(run, 200, 4, seed=0)
    assert model.converged
    assert run.passes[0] == "moments"
    assert len(run.passes) <= 12


def test_a_factor_step_without_expansion_is_plain_em() -> None:
    X = rows()
    S, mean = covariance(X), X.mean(axis=0)
    start = Parameters(np.random.default_rng(0).normal(size=(8, 2)), mean, np.full(8, 0.9))
    dense = factor_em(by_matrix(S, mean, 300), S.diagonal(), 2, start=start, expand=False, tol=0.0, max_iter=10)
    missing = em_missing(Loop(X), 8, 2, start=start, per_feature_noise=True, expand=False, tol=0.0, max_iter=10)
    np.testing.assert_allclose(missing.loglike, dense.loglike, rtol=1e-9)
    np.testing.assert_allclose(missing.noise, dense.noise, rtol=1e-7)
    W, noise = start.W, np.asarray(start.noise)
    loglike = factor_step(S @ (W / noise[:, None]), S.diagonal(), W, noise)[2]
    assert loglike == pytest.approx(multivariate_normal(mean, W @ W.T + np.diag(noise)).logpdf(X).mean(), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(3, 60), d=st.integers(1, 15), r=st.integers(1, 15), expand=st.booleans(), seed=st.integers(0, 10**6))
def test_the_likelihood_of_factor_analysis_never_falls(n: int, d: int, r: int, expand: bool, seed: int) -> None:
    r = min(r, d)
    X = rows(n, d, 1 + seed % 4, seed)
    S = covariance(X)
    model = factor_em(by_matrix(S, X.mean(axis=0), n), S.diagonal(), r, expand=expand, tol=0.0, max_iter=30, seed=seed)
    never_falls(model, 1e-9)
    best = factor_profile(S, X.mean(axis=0), n, r)
    never_falls(best, 1e-9)


def test_scales_of_columns_do_not_matter() -> None:
    X = rows(300, 10, 2)
    scales = 10.0 ** np.arange(-5, 5)
    one, other = (factor_profile(covariance(each), each.mean(axis=0), 300, 2) for each in (X, X * scales))
    np.testing.assert_allclose(np.asarray(other.noise) / scales**2, one.noise, rtol=1e-5)
    assert other.loglike[-1] == pytest.approx(one.loglike[-1] - 300 * np.log(scales).sum(), rel=1e-9)


def test_constant_columns_have_the_least_noise() -> None:
    X = rows()
    X[:, 2] = 5.0
    for model in (factor_profile(covariance(X), X.mean(axis=0), 300, 2), factor_em_by_passes(Loop(X), 8, 2, seed=0)):
        assert not model.W[2].any()
        assert 0 < np.asarray(model.noise)[2] < 1e-4
        assert np.isfinite(model.loglike).all()
    with pytest.raises(DataError, match="all columns are constant"):
        factor_profile(np.zeros((3, 3)), np.zeros(3), 10, 1)
