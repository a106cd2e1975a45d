"""ICA: unmixed signals against the truth and scikit-learn's FastICA, its laws, files, plans, scikit-learn's checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import decomposition
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca as sp
from streampca import ICA, PCA
from streampca.errors import CorruptDataError, DataError, MemoryBudgetError, UsageError
from streampca.events import Observer
from streampca.jobs.config import make_config
from streampca.jobs.run import run_job
from streampca.planning import ica as ica_plan
from streampca.solvers.ica import KeptRows, fast_ica, nearest_rotation, sample_rows
from streampca.storage import read_arrays, write_arrays


@parametrize_with_checks([ICA(), ICA(n_components=1)])
@pytest.mark.filterwarnings("ignore:after .* iterations the sources still turn")
def test_all_of_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def signals(n: int = 4000, seed: int = 0) -> np.ndarray:
    """Return four sources: a sine, a square wave, a saw tooth, and rare bursts."""
    rng, t = np.random.default_rng(seed), np.linspace(0, 40, n)
    return np.c_[np.sin(2 * t), np.sign(np.sin(3.1 * t)), (0.7 * t) % 1 - 0.5, rng.laplace(size=n)]


def mixed(n: int = 4000, d: int = 7, *, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return mixtures of the signals, far from the origin, and the mixing matrix."""
    rng = np.random.default_rng([seed, n, d])
    mixing = rng.standard_normal((d, 4))
    return signals(n, seed) @ mixing.T + noise * rng.standard_normal((n, d)) + 1e3, mixing


def amari(unmixing: np.ndarray, mixing: np.ndarray) -> float:
    """Return the distance of a product from a scaled permutation: 0 for perfect unmixing, about 1 for none."""
    P = np.abs(unmixing @ mixing)
    k = len(P)
    rows, columns = (P.sum(axis=1) / P.max(axis=1) - 1).sum(), (P.sum(axis=0) / P.max(axis=0) - 1).sum()
    return float((rows + columns) / (2 * k * (k - 1)))


# --- against the truth and scikit-learn ---------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("d", [4, 7, 30])
@pytest.mark.parametrize("seed", [0, 1])
def test_mixed_signals_are_told_apart_as_well_as_by_scikit_learn(d: int, noise: float, seed: int) -> None:
    X, mixing = mixed(d=d, noise=noise, seed=seed)
    ours = ICA(4).fit(X)
    theirs = decomposition.FastICA(4, whiten="unit-variance", random_state=0, tol=1e-6, max_iter=1000).fit(X)
    assert amari(ours.components_, mixing) <= amari(theirs.components_, mixing) + 1e-4
    assert amari(ours.components_, mixing) < 0.05
    assert ours.n_rows_used_ == 4000


def test_sources_are_those_of_scikit_learn() -> None:
    X, _ = mixed(noise=0.02)
    ours = ICA(4, tol=1e-12).fit_transform(X)
    theirs = decomposition.FastICA(4, whiten="unit-variance", random_state=0, tol=1e-12, max_iter=1000).fit_transform(X)
    correlations = np.abs(np.corrcoef(ours.T, theirs.T)[:4, 4:])
    np.testing.assert_allclose(correlations.max(axis=1), 1, atol=1e-6)


def test_a_sample_of_the_rows_is_nearly_as_good() -> None:
    X, mixing = mixed(20_000)
    few = ICA(4, max_rows=2000).fit(X)
    assert few.n_rows_used_ == 2000
    assert amari(few.components_, mixing) < 0.1
    # the whitening is that of all rows
    np.testing.assert_allclose(np.cov(few.transform(X).T), np.eye(4), atol=1e-8)


def test_what_a_fit_promises() -> None:
    X, _ = mixed(noise=0.1)
    ica = ICA(4).fit(X)
    sources = ica.transform(X)
    np.testing.assert_allclose(sources.mean(axis=0), 0, atol=1e-8)
    np.testing.assert_allclose(np.cov(sources.T), np.eye(4), atol=1e-8)
    np.testing.assert_allclose(ica.components_ @ ica.mixing_, np.eye(4), atol=1e-10)
    pca = PCA(4).fit(X)
    np.testing.assert_allclose(ica.inverse_transform(sources), pca.inverse_transform(pca.transform(X)), atol=1e-7)
    np.testing.assert_allclose(ica.explained_variance_ratio_.sum(), pca.explained_variance_ratio_.sum(), rtol=1e-9)
    sizes = np.linalg.norm(ica.mixing_, axis=0)
    np.testing.assert_array_equal(sizes, np.sort(sizes)[::-1])
    assert (ica.mixing_[np.abs(ica.mixing_).argmax(axis=0), range(4)] > 0).all()
    whitened = (X - ica.mean_) @ ica.whitening_.T
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(4), atol=1e-8)


def test_the_seed_decides_alone() -> None:
    X, _ = mixed()
    np.testing.assert_array_equal(ICA(4, random_state=3).fit(X).components_, ICA(4, random_state=3).fit(X).components_)
    np.testing.assert_allclose(ICA(4, random_state=3, tol=1e-12).fit(X).components_, ICA(4, tol=1e-12).fit(X).components_, atol=1e-5)


def test_a_criterion_chooses_how_many() -> None:
    X, mixing = mixed(d=20, noise=0.05)
    ica = ICA("gavish-donoho").fit(X)
    assert ica.n_components_ == 4
    assert amari(ica.components_, mixing) < 0.05


# --- the parts ---------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 500), wanted=st.integers(2, 600), seed=st.integers(0, 100))
@settings(deadline=None)
def test_a_sample_is_spread_over_the_rows(n: int, wanted: int, seed: int) -> None:
    numbers = sample_rows(n, wanted, seed)
    assert len(numbers) == min(n, wanted)
    assert (np.diff(numbers) > 0).all()
    assert numbers[0] >= 0
    assert numbers[-1] < n
    parts = numbers * len(numbers) // n
    assert np.abs(parts - np.arange(len(numbers))).max() <= 1


@given(n=st.integers(1, 60), wanted=st.integers(2, 60), height=st.integers(1, 20), seed=st.integers(0, 9))
@settings(deadline=None)
def test_rows_are_kept_whatever_the_blocks(n: int, wanted: int, height: int, seed: int) -> None:
    X = np.arange(2.0 * n).reshape(n, 2)
    numbers = sample_rows(n, wanted, seed)
    kept = KeptRows(numbers, np.full((len(numbers), 2), np.nan))
    for start in np.random.default_rng(seed).permutation(np.arange(0, n, height)):
        kept.write(int(start), X[start : start + height])
    np.testing.assert_array_equal(kept.table, X[numbers])


def test_the_nearest_rotation_is_the_polar_factor() -> None:
    W = np.random.default_rng(0).standard_normal((5, 5))
    values, vectors = np.linalg.eigh(W @ W.T)
    np.testing.assert_allclose(nearest_rotation(W), (vectors / np.sqrt(values)) @ vectors.T @ W, atol=1e-12)


def test_two_square_waves_are_turned_back() -> None:
    rng = np.random.default_rng(0)
    Z = rng.choice([-1.0, 1.0], (20_000, 2))
    angle = 0.4
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    found = fast_ica(Z @ turn.T, 0, 100, 1e-10)
    np.testing.assert_allclose(np.sort(np.abs(found.matrix @ turn), axis=1), [[0, 1], [0, 1]], atol=0.02)
    assert found.n_iter < 20


def test_gaussian_sources_are_not_told_apart() -> None:
    X = np.random.default_rng(0).standard_normal((500, 6))
    with pytest.warns(ConvergenceWarning, match="the sources still turn by .*Gaussian sources cannot be told apart"):
        ICA(max_iter=3).fit(X)


# --- hard data ---------------------------------------------------------------------------------------------------


def test_columns_that_depend_on_each_other() -> None:
    X, mixing = mixed(d=7)
    ica = ICA().fit(X)  # seven columns of four signals
    assert ica.n_components_ == 4
    assert amari(ica.components_, mixing) < 0.05
    constant = np.c_[X, np.full(len(X), 3.0)]
    assert ICA().fit(constant).n_components_ == 4


def test_equal_rows_are_refused() -> None:
    with pytest.raises(DataError, match="nothing to unmix"):
        ICA().fit(np.ones((10, 3)))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_narrow_rows(dtype: str) -> None:
    X, mixing = mixed()
    rows = (100 * (X - 1e3)).astype(dtype)
    assert amari(ICA(4).fit(rows).components_, mixing) < 0.05
    assert ICA(4).fit(rows).transform(rows).dtype == ("float32" if dtype == "float32" else "float64")


# --- inputs and outputs ------------------------------------------------------------------------------------------


def test_every_input_gives_the_same(tmp_path: Path, small_shards: None) -> None:
    X, _ = mixed()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(300, 7))
    fits = [ICA(4, max_rows=1500).fit(each) for each in (X, da.from_array(X, chunks=(900, 7)), str(tmp_path / "x.h5"))]
    for fit in fits:
        np.testing.assert_allclose(fit.components_, fits[0].components_, atol=1e-6)
        assert (fit.n_passes_, fit.n_samples_, fit.n_rows_used_) == (2, 4000, 1500)
    np.testing.assert_allclose(fits[2].transform(str(tmp_path / "x.h5")).compute(), fits[0].transform(X), atol=1e-4)
    fits[2].transform_to(str(tmp_path / "x.h5"), tmp_path / "z.npy")
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), fits[2].transform(X), atol=1e-9)


def test_on_a_cluster(two_processes: Any, small_shards: None) -> None:
    X, _ = mixed(1000)
    here = ICA(4).fit(X)
    with two_processes.as_current():
        there = ICA(4).fit(X)
    np.testing.assert_allclose(here.components_, there.components_, atol=1e-9)


@pytest.mark.parametrize("solver", ["covariance", "tsqr", "sketch", "dual"])
def test_every_solver_whitens(solver: str, tmp_path: Path) -> None:
    X, mixing = mixed(300, 400, noise=0.01)
    np.save(tmp_path / "x.npy", X)
    ica = ICA(4, solver=solver).fit(str(tmp_path / "x.npy"))
    assert ica.solver_ == solver
    assert ica.plan_ is not None
    assert ica.n_passes_ == ica.plan_.n_passes
    assert amari(ica.components_, mixing) < 0.1


def test_saved_and_loaded(tmp_path: Path) -> None:
    X, _ = mixed()
    fit = ICA(4, random_state=1).fit(X)
    fit.save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, ICA)
    assert loaded.get_params() == fit.get_params()
    np.testing.assert_array_equal(loaded.transform(X), fit.transform(X))
    assert loaded.summary() == fit.summary()
    arrays, attributes, _ = read_arrays(tmp_path / "m.zarr", kind="ica", max_version=9)
    arrays["model/mixing"] = arrays["model/mixing"].T.copy()
    write_arrays(tmp_path / "bad.zarr", arrays, attributes, kind="ica", version=2)
    with pytest.raises(CorruptDataError, match="'mixing' of the model has shape"):
        sp.load(tmp_path / "bad.zarr")


def test_in_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = mixed()
    np.save(tmp_path / "x.npy", X)
    monkeypatch.chdir(tmp_path)
    method = {"name": "ica", "n_components": 4}
    config = {"input": {"path": "x.npy"}, "method": method, "output": {"model": "m.zarr", "scores": "z.npy"}}
    facts = run_job(make_config(config), Observer())
    assert (facts["method"], facts["components"], facts["rows_used"]) == ("ica", 4, 4000)
    assert np.load("z.npy").shape == (4000, 4)


# --- plans -------------------------------------------------------------------------------------------------------


def test_the_plan_says_how_many_rows_are_kept() -> None:
    tall = np.broadcast_to(np.float32(0), (50_000_000, 40))
    plan = sp.plan(tall, method="ica", n_components=10, memory="1GiB")
    assert (plan.method, plan.n_passes) == ("ica", 2)
    assert f"the rotation is found from {ica_plan.MOST_ROWS:,} of the 50,000,000 white rows" in plan.explain()
    assert plan.peak_memory <= plan.budget
    assert sp.plan(tall, method="ica", n_components=10, memory="1GiB", scores=True).n_passes == 3
    tight = sp.plan(tall, method="ica", n_components=40, memory="600MiB")
    assert tight.peak_memory <= tight.budget
    with pytest.raises(MemoryBudgetError, match=r"max_rows=10,000,000 white rows of 40 components take .* keep at most"):
        sp.plan(tall, method="ica", n_components=40, memory="600MiB", max_rows=10_000_000)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, "n_components=0 must be between 1 and"),
        ({"n_components": "bik"}, "Did you mean 'bic'"),
        ({"max_rows": 1}, "max_rows must be an integer of 2 or more, not 1"),
        ({"max_iter": 0}, "max_iter must be an integer of 1 or more, not 0"),
        ({"max_iter": 2.5}, "max_iter must be an integer of 1 or more, not 2.5"),
        ({"tol": -1}, "tol must be a number of at least 0"),
        ({"solver": "fast"}, "unknown solver 'fast'"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ICA(**params).fit(mixed(100)[0])


def test_weights_are_refused() -> None:
    X, _ = mixed(100)
    with pytest.raises(UsageError, match="take no weights"):
        ICA().fit(sp.open_source(X, weights=np.ones(100)))
