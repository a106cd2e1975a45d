"""The number of components by a criterion: every solver against the criterion applied to NumPy's spectrum, and scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import decomposition

import streampca as sp
from streampca import PCA
from streampca.errors import DataError, MemoryBudgetError, UsageError
from streampca.events import Observer
from streampca.jobs.config import make_config
from streampca.jobs.run import run_job
from streampca.planning import criteria
from streampca.planning import sketch as sketch_plan
from streampca.selection import select_components
from tests.cli.harness import run_here, write_h5

SHAPES = [(300, 20), (40, 60), (30, 30), (2, 5), (50, 1)]

CRITERIA = [each for each in criteria.CRITERIA if each != criteria.HELD_OUT]  # that one has tests of its own


def planted(n: int = 400, d: int = 30, rank: int = 4, *, noise: float = 0.5, seed: int = 0) -> np.ndarray:
    """Return rows of a low rank, well above white noise, far from the origin."""
    rng = np.random.default_rng([seed, n, d])
    directions, _ = np.linalg.qr(rng.standard_normal((d, rank)))
    return rng.standard_normal((n, rank)) * np.linspace(9, 5, rank) @ directions.T + noise * rng.standard_normal((n, d)) + 100


def spectrum(X: np.ndarray) -> np.ndarray:
    variances: np.ndarray = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2 / (len(X) - 1)
    return variances


def reference(X: np.ndarray, criterion: Any) -> int:
    """Return the choice from NumPy's singular values."""
    n, d = X.shape
    variances = spectrum(X)[: min(n - 1, d)]
    return select_components(variances, criterion, n_samples=n, n_features=d, total_variance=float(variances.sum())).k


def dual(X: np.ndarray, criterion: Any, tmp_path: Path) -> PCA:
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    return PCA(criterion, solver="dual").fit(str(tmp_path / "x.npy"))


# --- exact solvers ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:n_components=.* keeps no component")
@pytest.mark.parametrize("solver", ["covariance", "tsqr"])
@pytest.mark.parametrize("criterion", [*CRITERIA, 0.7])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_choice_is_that_of_numpys_spectrum(shape: tuple[int, int], criterion: Any, solver: str) -> None:
    X = planted(*shape, rank=min(4, *shape))
    if criterion == "mle" and shape[0] < shape[1]:
        with pytest.raises(UsageError, match="'mle' needs as many samples as features"):
            PCA(criterion, solver=solver).fit(X)
        return
    pca = PCA(criterion, solver=solver).fit(X)
    k = reference(X, criterion)
    assert pca.selection_.k == k
    assert pca.n_components_ == max(k, 1) == len(pca.components_)
    assert pca.selection_.criterion == ("fraction" if criterion == 0.7 else criterion)
    assert not pca.selection_.bound
    np.testing.assert_allclose(pca.explained_variance_, spectrum(X)[: max(k, 1)], rtol=1e-9)


@pytest.mark.parametrize("shape", [(300, 20), (30, 30), (60, 2), (1000, 7)], ids=str)
@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("rank", [1, 2])
def test_mle_is_scikit_learns(shape: tuple[int, int], noise: float, rank: int) -> None:
    X = planted(*shape, rank=rank, noise=noise)
    theirs = decomposition.PCA("mle", svd_solver="full").fit(X)
    ours = PCA("mle").fit(X)
    assert ours.n_components_ == theirs.n_components_
    np.testing.assert_allclose(ours.explained_variance_, theirs.explained_variance_, rtol=1e-9)
    assert ours.noise_variance_ == pytest.approx(theirs.noise_variance_, rel=1e-9)


@pytest.mark.parametrize("criterion", [each for each in CRITERIA if each != "aic"])
def test_a_planted_rank_is_found(criterion: str) -> None:
    assert PCA(criterion).fit(planted()).n_components_ == 4


@pytest.mark.parametrize("criterion", ["bic", "gavish-donoho", "parallel", 0.7])
def test_the_dual_has_the_whole_spectrum_too(criterion: Any, tmp_path: Path) -> None:
    X = planted(40, 300)
    pca = dual(X, criterion, tmp_path)
    assert pca.solver_ == "dual"
    assert pca.n_components_ == pca.selection_.k == reference(X, criterion)


def test_weights_are_repeated_rows() -> None:
    X, weights = planted(), np.arange(400) % 3
    for criterion in ("bic", "parallel", 0.8):
        ours = PCA(criterion).fit(X, sample_weight=weights.astype(float))
        theirs = PCA(criterion).fit(np.repeat(X, weights, axis=0))
        assert ours.n_components_ == theirs.n_components_
        np.testing.assert_allclose(ours.selection_.values, theirs.selection_.values, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:n_components=.* keeps no component")
@pytest.mark.parametrize("criterion", [*CRITERIA, 0.5])
def test_a_whole_sum_of_small_weights_is_no_count_of_rows(criterion: Any) -> None:
    X, weights = planted(100, 6), np.full(100, 0.05)  # 5 in all, but the rank is 6
    if criterion == "mle":
        with pytest.raises(UsageError, match="as many samples as features"):
            PCA(criterion).fit(X, sample_weight=weights)
    else:
        assert 1 <= PCA(criterion).fit(X, sample_weight=weights).n_components_ <= 6


@pytest.mark.parametrize("criterion", CRITERIA)
def test_float32_and_large_means(criterion: str) -> None:
    X = planted().astype(np.float32)
    assert PCA(criterion).fit(X).n_components_ == PCA(criterion).fit(X.astype(float) + 1e6).n_components_


# --- where nothing stands out -----------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["bic", "gavish-donoho", "parallel"])
def test_noise_alone_keeps_one_component_and_a_warning(criterion: str) -> None:
    X = np.random.default_rng(0).standard_normal((500, 20))
    with pytest.warns(UserWarning, match=f"n_components='{criterion}' keeps no component, so one is kept"):
        pca = PCA(criterion).fit(X)
    assert (pca.n_components_, pca.selection_.k) == (1, 0)


@pytest.mark.parametrize("solver", ["covariance", "tsqr", "sketch"])
def test_equal_rows_keep_one_component(solver: str) -> None:
    X = np.full((20, 6), 3.0)
    with pytest.warns(UserWarning, match="all rows are equal"):
        assert PCA("bic", solver=solver).fit(X).n_components_ == 1
    assert PCA(0.5, solver=solver).fit(X).n_components_ == 1


# --- the sketch ---------------------------------------------------------------------------------------------------


def wide(rank: int = 12, n: int = 500, d: int = 400) -> np.ndarray:
    return planted(n, d, rank, noise=0.05)


@pytest.mark.parametrize("criterion", [each for each in CRITERIA if each != "mle"])
def test_a_sketch_decides_from_the_leading_variances(criterion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_plan, "ranks", lambda info, request: [40])
    pca = PCA(criterion, solver="sketch").fit(wide())
    assert pca.plan_ is not None
    assert pca.n_components_ == 12 == pca.selection_.k
    assert not pca.selection_.bound
    assert pca.n_passes_ == pca.plan_.n_passes == 2
    exact = PCA(12).fit(wide())
    np.testing.assert_allclose(pca.explained_variance_, exact.explained_variance_, rtol=1e-4)


@pytest.mark.parametrize(("criterion", "standardize"), [("bic", False), ("gavish-donoho", False), (0.9, False), ("bic", True), (0.9, True)])
def test_a_sketch_grows_until_it_is_decided(criterion: Any, standardize: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_plan, "ranks", lambda info, request: [7])
    X = wide()
    pca = PCA(criterion, solver="sketch", standardize=standardize).fit(X)
    plan = pca.plan_
    assert plan is not None
    assert (plan.rank, plan.max_rank) == (7, 28)
    assert "the sketch grows, to at most 28: 4 passes more" in plan.explain()
    assert plan.n_passes + 2 <= pca.n_passes_ <= (plan.max_passes or 0)
    exact = PCA(criterion, standardize=standardize).fit(X)
    assert pca.n_components_ == exact.n_components_
    assert pca.selection_.k == exact.selection_.k


def test_the_memory_of_the_grown_sketch_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    source, info = sp.open_source(wide()), sp.open_source(wide()).info
    grown = PCA("bic", solver="sketch", memory="4GiB").plan_for(source)
    assert info.n_features == 400
    assert (grown.rank, grown.max_rank) == (256, 400)
    fixed = PCA(200, solver="sketch", memory="4GiB").plan_for(source)  # all 400 directions
    assert fixed.rank == 400
    assert grown.stages[0].peak_memory == pytest.approx(fixed.stages[0].peak_memory, rel=0.02)
    assert fixed.max_rank is None


def test_an_undecided_sketch_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_plan, "ranks", lambda info, request: [5])
    noise = np.random.default_rng(0).standard_normal((300, 200))
    message = r"the 20 directions of the sketch do not decide n_components=0.95: .* needs at least \d+ components. 40 directions would take"
    with pytest.raises(UsageError, match=message):
        PCA(0.95, solver="sketch").fit(noise)


def test_mle_needs_the_whole_spectrum() -> None:
    with pytest.raises(UsageError, match="needs all variances, and a sketch finds the leading ones: use solver='covariance'"):
        PCA("mle", solver="sketch").fit(planted())
    wide_source = sp.open_source(np.broadcast_to(np.float32(0), (40_000, 30_000)))
    with pytest.raises(MemoryBudgetError, match="n_components='bic' needs only the leading variances"):
        PCA("mle", memory="2GiB").plan_for(wide_source)
    assert PCA("bic", memory="2GiB").plan_for(wide_source).solver == "sketch"


# --- the interface ----------------------------------------------------------------------------------------------


def test_a_name_that_is_no_criterion() -> None:
    with pytest.raises(UsageError, match=r"one of 'mle', 'bic', .*, not 'bik'. Did you mean 'bic'"):
        PCA("bik").fit(planted())
    with pytest.raises(UsageError, match="not 'fraction'"):
        PCA("fraction").fit(planted())


def test_batches_give_the_same_choice() -> None:
    X = planted(60, 30)
    for criterion in ("mle", "bic", 0.9):
        batches = PCA(criterion)
        for start in range(0, 60, 20):  # fewer rows than columns: no evidence yet
            batches.partial_fit(X[start : start + 20])
        assert batches.n_components_ == PCA(criterion).fit(X).n_components_
    early = PCA("mle").partial_fit(X[:20])
    with pytest.raises(Exception, match="not fitted"):
        early.transform(X)
    merged = PCA("bic").fit(X[:31]).merge(PCA("bic").fit(X[31:]))
    assert merged.n_components_ == merged.selection_.k == PCA("bic").fit(X).n_components_


def test_a_stored_choice_is_the_same(tmp_path: Path) -> None:
    pca = PCA("parallel").fit(planted())
    pca.save(tmp_path / "m.zarr")
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, PCA)
    assert loaded.selection_.reason == pca.selection_.reason
    np.testing.assert_array_equal(loaded.selection_.values, pca.selection_.values)
    assert pca.summary()["selection"] == pca.selection_.reason


def test_a_number_makes_no_choice() -> None:
    pca = PCA(0.5).fit(planted())
    assert pca.selection_.criterion == "fraction"
    assert not hasattr(pca.set_params(n_components=3).fit(planted()), "selection_")


def test_select_components_takes_a_fit() -> None:
    X = planted()
    assert sp.select_components(PCA().fit(X), "bic").k == PCA("bic").fit(X).n_components_


@pytest.mark.parametrize("criterion", ["bic", "gavish-donoho"])
def test_in_a_config_and_on_the_command_line(
    criterion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_h5(tmp_path / "x.h5", planted())
    monkeypatch.chdir(tmp_path)
    config = {"input": {"path": "x.h5"}, "method": {"n_components": criterion}, "output": {"model": "a.zarr"}}
    assert run_job(make_config(config), Observer())["components"] == 4
    done = run_here(["fit", "x.h5", "-k", criterion, "--model", "b.zarr", "--json"], monkeypatch, capsys)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["components"] == 4
    assert run_here(["fit", "x.h5", "-k", "bik", "--model", "c.zarr"], monkeypatch, capsys).code == 2


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match="at least 2 rows"):
        PCA("bic").fit_source(sp.open_source(np.ones((1, 3))))
