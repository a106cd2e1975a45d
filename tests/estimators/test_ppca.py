"""ProbabilisticPCA against the closed form, scipy's normal density, the truth of generated data, and itself on other paths."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import streampca as sp
from streampca import ProbabilisticPCA
from streampca.engine import choose_scheduler
from streampca.errors import DataError, MemoryBudgetError, NonFiniteError, UsageError
from streampca.memory import MIB
from streampca.planning import process_baseline
from streampca.solvers import ppca_missing as solver
from tests.estimators.planted import planted, stored, with_holes


def exact(X: np.ndarray, r: int) -> tuple[np.ndarray, float, float]:
    """Return W W^T, the noise variance and the log-likelihood of the closed form by NumPy."""
    X = X.astype(np.float64)
    centred, (n, d) = X - X.mean(axis=0), X.shape
    values, vectors = np.linalg.eigh(centred.T @ centred / n)
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = float(values[r:].mean()) if r < d else 0.0
    WW = (vectors[:, :r] * (values[:r] - noise)) @ vectors[:, :r].T
    loglike = -n / 2 * (d * np.log(2 * np.pi) + np.log(values[:r]).sum() + (d - r) * np.log(noise if noise else 1.0) + d)
    return WW, noise, float(loglike)


def assert_exact(model: ProbabilisticPCA, X: np.ndarray, tolerance: float) -> None:
    WW, noise, loglike = exact(X, model.n_components_)
    assert np.linalg.norm(model.W_ @ model.W_.T - WW) <= tolerance * np.linalg.norm(WW)
    assert model.noise_variance_ == pytest.approx(noise, rel=tolerance)
    assert model.loglike_[-1] == pytest.approx(loglike, rel=tolerance)
    np.testing.assert_allclose(model.mean_, X.mean(axis=0, dtype=np.float64), rtol=1e-9, atol=1e-9)


def assert_never_falls(loglike: np.ndarray, slack: float = 1e-9) -> None:
    assert (np.diff(loglike) >= -slack * np.abs(loglike[1:])).all(), np.diff(loglike).min()


# --- complete data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "closed-form", "em"])
@pytest.mark.parametrize(("n", "d", "r"), [(2000, 30, 4), (300, 8, 1), (50, 20, 3), (20, 50, 3), (400, 12, 11), (400, 12, 12)])
def test_every_method_is_the_closed_form(n: int, d: int, r: int, method: Any) -> None:
    _, X = planted(n, d, min(r, 4))
    model = ProbabilisticPCA(r, method=method).fit(X)
    assert_exact(model, X, 1e-8)
    assert (model.n_passes_, model.n_samples_, model.n_skipped_, model.n_features_in_) == (1, n, 0, d)
    assert model.solver_ == ("em" if method == "em" else "closed-form")
    assert model.converged_
    assert model.n_iter_ >= 1
    assert_never_falls(model.loglike_)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_wide_data_beyond_the_budget_takes_four_passes(tmp_path: Path, dtype: str) -> None:
    _, X = planted(700, 1500, 6, scale=0.5)
    X = X.astype(dtype)
    path = stored(X, tmp_path, "h5")
    reference = ProbabilisticPCA(6, method="closed-form").fit(path)
    assert reference.solver_ == "closed-form"
    if dtype == "float64":
        assert_exact(reference, X, 1e-10)
    memory = process_baseline() + 90 * MIB  # which the 1500 x 1500 sums of two tasks, and their eigenvectors, exceed
    for method in ("auto", "em", "closed-form"):
        model = ProbabilisticPCA(6, method=method, memory=memory).fit(path)
        assert model.solver_ == "subspace"
        assert model.n_passes_ <= 4
        assert model.converged_
        assert np.linalg.norm(model.W_ @ model.W_.T - reference.W_ @ reference.W_.T) <= 1e-6 * np.linalg.norm(reference.W_) ** 2
        np.testing.assert_allclose(model.W_, reference.W_, atol=1e-6 * np.abs(reference.W_).max())
        assert model.noise_variance_ == pytest.approx(reference.noise_variance_, rel=1e-6)
        assert model.loglike_[-1] == pytest.approx(reference.loglike_[-1], rel=1e-6)
        assert_never_falls(model.loglike_, 1e-12)
        assert len(model.loglike_) == model.n_passes_ - 1
        assert model.plan_ is not None
        assert model.plan_.n_passes == 4
        assert model.plan_.max_passes is not None


def test_wide_data_with_missing_entries_falls_back_to_em(tmp_path: Path) -> None:
    _, X = planted(500, 1500, 3, scale=0.5)
    holes = with_holes(X, 0.1)
    memory = process_baseline() + 90 * MIB
    for kind in (ProbabilisticPCA, sp.FactorAnalysis):
        model: Any = kind(3, memory=memory).fit(stored(holes, tmp_path, "npy"))
        assert model.solver_ == "em-missing"
        assert model.plan_.solver in ("subspace", "em")
        assert model.plan_.peak_memory <= memory
        missing = np.isnan(holes)
        assert np.sqrt(np.mean((model.impute(holes) - X)[missing] ** 2)) < 0.8  # the noise is 0.71


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_attributes_agree_with_scikit_learn(offset: float) -> None:
    _, X = planted(500, 10, 3, mean=offset)
    model, theirs = ProbabilisticPCA(3).fit(X), decomposition.PCA(3, svd_solver="full").fit(X)
    share = 499 / 500  # their divisor is n - 1
    np.testing.assert_allclose(model.components_, theirs.components_, atol=1e-7)
    np.testing.assert_allclose(model.explained_variance_, share * theirs.explained_variance_, rtol=1e-8)
    assert model.noise_variance_ == pytest.approx(share * theirs.noise_variance_, rel=1e-8)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
    assert model.score(X) == pytest.approx(theirs.score(X), rel=1e-5)  # ours is the maximum
    assert model.score(X) >= theirs.score(X)
    np.testing.assert_allclose(model.get_covariance() @ model.get_precision(), np.eye(10), atol=1e-9)
    gram = model.W_.T @ model.W_
    np.testing.assert_allclose(gram, np.diag(gram.diagonal()), atol=1e-9 * gram[0, 0])
    assert (np.diff(gram.diagonal()) <= 0).all()
    assert (model.W_[np.abs(model.W_).argmax(axis=0), range(3)] > 0).all()


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_likelihoods_are_those_of_scipy(share: float) -> None:
    _, X = planted(60, 6, 2)
    X = with_holes(X, share)
    model = ProbabilisticPCA(2).fit(X)
    C = model.get_covariance()
    expected = []
    for row in X:
        seen = ~np.isnan(row)
        expected.append(multivariate_normal(model.mean_[seen], C[np.ix_(seen, seen)]).logpdf(row[seen]) if seen.any() else 0.0)
    np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-9, atol=1e-9)
    assert model.loglike_[-1] == pytest.approx(np.sum(expected), rel=1e-9)
    assert model.score(X) == pytest.approx(np.mean(expected), rel=1e-9)
    k = 6 + 6 * 2 - 1 + 1
    assert model.bic() == pytest.approx(k * np.log(model.n_samples_) - 2 * model.loglike_[-1])
    assert model.aic() == pytest.approx(2 * k - 2 * model.loglike_[-1])
    assert model.bic(X) == pytest.approx(k * np.log(60) - 2 * np.sum(expected))
    assert model.aic(X) == pytest.approx(model.aic())


def test_posterior_reconstruction_and_samples() -> None:
    _, X = planted(400, 9, 2)
    model = ProbabilisticPCA(2, random_state=5).fit(X)
    W, s2 = model.W_, model.noise_variance_
    M = W.T @ W + s2 * np.eye(2)
    means, covariances = model.posterior(X)
    np.testing.assert_allclose(means, (X - model.mean_) @ W @ np.linalg.inv(M), atol=1e-10)
    assert covariances.shape == (400, 2, 2)
    np.testing.assert_allclose(covariances, np.broadcast_to(s2 * np.linalg.inv(M), (400, 2, 2)), atol=1e-12)
    np.testing.assert_array_equal(model.transform(X), means)
    np.testing.assert_allclose(model.inverse_transform(means), means @ W.T + model.mean_, atol=1e-10)
    projection = (X - model.mean_) @ model.components_.T @ model.components_ + model.mean_
    np.testing.assert_allclose(model.reconstruct(means), projection, atol=1e-10)
    rows = model.sample(200_000)
    np.testing.assert_allclose(np.cov(rows.T), model.get_covariance(), atol=0.15)
    np.testing.assert_array_equal(rows, model.sample(200_000))
    assert not np.array_equal(model.sample(3, random_state=1), model.sample(3))
    with pytest.raises(DataError, match="do not have the 2 columns"):
        model.inverse_transform(np.ones((3, 5)))


def test_weights_count_rows() -> None:
    _, X = planted(200, 7, 2)
    weights = np.random.default_rng(0).integers(0, 4, 200)
    for Y in (X, with_holes(X, 0.2)):
        one, other = ProbabilisticPCA(2).fit(Y, sample_weight=weights), ProbabilisticPCA(2).fit(np.repeat(Y, weights, axis=0))
        np.testing.assert_allclose(one.W_, other.W_, atol=1e-8)
        assert one.n_samples_ == other.n_samples_ == weights.sum()
        assert one.loglike_[-1] == pytest.approx(other.loglike_[-1], rel=1e-10)


# --- missing entries ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_the_truth_within_statistical_error(share: float) -> None:
    truth, X = planted(4000, 20, 3, noise=0.5)
    holes = with_holes(X, share)
    model = ProbabilisticPCA(3, tol=1e-9).fit(holes)
    assert model.solver_ == "em-missing"
    assert_never_falls(model.loglike_)
    observed = (~np.isnan(holes)).sum()
    error = np.sqrt(2 / observed) * 0.5  # standard error of the noise variance, about
    assert abs(model.noise_variance_ - 0.5) < 4 * error
    C, wanted = model.get_covariance(), truth.covariance()
    # Each pair of features is seen together (1 - share)^2 n times; five standard errors for 210 entries.
    scale = np.sqrt((np.outer(wanted.diagonal(), wanted.diagonal()) + wanted**2) / (4000 * (1 - share) ** 2))
    assert (np.abs(C - wanted) < 5 * scale).all()
    assert (np.abs(model.mean_ - 3.0) < 5 * np.sqrt(wanted.diagonal() / (4000 * (1 - share)))).all()
    assert model.loglike_[-1] >= truth.score_samples(holes).sum()
    missing = np.isnan(holes)
    filled, variances = model.impute(holes, return_variance=True)
    np.testing.assert_array_equal(filled[~missing], X[~missing])
    found, best = (np.sqrt(np.mean((each - X)[missing] ** 2)) for each in (filled, truth.impute(holes)))
    assert found < 1.01 * best
    assert variances[missing].mean() == pytest.approx(found**2, rel=0.05)
    assert not variances[~missing].any()


def test_one_missing_entry_is_nearly_the_complete_answer() -> None:
    _, X = planted(2000, 10, 2)
    complete = ProbabilisticPCA(2).fit(X)
    X[17, 3] = np.nan
    model = ProbabilisticPCA(2, tol=1e-12, max_iter=500).fit(X)
    np.testing.assert_allclose(model.W_, complete.W_, atol=2e-3)


def test_without_a_missing_entry_em_is_the_dense_answer_to_1e_8() -> None:
    _, X = planted(500, 12, 3)

    def run(name: str, statistic: Any) -> Any:
        statistic.update(X)
        return statistic

    found, dense = solver.em_missing(run, 12, 3, tol=-1.0, max_iter=300, seed=0), ProbabilisticPCA(3).fit(X)
    np.testing.assert_allclose(found.W, dense.W_, atol=1e-8)
    assert found.noise == pytest.approx(dense.noise_variance_, rel=1e-8)
    assert found.loglike[-1] == pytest.approx(dense.loglike_[-1], rel=1e-8)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(3, 60), d=st.integers(2, 12), r=st.integers(1, 6), share=st.floats(0.0, 0.9), seed=st.integers(0, 10**6))
def test_the_likelihood_never_falls(n: int, d: int, r: int, share: float, seed: int) -> None:
    _, X = planted(n, d, min(r, d), seed=seed)
    X = with_holes(X, share, seed)
    X[seed % n] = np.where(np.isnan(X[seed % n]), 0.3, X[seed % n])  # no column without a value
    if not (np.nanvar(X, axis=0) > 0).any():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = ProbabilisticPCA(min(r, n, d), method="em", max_iter=20).fit(X)
    if np.isfinite(model.loglike_).all() and model.noise_variance_ > 1e-6:
        slack = 1e-9 * n * d
        assert (np.diff(model.loglike_) >= -slack).all()
        assert model.loglike_[-1] == pytest.approx(model.score_samples(X).sum(), rel=1e-6, abs=1e-6 * n * d)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
def test_nan_a_value_and_a_mask_are_the_same(dtype: str, tmp_path: Path) -> None:
    _, X = planted(300, 8, 2, scale=10)
    X = np.round(X).astype(dtype)
    holes = np.random.default_rng(0).random(X.shape) < 0.2
    coded = np.where(holes, np.array(-999, dtype), X)
    wanted = np.where(holes, np.nan, X.astype(np.float64))
    by_nan = ProbabilisticPCA(2).fit(wanted)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"], file["coded"], file["mask"] = X, coded, holes
    path = str(tmp_path / "x.h5")
    coded_models = [ProbabilisticPCA(2, missing=-999).fit(each) for each in (coded, path + "::coded", da.from_array(coded, chunks=(90, 8)))]
    masked_models = [
        ProbabilisticPCA(2).fit(X, mask=holes),
        ProbabilisticPCA(2).fit(path + "::X", mask=path + "::mask"),
        ProbabilisticPCA(2).fit(sp.masked(path, path + "::mask", dataset="X")),
    ]
    for model in (*coded_models, *masked_models):
        assert model.solver_ == "em-missing"
        np.testing.assert_allclose(model.W_, by_nan.W_, atol=1e-4 if dtype == "float32" else 1e-9)
    one = coded_models[0]
    for scores in (one.transform(coded), one.transform(path + "::coded").compute(), by_nan.transform(wanted)):
        np.testing.assert_allclose(scores, one.transform(coded), atol=1e-3 if dtype == "float32" else 1e-9)
    filled = one.impute(coded)
    assert filled.dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_array_equal(filled[~holes], X[~holes])
    assert not (filled == -999).any()
    np.testing.assert_allclose(one.impute(path + "::coded").compute(), filled, rtol=1e-5)
    np.testing.assert_allclose(one.score_samples(coded), by_nan.score_samples(wanted), rtol=1e-3)


def test_masks_and_values_that_do_not_fit_are_refused() -> None:
    _, X = planted(30, 4, 1)
    with pytest.raises(DataError, match="the mask has shape 30 x 3"):
        ProbabilisticPCA(1).fit(X, mask=np.zeros((30, 3), bool))
    for bad in ("-999", True):
        wrong: Any = bad
        with pytest.raises(UsageError, match="missing="):
            ProbabilisticPCA(1, missing=wrong).fit(X)


def test_rows_without_entries_are_counted() -> None:
    _, X = planted(200, 6, 2)
    X[[3, 77]] = np.nan
    model = ProbabilisticPCA(2).fit(X)
    assert (model.n_samples_, model.n_skipped_) == (198, 2)
    rest = ProbabilisticPCA(2).fit(np.delete(X, [3, 77], axis=0))
    np.testing.assert_allclose(model.get_covariance(), rest.get_covariance(), rtol=1e-3)
    np.testing.assert_array_equal(model.transform(X)[[3, 77]], 0.0)
    np.testing.assert_array_equal(model.score_samples(X)[[3, 77]], 0.0)
    np.testing.assert_allclose(model.impute(X)[3], model.mean_)
    assert model.summary()["rows_without_entries"] == 2


def test_a_column_without_values_is_named_or_dropped(tmp_path: Path) -> None:
    _, X = planted(300, 6, 2)
    X = with_holes(X, 0.1)
    X[:, 4] = np.nan
    with pytest.raises(DataError, match=r"column 4: no row has a value there"):
        ProbabilisticPCA(2).fit(X)
    with pytest.raises(DataError, match=r"column 4 \('e'\)"):
        ProbabilisticPCA(2).fit(sp.open_source(X, feature_names=list("abcdef")))
    model, narrow = ProbabilisticPCA(2, unobserved="drop").fit(X), ProbabilisticPCA(2).fit(np.delete(X, 4, axis=1))
    assert model.n_features_in_ == 6
    assert np.isnan(model.mean_[4])
    assert not model.W_[4].any()
    np.testing.assert_allclose(np.delete(model.W_, 4, axis=0), narrow.W_, atol=1e-12)
    np.testing.assert_allclose(model.transform(X), narrow.transform(np.delete(X, 4, axis=1)), atol=1e-10)
    np.testing.assert_allclose(model.score_samples(X), narrow.score_samples(np.delete(X, 4, axis=1)), rtol=1e-9)
    filled = model.impute(X)
    assert np.isnan(filled[:, 4]).all()
    assert np.isfinite(np.delete(filled, 4, axis=1)).all()
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(sp.load(tmp_path / "m.zarr").transform(X), model.transform(X))
    complete = ProbabilisticPCA(2, unobserved="drop").fit(np.nan_to_num(X))
    assert complete.solver_ == "closed-form"


@pytest.mark.parametrize("method", ["auto", "em", "closed-form"])
def test_infinite_entries_are_errors(method: Any, tmp_path: Path) -> None:
    _, X = planted(300, 6, 2)
    X[200, 3] = np.inf
    with pytest.raises(NonFiniteError, match="contains inf: the first such entry is in row 200, column 3") as caught:
        ProbabilisticPCA(2, method=method).fit(stored(X, tmp_path, "h5"))
    assert "ProbabilisticPCA" not in str(caught.value)
    if method != "closed-form":
        X[5, 1] = X[250, 2] = np.nan
        with pytest.raises(NonFiniteError, match="contains inf: the first such entry is in row 200, column 3"):
            ProbabilisticPCA(2, method=method).fit(X)


def test_the_closed_form_refuses_missing_entries() -> None:
    _, X = planted(300, 6, 2)
    X[5, 1] = np.nan
    with pytest.raises(DataError, match=r"needs complete rows, but row 5, column 1 is NaN: use method='em'"):
        ProbabilisticPCA(2, method="closed-form").fit(X)


def test_too_few_iterations_are_warned_of() -> None:
    _, X = planted(300, 12, 3)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations"):
        model = ProbabilisticPCA(3, max_iter=2, tol=1e-9).fit(with_holes(X, 0.3))
    assert not model.converged_
    assert (model.n_iter_, len(model.loglike_), model.n_passes_) == (2, 3, 4)


# --- files, clusters, storage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["h5", "zarr", "npy"])
def test_files_of_every_kind(kind: str, tmp_path: Path) -> None:
    _, X = planted(400, 8, 2)
    for holes in (X, with_holes(X, 0.2)):
        path = stored(holes, tmp_path, kind)
        model, wanted = ProbabilisticPCA(2).fit(path), ProbabilisticPCA(2).fit(holes)
        np.testing.assert_allclose(model.W_, wanted.W_, atol=1e-9)
        lazy = model.score_samples(path)
        assert hasattr(lazy, "compute")
        np.testing.assert_allclose(lazy.compute(), wanted.score_samples(holes), rtol=1e-8)
        assert model.score(path) == pytest.approx(wanted.score(holes), rel=1e-9)
        means, covariances = model.posterior(path)
        np.testing.assert_allclose(means.compute(), wanted.transform(holes), atol=1e-8)
        assert covariances.shape == (400, 2, 2)
        np.testing.assert_allclose(covariances.compute(), wanted.posterior(holes)[1], atol=1e-9)
        np.testing.assert_allclose(model.impute(path).compute(), wanted.impute(holes), atol=1e-8)
        model.transform_to(path, tmp_path / f"z.{kind}", overwrite=True)
        np.testing.assert_allclose(sp.open_source(tmp_path / f"z.{kind}").read(slice(None)), wanted.transform(holes), atol=1e-8)
        model.impute_to(path, tmp_path / f"filled.{kind}", overwrite=True)
        np.testing.assert_allclose(sp.open_source(tmp_path / f"filled.{kind}").read(slice(None)), wanted.impute(holes), atol=1e-8)
        back = model.inverse_transform(tmp_path / f"z.{kind}")
        np.testing.assert_allclose(back.compute(), wanted.inverse_transform(wanted.transform(holes)), atol=1e-7)


@pytest.mark.parametrize("share", [0.0, 0.2])
@pytest.mark.usefixtures("small_shards")
def test_the_same_bits_on_threads_and_on_a_cluster(share: float, tmp_path: Path, two_processes: Client) -> None:
    _, X = planted(2000, 20, 3)
    path = stored(with_holes(X, share) if share else X, tmp_path, "h5")
    source = sp.open_source(path)
    schedulers = (choose_scheduler(workers=1), choose_scheduler(workers=2), choose_scheduler(two_processes))
    models = [ProbabilisticPCA(3, memory="1GiB").fit_source(source, scheduler=each) for each in schedulers]
    plan = models[0].plan_
    assert plan is not None
    assert plan.n_shards > 2
    for model in models[1:]:
        for name in ("W_", "mean_", "loglike_", "components_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(models[0], name))
        assert model.noise_variance_ == models[0].noise_variance_


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_everything_comes_back_bit_for_bit(share: float, tmp_path: Path) -> None:
    _, X = planted(300, 7, 2)
    X = with_holes(X, share)
    model = ProbabilisticPCA(2, missing=-5.0, random_state=3).fit(sp.open_source(X, feature_names=list("abcdefg")))
    model.save(tmp_path / "m.zarr")
    again = sp.load(tmp_path / "m.zarr")
    assert isinstance(again, ProbabilisticPCA)
    assert again.get_params() == model.get_params()
    for name in ("W_", "mean_", "loglike_", "components_", "explained_variance_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
    for name in ("noise_variance_", "n_iter_", "converged_", "n_samples_", "n_skipped_", "n_components_", "solver_", "n_passes_"):
        assert getattr(again, name) == getattr(model, name)
        assert type(getattr(again, name)) is type(getattr(model, name))
    frame = pd.DataFrame(X, columns=list("abcdefg"))
    np.testing.assert_array_equal(again.transform(frame), model.transform(frame))
    assert list(again.feature_names_in_) == list("abcdefg")
    assert again.summary() == model.summary()


def test_on_the_command_line(tmp_path: Path) -> None:
    _, X = planted(400, 8, 2)
    holes = with_holes(X, 0.1)
    path = stored(holes, tmp_path, "h5")
    cases: tuple[tuple[str, Any], ...] = (("ppca", sp.ProbabilisticPCA), ("fa", sp.FactorAnalysis))
    for method, kind in cases:
        model = tmp_path / f"{method}.zarr"
        command = [sys.executable, "-m", "streampca", "fit", str(path), "--method", method, "-k", "2", "--model", str(model), "--quiet"]
        done = subprocess.run(
            [*command, "--json", "--scores", str(tmp_path / f"{method}.npy")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert (facts["method"], facts["solver"], facts["components"], facts["converged"]) == (method, "em-missing", 2, True)
        fitted = sp.load(model)
        assert isinstance(fitted, kind)
        np.testing.assert_allclose(np.load(tmp_path / f"{method}.npy"), fitted.transform(holes), atol=1e-10)
        done = subprocess.run([*command, "--overwrite"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{method} by em-missing" in done.stdout


def test_nothing_can_be_asked_before_a_fit() -> None:
    model = ProbabilisticPCA(2)
    for name in ("transform", "score", "impute", "posterior", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(model, name)(np.ones((3, 4)))
    with pytest.raises(NotFittedError):
        model.sample(2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, "n_components=0 must be between 1 and"),
        ({"n_components": 7}, "n_components=7 must be between 1 and"),
        ({"n_components": 0.5}, "n_components must be None or an integer"),
        ({"n_components": "mle"}, "n_components must be None or an integer"),
        ({"n_components": True}, "n_components must be None or an integer"),
        ({"method": "EM"}, "unknown method 'EM'"),
        ({"max_iter": 0}, "max_iter must be an integer of 1 or more, not 0"),
        ({"tol": -1}, "tol must be between 0 and 1"),
        ({"unobserved": "keep"}, "unobserved must be 'error' or 'drop'"),
        ({"memory": "1MiB"}, "cannot hold"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ProbabilisticPCA(**params).fit(planted(30, 6, 2)[1])


def test_the_number_of_components_by_default_leaves_some_noise() -> None:
    _, X = planted(30, 6, 2)
    assert ProbabilisticPCA().fit(X).n_components_ == 5
    assert ProbabilisticPCA().fit(X).noise_variance_ > 0


def test_missing_entries_that_the_budget_does_not_hold_are_refused(tmp_path: Path) -> None:
    _, X = planted(150, 400, 60)
    memory = process_baseline() + 100 * MIB
    plan = sp.plan(stored(X, tmp_path, "h5"), "ppca", 120, memory)
    assert "if there are any, the fit is refused" in plan.explain()
    X[0, 0] = np.nan
    with pytest.raises(MemoryBudgetError, match="cannot hold stage"):
        ProbabilisticPCA(120, memory=memory).fit(stored(X, tmp_path, "h5"))
