"""SparsePCA as users have it: scikit-learn's checks and its own sparse PCA, files, configs, saving, plans."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn import decomposition
from sklearn.utils.estimator_checks import parametrize_with_checks

import streampca as sp
from streampca import PCA, SparsePCA
from streampca.errors import CorruptDataError, DataError, MemoryBudgetError, UsageError
from streampca.events import Observer
from streampca.jobs.config import make_config
from streampca.jobs.run import run_job
from streampca.memory import MIB
from streampca.planning import process_baseline
from streampca.storage import read_arrays, write_arrays


@parametrize_with_checks(
    [SparsePCA(), SparsePCA(n_components=1, alpha=0.1), SparsePCA(n_nonzero=1), SparsePCA(n_components=1, n_nonzero=1, standardize=True)]
)
@pytest.mark.filterwarnings("ignore:.* components are zero")
def test_all_of_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def planted(n: int = 600, d: int = 30, *, size: int = 6, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of three components, each of ``size`` columns of its own, and which they are."""
    rng = np.random.default_rng([seed, n, d])
    V = np.zeros((3, d))
    for j in range(3):
        V[j, j * size : (j + 1) * size] = rng.choice([-1, 1], size) / np.sqrt(size)
    return rng.standard_normal((n, 3)) * [4.0, 3.0, 2.0] @ V + noise * rng.standard_normal((n, d)) + 50, V != 0


def recovery(components: np.ndarray, support: np.ndarray) -> float:
    """Return the mean F1 score of the supports, matched as well as can be."""
    found = components != 0
    both = (support[:, None] & found[None]).sum(axis=2)
    scores = 2 * both / (support.sum(axis=1)[:, None] + found.sum(axis=1)[None])
    mine, theirs = linear_sum_assignment(-scores)
    return float(scores[mine, theirs].mean())


# --- against others ----------------------------------------------------------------------------------------------


def test_no_penalty_is_pca() -> None:
    X, _ = planted()
    ours, theirs = SparsePCA(4, alpha=0).fit(X), PCA(4).fit(X)
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=1e-6)
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(ours.explained_variance_ratio_, theirs.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(ours.transform(X), theirs.transform(X), atol=1e-6)


@pytest.mark.parametrize("noise", [0.5, 1.5, 2.5])
@pytest.mark.parametrize("shape", [(600, 30), (150, 60)], ids=str)
def test_the_support_is_recovered_at_least_as_well_as_by_scikit_learn(shape: tuple[int, int], noise: float) -> None:
    draws = [planted(*shape, noise=noise, seed=seed) for seed in range(2)]

    def best(make: Any, penalties: tuple[float, ...]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return max(float(np.mean([recovery(make(each).fit(X).components_, support) for X, support in draws])) for each in penalties)

    ours = best(lambda alpha: SparsePCA(3, alpha=alpha), (0.2, 0.4, 0.6, 0.8, 1.0))
    theirs = best(lambda alpha: decomposition.SparsePCA(3, alpha=alpha, random_state=0), (1, 3, 5, 8, 12))
    assert ours >= theirs - 0.01
    counted = np.mean([recovery(SparsePCA(3, n_nonzero=6, max_iter=2000).fit(X).components_, support) for X, support in draws])
    assert counted >= theirs - 0.01


def test_the_support_is_found_among_many_rows() -> None:
    X, support = planted(10_000, 60)
    np.testing.assert_array_equal(SparsePCA(3).fit(X).components_ != 0, support)


# --- inputs and outputs ------------------------------------------------------------------------------------------


def test_every_input_gives_the_same(tmp_path: Path, small_shards: None) -> None:
    X, support = planted()
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(100, 30))
    fits = [SparsePCA(3).fit(each) for each in (X, da.from_array(X, chunks=(90, 30)), str(tmp_path / "x.h5"), sp.open_source(X))]
    for fit in fits:
        np.testing.assert_array_equal(fit.components_ != 0, support)
        np.testing.assert_allclose(fit.components_, fits[0].components_, atol=1e-9)
        assert (fit.n_passes_, fit.n_samples_, fit.n_components_) == (1, 600, 3)
    scores = fits[0].transform(X)
    np.testing.assert_allclose(fits[2].transform(str(tmp_path / "x.h5")).compute(), scores, atol=1e-8)
    fits[2].transform_to(str(tmp_path / "x.h5"), tmp_path / "z.npy")
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), scores, atol=1e-8)
    np.testing.assert_allclose(fits[0].inverse_transform(da.from_array(scores)).compute(), fits[0].inverse_transform(scores))


def test_float32_and_integers() -> None:
    X, support = planted()
    for rows in (X.astype(np.float32), np.round(10 * X).astype(np.int32)):
        fit = SparsePCA(3).fit(rows)
        np.testing.assert_array_equal(fit.components_ != 0, support)
    assert SparsePCA(3).fit(X.astype(np.float32)).transform(X.astype(np.float32)).dtype == np.float32


def test_saved_and_loaded(tmp_path: Path) -> None:
    X, _ = planted()
    fit = SparsePCA(3, alpha=0.7, standardize=True).fit(X)
    fit.save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, SparsePCA)
    assert loaded.get_params() == fit.get_params()
    np.testing.assert_array_equal(loaded.transform(X), fit.transform(X))
    assert loaded.summary() == fit.summary()
    arrays, attributes, _ = read_arrays(tmp_path / "m.zarr", kind="spca", max_version=9)
    arrays["model/mean"] = arrays["model/mean"][:-1]
    write_arrays(tmp_path / "bad.zarr", arrays, attributes, kind="spca", version=2)
    with pytest.raises(CorruptDataError, match="'mean' of the model has shape"):
        sp.load(tmp_path / "bad.zarr")


def test_in_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = planted()
    np.save(tmp_path / "x.npy", X)
    monkeypatch.chdir(tmp_path)
    method = {"name": "spca", "n_components": 3, "n_nonzero": 6}
    config = {"input": {"path": "x.npy"}, "method": method, "output": {"model": "m.zarr", "scores": "z.npy"}}
    facts = run_job(make_config(config), Observer())
    assert (facts["method"], facts["components"], facts["nonzeros"]) == ("spca", 3, [6, 6, 6])
    assert np.load("z.npy").shape == (600, 3)


def test_the_plan() -> None:
    X, _ = planted()
    plan = sp.plan(X, method="spca", n_components=3, scores=True)
    assert (plan.method, plan.n_passes) == ("spca", 2)
    wide = np.broadcast_to(np.float32(0), (10**6, 20_000))
    assert sp.plan(wide, method="spca", n_components=3, memory="2GiB").solver == "sketch"
    with pytest.raises(MemoryBudgetError, match="cannot hold stage"):
        sp.plan(wide, method="spca", n_components=2000, memory="2GiB")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, "n_components=0 must be between 1 and"),
        ({"n_components": 0.5}, "must be an integer of 1 or more, or None, for sparse components, not 0.5"),
        ({"n_components": "bic"}, "for sparse components, not 'bic'"),
        ({"alpha": -1}, "alpha must be a number of at least 0, not -1"),
        ({"alpha": float("nan")}, "alpha must be a number of at least 0, not nan"),
        ({"ridge": float("inf")}, "ridge must be a number of at least 0, not inf"),
        ({"n_nonzero": 31}, "n_nonzero=31 must be an integer between 1 and n_features=30"),
        ({"n_nonzero": 2.0}, "n_nonzero=2.0 must be an integer"),
        ({"max_iter": 0}, "max_iter must be an integer of 1 or more, not 0"),
        ({"tol": -1}, "tol must be a number of at least 0"),
        ({"standardize": "no"}, "standardize must be true or false"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SparsePCA(**params).fit(planted()[0])


def test_wrong_scores_are_refused() -> None:
    with pytest.raises(DataError, match="do not have the 3 columns"):
        SparsePCA(3).fit(planted()[0]).inverse_transform(np.ones((2, 4)))


def test_a_table_too_wide_for_its_covariance(tmp_path: Path) -> None:
    """From the leading directions, in a few passes; the plan says so and keeps the budget."""
    X, support = planted(600, 2500)
    np.save(tmp_path / "x.npy", X)
    memory = process_baseline() + 300 * MIB
    few = SparsePCA(3, n_nonzero=support[0].sum(), memory=memory).fit(str(tmp_path / "x.npy"))
    assert few.solver_ == "sketch"
    assert few.n_passes_ == 2
    plan: Any = few.plan_
    assert "do not fit the budget" in plan.explain()
    assert plan.peak_memory <= plan.budget
    np.testing.assert_array_equal(few.components_ != 0, support)
    scaled = SparsePCA(3, n_nonzero=support[0].sum(), memory=memory, standardize=True).fit(str(tmp_path / "x.npy"))
    assert scaled.n_passes_ == 3
    with pytest.raises(MemoryBudgetError, match="with n_components given"):
        SparsePCA(memory=memory).fit(str(tmp_path / "x.npy"))
