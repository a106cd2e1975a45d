from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from streampca.errors import CorruptDataError, NonFiniteError, UsageError
from streampca.models.latent import LatentModel


def model(d: int = 6, r: int = 2, per_feature: bool = False, seed: int = 0, offset: float = 0.0) -> LatentModel:
    rng = np.random.default_rng(seed)
    noise: Any = rng.uniform(0.3, 2, d) if per_feature else 0.7
    return LatentModel(rng.normal(size=(d, r)), rng.normal(size=d) + offset, noise, 100, np.array([-5.0, -3.0]))


def with_holes(rows: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    rows = rows.copy()
    rows[np.random.default_rng(seed).random(rows.shape) < share] = np.nan
    return rows


def conditional(one: LatentModel, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean and covariance of z, and of the missing entries, given the observed ones: by the dense Gaussian formulas."""
    o = ~np.isnan(row)
    C = one.W @ one.W.T + np.diag(one.noise_variances)
    x, Wo = row[o] - one.mean[o], one.W[o]
    gain = np.linalg.solve(C[np.ix_(o, o)], np.c_[Wo, C[np.ix_(o, ~o)]]).T if o.any() else np.zeros((one.n_components + (~o).sum(), 0))
    r = one.n_components
    z, z_covariance = gain[:r] @ x, np.eye(r) - gain[:r] @ Wo
    return z, z_covariance, one.mean[~o] + gain[r:] @ x, C[np.ix_(~o, ~o)] - gain[r:] @ C[np.ix_(o, ~o)]


CASES = [(6, 2), (1, 1), (5, 4), (5, 5), (40, 30)]


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize(("d", "r"), CASES)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_the_log_likelihood_is_scipys(d: int, r: int, per_feature: bool, offset: float) -> None:
    one = model(d, r, per_feature, offset=offset)
    rows = one.sample(30, 1)
    expected = multivariate_normal(one.mean, one.covariance()).logpdf(rows.reshape(30, d))
    np.testing.assert_allclose(one.score_samples(rows), expected, rtol=1e-9, atol=1e-8)
    rows = with_holes(rows, 0.4)
    rows[3] = np.nan
    scores = one.score_samples(rows)
    for row, score in zip(rows, scores, strict=True):
        o = ~np.isnan(row)
        if o.any():
            assert score == pytest.approx(
                multivariate_normal(one.mean[o], one.covariance()[np.ix_(o, o)]).logpdf(row[o]), rel=1e-8, abs=1e-8
            )
        else:
            assert score == 0


@pytest.mark.parametrize("per_feature", [False, True])
@pytest.mark.parametrize(("d", "r"), CASES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.6, 1.0])
def test_posterior_and_imputation_are_the_conditional_gaussian(d: int, r: int, per_feature: bool, share: float) -> None:
    one = model(d, r, per_feature)
    rows = with_holes(one.sample(25, 1), share)
    means, covariances = one.posterior(rows)
    filled, variances = one.impute(rows, return_variance=True)
    assert covariances.shape == ((25, r, r) if np.isnan(rows).any() else (r, r))
    np.testing.assert_array_equal(one.transform(rows), means)
    np.testing.assert_array_equal(one.impute(rows), filled)
    for i, row in enumerate(rows):
        missing = np.isnan(row)
        z, z_covariance, x, x_covariance = conditional(one, row)
        np.testing.assert_allclose(means[i], z, atol=1e-10)
        np.testing.assert_allclose(covariances[i] if covariances.ndim == 3 else covariances, z_covariance, atol=1e-10)
        np.testing.assert_allclose(filled[i, missing], x, atol=1e-10)
        np.testing.assert_allclose(variances[i, missing], x_covariance.diagonal(), atol=1e-10)
        np.testing.assert_array_equal(filled[i, ~missing], row[~missing])
        assert not variances[i, ~missing].any()


@settings(max_examples=40, deadline=None)
@given(d=st.integers(1, 12), r=st.integers(1, 12), share=st.sampled_from([0.0, 0.05, 0.5, 0.95]), seed=st.integers(0, 999))
def test_rows_do_not_know_their_neighbours(d: int, r: int, share: float, seed: int) -> None:
    one = model(d, min(r, d), bool(seed % 2), seed)
    rows = with_holes(one.sample(40, seed), share, seed)
    for name in ("transform", "score_samples", "impute"):
        whole = getattr(one, name)(rows)
        parts = np.concatenate([getattr(one, name)(rows[i : i + 1]) for i in range(40)])
        np.testing.assert_allclose(whole, parts, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", "int32", "bool"])
def test_dtypes(dtype: str) -> None:
    one = model()
    rows = (one.sample(20, 0) * 3).astype(dtype)
    if np.dtype(dtype).kind == "f":
        rows[::3, 1] = np.nan
    filled = one.impute(rows)
    assert filled.dtype == rows.dtype
    observed = ~np.isnan(rows.astype(float))
    assert filled[observed].tobytes() == rows[observed].tobytes()
    assert np.isfinite(filled.astype(float)).all()
    assert one.transform(rows).dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_allclose(one.transform(rows), one.transform(rows.astype(np.float64)), rtol=1e-6, atol=1e-6)
    assert one.inverse_transform(one.transform(rows)).dtype == one.transform(rows).dtype
    assert one.impute(rows) is not rows


@pytest.mark.parametrize("per_feature", [False, True])
def test_covariance_and_precision(per_feature: bool) -> None:
    for r in (1, 3, 5, 6):
        one = model(6, r, per_feature)
        np.testing.assert_allclose(one.precision() @ one.covariance(), np.eye(6), atol=1e-11)


def test_the_two_reconstructions() -> None:
    one = model(7, 3)
    rows = one.sample(10, 0)
    z = one.transform(rows)
    np.testing.assert_allclose(one.inverse_transform(z), z @ one.W.T + one.mean, rtol=1e-13)
    Q = np.linalg.qr(one.W)[0]
    np.testing.assert_allclose(one.reconstruct(z), one.mean + (rows - one.mean) @ Q @ Q.T, rtol=1e-10, atol=1e-12)
    closer = np.linalg.norm(rows - one.reconstruct(z), axis=1) <= np.linalg.norm(rows - one.inverse_transform(z), axis=1)
    assert closer.all()
    empty = LatentModel(np.zeros((3, 1)), np.ones(3), 1.0, 5)
    np.testing.assert_array_equal(empty.reconstruct(empty.transform(np.eye(3))), np.ones((3, 3)))


def test_weighted_reconstruction_of_factor_analysis() -> None:
    one = model(7, 3, per_feature=True)
    rows = one.sample(10, 0)
    weights = np.diag(1 / one.noise_variances)
    z = np.linalg.solve(one.W.T @ weights @ one.W, one.W.T @ weights @ (rows - one.mean).T).T
    np.testing.assert_allclose(one.reconstruct(one.transform(rows)), one.mean + z @ one.W.T, rtol=1e-9)


def test_samples_have_the_mean_and_the_covariance() -> None:
    one = model(4, 2, per_feature=True)
    rows = one.sample(200_000, 3)
    np.testing.assert_array_equal(rows, one.sample(200_000, 3))
    np.testing.assert_allclose(rows.mean(axis=0), one.mean, atol=0.02)
    np.testing.assert_allclose(np.cov(rows.T), one.covariance(), atol=0.05)


def test_imputation_is_as_good_as_it_can_be() -> None:
    one = model(30, 3)
    rows = one.sample(2000, 0)
    holes = with_holes(rows, 0.3, 1)
    filled, variances = one.impute(holes, return_variance=True)
    missing = np.isnan(holes)
    errors = (filled - rows)[missing] ** 2
    assert errors.mean() == pytest.approx(variances[missing].mean(), rel=0.03)  # variances are honest
    assert errors.mean() < 1.3 * one.noise_variances.mean()


# ------------------------------------------------------------------------------------------------------------ no noise


def test_without_noise_the_posterior_is_the_projection() -> None:
    W = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 2)))[0] * [3, 2]
    one = LatentModel(W, np.zeros(6), 0.0, 10)
    rows = np.random.default_rng(1).normal(size=(8, 6))
    np.testing.assert_allclose(one.transform(rows), rows @ np.linalg.pinv(W).T, atol=1e-12)
    np.testing.assert_allclose(one.reconstruct(one.transform(rows)), one.inverse_transform(one.transform(rows)), atol=1e-12)
    for name in ("score_samples", "precision"):
        with pytest.raises(UsageError, match="fit fewer than 2 components"):
            getattr(one, name)(*([rows] if name == "score_samples" else []))
    on_plane = rows[:, :2] @ W.T
    np.testing.assert_allclose(one.impute(with_holes(on_plane, 0.2)), on_plane, atol=1e-6)


def test_as_many_components_as_features_need_no_noise() -> None:
    rng = np.random.default_rng(0)
    W = rng.normal(size=(5, 5)) * 10.0 ** -np.arange(5)
    one = LatentModel(W, rng.normal(size=5), 0.0, 10)
    rows = one.sample(20, 1)
    inside = np.linalg.solve(W, (rows - one.mean).T).T
    expected = -0.5 * (5 * np.log(2 * np.pi) + np.linalg.slogdet(W @ W.T)[1] + (inside**2).sum(axis=1))
    np.testing.assert_allclose(one.score_samples(rows), expected, rtol=1e-5)
    np.testing.assert_allclose(one.precision() @ one.covariance(), np.eye(5), atol=1e-5)
    with pytest.raises(UsageError, match="singular"):
        LatentModel(np.diag([1.0, 0.0]), np.zeros(2), 0.0, 10).score_samples(np.zeros((1, 2)))


# ------------------------------------------------------------------------------------------------------------- criteria


@pytest.mark.parametrize(
    ("d", "r", "per_feature", "wanted"),
    [(6, 2, False, 6 + 12 - 1 + 1), (6, 2, True, 6 + 12 - 1 + 6), (6, 5, False, 6 + 21), (6, 6, False, 6 + 21), (3, 2, True, 3 + 6)],
)
def test_the_number_of_parameters(d: int, r: int, per_feature: bool, wanted: int) -> None:
    assert model(d, r, per_feature).n_parameters == wanted


def test_bic_and_aic() -> None:
    one = model()
    assert one.bic() == pytest.approx(18 * np.log(100) + 6)
    assert one.bic(-10.0, 50) == pytest.approx(18 * np.log(50) + 20)
    assert one.aic() == 36 + 6
    assert one.aic(-10.0) == 36 + 20
    with pytest.raises(UsageError, match="pass loglike"):
        LatentModel(one.W, one.mean, 1.0, 5).aic()


# -------------------------------------------------------------------------------------------------------------- errors


def test_infinite_entries_are_refused_and_the_block_is_left_alone() -> None:
    one = model()
    rows = with_holes(one.sample(3000, 0), 0.2)
    before = rows.tobytes()
    for name in ("transform", "score_samples", "impute", "posterior"):
        getattr(one, name)(rows)
        assert rows.tobytes() == before
    rows[2500, 3] = -np.inf
    for name in ("transform", "score_samples", "impute", "posterior"):
        with pytest.raises(NonFiniteError) as caught:
            getattr(one, name)(rows)
        assert (caught.value.row, caught.value.column) == (2500, 3)


# ------------------------------------------------------------------------------------------------------------- storage


@pytest.mark.parametrize("per_feature", [False, True])
def test_arrays_hold_everything(per_feature: bool) -> None:
    one = model(per_feature=per_feature)
    again = LatentModel.from_arrays(one.to_arrays())
    for name, array in one.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array)
    assert (again.n_samples, again.converged, again.n_iter, again.n_skipped, again.isotropic) == (100, True, 0, 0, not per_feature)
    assert isinstance(again.converged, bool)
    assert isinstance(again.n_samples, int)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("W", np.ones(3)),
        ("W", np.ones((5, 2))),
        ("mean", np.ones(5)),
        ("mean", np.full(6, np.inf)),
        ("noise", np.ones(5)),
        ("noise", np.array(-1.0)),
        ("noise", np.array(np.inf)),
        ("loglike", np.ones((2, 2))),
        ("loglike", np.array([np.nan])),
        ("converged", np.array([True])),
        ("n_samples", np.array("many")),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, array: np.ndarray) -> None:
    with pytest.raises(CorruptDataError):
        LatentModel.from_arrays({**model().to_arrays(), name: array})


def test_missing_and_unknown_arrays_are_refused() -> None:
    arrays = model().to_arrays()
    with pytest.raises(CorruptDataError, match="these are stored"):
        LatentModel.from_arrays({**arrays, "surplus": np.ones(1)})
    del arrays["mean"]
    with pytest.raises(CorruptDataError, match="these are stored"):
        LatentModel.from_arrays(arrays)


def test_an_infinite_log_likelihood_can_be_stored() -> None:
    arrays = {**model().to_arrays(), "loglike": np.array([np.inf]), "noise": np.array(0.0)}
    assert LatentModel.from_arrays(arrays).loglike[-1] == np.inf
