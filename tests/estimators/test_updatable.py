"""Models with latent variables and kernel PCA from sums: batches, merges, rows taken out, stored and loaded; and EM that starts warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca import FactorAnalysis, KernelPCA, ProbabilisticPCA
from streampca.errors import CorruptDataError, DataError, UsageError
from streampca.estimators.updatable import restored
from streampca.events import Observer
from streampca.jobs import make_config, run_job
from streampca.statistics import Scatter
from tests.estimators.planted import planted, with_holes

KINDS: list[tuple[Any, float]] = [
    (ProbabilisticPCA(3), 1e-10),
    (ProbabilisticPCA(3, method="em"), 1e-8),
    (FactorAnalysis(3, tol=1e-9), 1e-5),
]


def like(estimator: Any) -> Any:
    return type(estimator)(**estimator.get_params())


def assert_same_model(found: Any, wanted: Any, tolerance: float) -> None:
    assert (found.n_samples_, found.n_components_, found.solver_) == (wanted.n_samples_, wanted.n_components_, wanted.solver_)
    np.testing.assert_allclose(found.mean_, wanted.mean_, rtol=1e-12)
    covariance = wanted.get_covariance()
    np.testing.assert_allclose(found.get_covariance(), covariance, atol=tolerance * np.abs(covariance).max())
    assert found.loglike_[-1] == pytest.approx(wanted.loglike_[-1], rel=tolerance)


@pytest.mark.parametrize(("kind", "tolerance"), KINDS)
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_batches_merges_and_removals_are_one_fit(kind: Any, tolerance: float, offset: float, tmp_path: Path) -> None:
    X = planted(400, 10, 3, mean=offset)[1]
    wanted = like(kind).fit(X)
    tolerance = max(tolerance, 1e-9 * offset * 1e-3)
    batches = like(kind)
    for start, stop in ((0, 1), (1, 150), (150, 400)):
        batches.partial_fit(X[start:stop])
    assert_same_model(batches, wanted, tolerance)
    merged = like(kind).fit(X[:250])
    merged.save(tmp_path / "m.zarr")
    merged = sp.load(tmp_path / "m.zarr").merge(like(kind).fit(X[250:]))
    assert_same_model(merged, wanted, tolerance)
    assert merged.summary()["can_be_updated"]
    assert_same_model(merged.subtract(like(kind).fit(X[250:])), like(kind).fit(X[:250]), tolerance)


def test_weights_count_in_batches_too() -> None:
    X, weights = planted(200, 6, 2)[1], np.random.default_rng(0).integers(0, 3, 200).astype(float)
    batches = ProbabilisticPCA(2).partial_fit(X[:90], sample_weight=weights[:90]).partial_fit(X[90:], sample_weight=weights[90:])
    assert_same_model(batches, ProbabilisticPCA(2).fit(np.repeat(X, weights.astype(int), axis=0)), 1e-10)


def test_what_keeps_no_sums_is_refused(tmp_path: Path) -> None:
    X = planted(200, 6, 2)[1]
    holes = with_holes(X, 0.1)
    fitted = ProbabilisticPCA(2, tol=1e-3).fit(holes)
    assert not fitted.summary()["can_be_updated"]
    for act in (lambda: fitted.partial_fit(X), lambda: fitted.merge(ProbabilisticPCA(2).fit(X))):
        with pytest.raises(UsageError, match="complete rows"):
            act()
    complete = ProbabilisticPCA(2).fit(X)
    with pytest.raises(DataError, match=r"row \d+, column \d+ is missing.*warm_start"):
        complete.partial_fit(holes)
    assert complete.n_samples_ == 200
    with pytest.raises(UsageError, match="between 1 and"):
        ProbabilisticPCA(9).partial_fit(X)
    with pytest.raises(UsageError, match="cannot merge a ProbabilisticPCA with a FactorAnalysis"):
        complete.merge(FactorAnalysis(2).fit(X))
    exact = KernelPCA(2, gamma=0.1, method="exact").fit(X)
    for act in (lambda: exact.partial_fit(X), lambda: KernelPCA(2, method="exact").partial_fit(X)):
        with pytest.raises(UsageError, match="nystrom"):
            act()
    with pytest.raises(CorruptDataError, match="not those of the model"):
        restored(Scatter, Scatter(3).to_arrays(), 4, 0)


def test_kernel_batches_keep_the_landmarks_of_the_first() -> None:
    X = planted(300, 5, 2)[1]
    batches = KernelPCA(2, gamma=0.05, n_landmarks=30, whiten=True).partial_fit(X[:100])
    landmarks = np.asarray(batches.landmarks_)
    for start in (100, 200):
        batches.partial_fit(X[start : start + 100])
    np.testing.assert_array_equal(batches.landmarks_, landmarks)
    assert (batches.n_samples_, batches.solver_) == (300, "nystrom")
    np.testing.assert_allclose(batches.transform(X).std(axis=0, ddof=1), 1.0, rtol=1e-6)


def test_an_exact_fit_goes_on_with_all_its_rows_as_landmarks() -> None:
    X = planted(120, 4, 2)[1]
    exact = KernelPCA(2, gamma=0.002).fit(X)
    again = KernelPCA(2, gamma=0.002).fit(X[:80]).partial_fit(X[80:])
    assert (exact.solver_, again.solver_, again.n_samples_, len(np.asarray(again.landmarks_))) == ("exact", "nystrom", 120, 80)
    np.testing.assert_allclose(again.eigenvalues_, exact.eigenvalues_, rtol=1e-4)  # the kernel is smooth: 80 rows span the others
    np.testing.assert_allclose(np.abs(again.transform(X)), np.abs(exact.transform(X)), atol=1e-3)


# --- EM that starts where the last fit ended --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ProbabilisticPCA, FactorAnalysis])
def test_a_warm_start_saves_iterations_and_ends_at_the_same_model(kind: Any, tmp_path: Path) -> None:
    X = with_holes(planted(400, 8, 2)[1], 0.2)
    cold = kind(2, tol=1e-8, max_iter=500).fit(X)
    yesterday = kind(2, tol=1e-8, max_iter=500, warm_start=True).fit(X[:390])  # nothing to start from yet
    yesterday.save(tmp_path / "m.zarr")
    by_path = kind(2, tol=1e-8, max_iter=500, warm_start=str(tmp_path / "m.zarr")).fit(X)
    for warm in (yesterday.fit(X), by_path):
        assert warm.n_iter_ < 0.7 * cold.n_iter_
        np.testing.assert_allclose(warm.get_covariance(), cold.get_covariance(), atol=2e-3 * cold.get_covariance().max())
        assert warm.loglike_[-1] == pytest.approx(cold.loglike_[-1], rel=1e-6)
    with pytest.raises(UsageError, match="has 2 components of 8 features, but 3"):
        kind(3, warm_start=str(tmp_path / "m.zarr")).fit(X)
    with pytest.raises(UsageError, match="warm_start must be"):
        kind(2, warm_start=3).fit(X)


def test_passes_of_another_start_are_not_gone_on_with(tmp_path: Path) -> None:
    """A nightly config may start at the model that it replaces."""
    X = with_holes(planted(200, 6, 2)[1], 0.1)
    np.save(tmp_path / "x.npy", X)
    ProbabilisticPCA(2, tol=1e-3).fit(X[:50]).save(tmp_path / "m.zarr")
    method = {"name": "ppca", "n_components": 2, "warm_start": str(tmp_path / "m.zarr")}
    output = {"model": str(tmp_path / "m.zarr"), "overwrite": True}
    config = make_config({"input": {"path": str(tmp_path / "x.npy")}, "method": method, "output": output})
    names = []
    for _ in range(2):
        run_job(config, Observer())
        passes = json.loads((tmp_path / "m.zarr.manifest.json").read_text())["passes"]
        names.append({each["name"] for each in passes if each["name"].startswith("em-")})
    assert all(names)
    assert not names[0] & names[1]
