"""Rows added to stored models and taken out again, and models joined: always the model of one fit to the rows that are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import streampca as sp
from streampca import estimators
from streampca.errors import DataError, OutputError, UsageError
from streampca.events import Observer
from streampca.jobs import Change, InputConfig, make_config, merge_job, run_job, subtract_job, update_job

METHODS: dict[str, dict[str, Any]] = {
    "covariance": {"solver": "covariance"},
    "tsqr": {"solver": "tsqr"},
    "ppca": {"name": "ppca"},
}


def rows(n: int, seed: int = 0, d: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) + 1e4


def fit(folder: Path, X: np.ndarray, name: str = "x", solver: str = "covariance", **output: Any) -> str:
    np.save(folder / f"{name}.npy", X)
    content = {
        "input": {"path": str(folder / f"{name}.npy")},
        "method": {"n_components": 3, **METHODS[solver]},
        "memory": "1GiB",
        "output": {"model": str(folder / f"{name}.zarr"), **output},
    }
    run_job(make_config(content), Observer())
    return str(folder / f"{name}.zarr")


def change(model: str, path: Path | str, **more: Any) -> Change:
    return Change(model, InputConfig(path=str(path)), memory="1GiB", **more)


def assert_is_fit_of(path: str | Path, X: np.ndarray, solver: str = "covariance", tolerance: float = 1e-12) -> None:
    how = dict(METHODS[solver])
    found, wanted = sp.load(path), estimators.METHODS[how.pop("name", "pca")](n_components=3, **how).fit(X)
    assert found.n_samples_ == len(X)
    np.testing.assert_allclose(found.explained_variance_, wanted.explained_variance_, rtol=tolerance)
    np.testing.assert_allclose(found.components_, wanted.components_, atol=100 * tolerance)
    np.testing.assert_allclose(found.mean_, wanted.mean_, rtol=tolerance)
    np.testing.assert_allclose(found.noise_variance_, wanted.noise_variance_, rtol=10 * tolerance)


@pytest.mark.parametrize("solver", METHODS)
def test_thirty_nights_are_one_fit(tmp_path: Path, solver: str) -> None:
    model = fit(tmp_path, rows(500), solver=solver)
    nights = [rows(5 + night, seed=night + 1) for night in range(30)]
    for number, night in enumerate(nights):
        np.save(tmp_path / f"night{number}.npy", night)
        summary = update_job(change(model, tmp_path / f"night{number}.npy"), Observer())
        assert summary["rows"] == len(night)
    assert_is_fit_of(model, np.concatenate([rows(500), *nights]), solver)
    manifest = json.loads(Path(f"{model}.manifest.json").read_text())
    assert len(manifest["inputs"]) == 31
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize("solver", METHODS)
def test_four_sites_are_one_fit(tmp_path: Path, solver: str) -> None:
    parts = [rows(100 + 50 * site, seed=site) for site in range(4)]
    models = [fit(tmp_path, part, f"site{site}", solver) for site, part in enumerate(parts)]
    summary = merge_job(str(tmp_path / "all.zarr"), models)
    assert summary["rows"] == sum(map(len, parts))
    assert_is_fit_of(tmp_path / "all.zarr", np.concatenate(parts), solver)
    with pytest.raises(OutputError, match="exists already"):
        merge_job(str(tmp_path / "all.zarr"), models)
    with pytest.raises(DataError, match=r"site0\.npy"):
        merge_job(str(tmp_path / "twice.zarr"), [models[0], models[0]])
    merge_job(str(tmp_path / "twice.zarr"), [models[0], models[0]], force=True)
    assert_is_fit_of(tmp_path / "twice.zarr", np.concatenate([parts[0], parts[0]]), solver)


@pytest.mark.parametrize("solver", ["covariance", "ppca"])
def test_subtract_undoes_update(tmp_path: Path, solver: str) -> None:
    X, Y = rows(500), rows(60, seed=1)
    model = fit(tmp_path, X, solver=solver)
    np.save(tmp_path / "y.npy", Y)
    update_job(change(model, tmp_path / "y.npy"), Observer())
    subtract_job(change(model, tmp_path / "y.npy", to=str(tmp_path / "rest.zarr")), Observer())
    assert_is_fit_of(model, np.concatenate([X, Y]), solver)
    assert_is_fit_of(tmp_path / "rest.zarr", X, solver, tolerance=1e-11)
    assert [each["input"] for each in sp.load(tmp_path / "rest.zarr").inputs_] == [str(tmp_path / "x.npy")]


def test_a_part_of_a_file_is_forgotten_once(tmp_path: Path) -> None:
    X = rows(500)
    model = fit(tmp_path, X)
    np.save(tmp_path / "part.npy", X[100:300])
    subtract_job(change(model, tmp_path / "part.npy"), Observer())
    assert_is_fit_of(model, np.concatenate([X[:100], X[300:]]), tolerance=1e-11)
    with pytest.raises(UsageError, match="taken out"):
        subtract_job(change(model, tmp_path / "part.npy"), Observer())


def test_what_cannot_be_subtracted(tmp_path: Path) -> None:
    model = fit(tmp_path, rows(50))
    np.save(tmp_path / "wild.npy", 100 * rows(20, seed=5))
    with pytest.raises(DataError, match="not among them"):
        subtract_job(change(model, tmp_path / "wild.npy"), Observer())
    np.save(tmp_path / "more.npy", rows(60, seed=5))
    with pytest.raises(DataError, match="60 rows cannot be taken from 50"):
        subtract_job(change(model, tmp_path / "more.npy"), Observer())
    assert_is_fit_of(model, rows(50))
    by_qr = fit(tmp_path, rows(50), "qr", "tsqr")
    with pytest.raises(UsageError, match="covariance"):
        subtract_job(change(by_qr, tmp_path / "qr.npy"), Observer())
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def test_the_same_file_is_added_once_unless_forced(tmp_path: Path) -> None:
    X, Y = rows(100), rows(20, seed=1)
    model = fit(tmp_path, X)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(UsageError, match="holds all 100 rows"):
        update_job(change(model, tmp_path / "x.npy"), Observer())
    update_job(change(model, tmp_path / "y.npy"), Observer())
    for _ in range(2):
        with pytest.raises(UsageError, match="nothing is new"):
            update_job(change(model, tmp_path / "y.npy"), Observer())
        (tmp_path / "y.npy").touch()  # another fingerprint, the same rows
    assert_is_fit_of(model, np.concatenate([X, Y]))
    update_job(change(model, tmp_path / "y.npy", force=True), Observer())
    assert_is_fit_of(model, np.concatenate([X, Y, Y]))


def test_another_file_of_the_same_name_is_new(tmp_path: Path) -> None:
    X, Y = rows(100), rows(120, seed=1)
    model = fit(tmp_path, X)
    np.save(tmp_path / "x.npy", Y)
    assert update_job(change(model, tmp_path / "x.npy"), Observer())["rows"] == 120
    assert_is_fit_of(model, np.concatenate([X, Y]))


def test_a_file_that_has_grown_is_read_from_where_it_ended(tmp_path: Path) -> None:
    X = rows(300)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X[:200], chunks=(16, 6), maxshape=(None, 6))
    content = {"input": {"path": str(tmp_path / "x.h5")}, "method": {"n_components": 3}, "output": {"model": str(tmp_path / "m.zarr")}}
    run_job(make_config(content), Observer())
    for end in (250, 300):
        with h5py.File(tmp_path / "x.h5", "a") as file:
            file["X"].resize(end, axis=0)
            file["X"][end - 50 :] = X[end - 50 : end]
        assert update_job(change(str(tmp_path / "m.zarr"), tmp_path / "x.h5"), Observer())["rows"] == 50
        assert_is_fit_of(tmp_path / "m.zarr", X[:end])
    assert len(sp.load(tmp_path / "m.zarr").inputs_) == 1


def test_of_many_files_only_the_new_ones_are_read(tmp_path: Path) -> None:
    parts = [rows(40, seed=number) for number in range(4)]
    for number in range(2):
        np.save(tmp_path / f"run{number}.npy", parts[number])
    content = {"input": {"path": str(tmp_path / "run*.npy")}, "method": {"n_components": 3}, "output": {"model": str(tmp_path / "m.zarr")}}
    run_job(make_config(content), Observer())
    for number in range(2, 4):
        np.save(tmp_path / f"run{number}.npy", parts[number])
    assert update_job(change(str(tmp_path / "m.zarr"), tmp_path / "run*.npy"), Observer())["rows"] == 80
    assert_is_fit_of(tmp_path / "m.zarr", np.concatenate(parts))


def test_what_cannot_be_updated(tmp_path: Path) -> None:
    X = rows(50)
    sp.PCA(3).fit(X).save(tmp_path / "bare.zarr", state=False)
    np.save(tmp_path / "y.npy", X)
    with pytest.raises(UsageError, match="keep the state"):
        update_job(change(str(tmp_path / "bare.zarr"), tmp_path / "y.npy"), Observer())
    model = fit(tmp_path, X)
    np.save(tmp_path / "wide.npy", rows(50, d=7))
    with pytest.raises(DataError, match="7 features"):
        update_job(change(model, tmp_path / "wide.npy"), Observer())
    assert_is_fit_of(model, X)


def test_python_subtracts_too() -> None:
    X, Y = rows(200), rows(50, seed=1)
    both = sp.PCA(3).fit(np.concatenate([X, Y]))
    left, wanted = both.subtract(sp.PCA(3).fit(Y)), sp.PCA(3).fit(X)
    assert left.n_samples_ == 200
    np.testing.assert_allclose(left.explained_variance_, wanted.explained_variance_, rtol=1e-11)
    with pytest.raises(UsageError, match="covariance"):
        sp.PCA(3, solver="tsqr").fit(X).subtract(sp.PCA(3, solver="tsqr").fit(Y))


# --- kernel features: of the landmarks that the first fit has chosen ---------------------------------------------------


KERNELS: dict[str, dict[str, Any]] = {"nystrom": {"n_landmarks": 40}, "fourier": {"n_random_features": 40}}


def assert_is_of_features(found: Any, first: Any, X: np.ndarray) -> None:
    """The model is that of all rows, mapped as the first fit maps them: from the same sums at once, and by NumPy."""
    wanted = first.part_of(sp.open_source(X))
    wanted.solver_ = first.solver_
    wanted._from_state(wanted._state)
    assert found.n_samples_ == len(X)
    largest = wanted.eigenvalues_[0]
    np.testing.assert_allclose(found.eigenvalues_, wanted.eigenvalues_, atol=1e-12 * largest)
    np.testing.assert_allclose(found.transform(X[:50]), wanted.transform(X[:50]), atol=1e-9)
    F = first._basis.features.transform(X)
    np.testing.assert_allclose(found.eigenvalues_, np.linalg.eigvalsh(np.cov(F.T) * (len(X) - 1))[::-1][:3], rtol=1e-7)


@pytest.mark.parametrize("how", KERNELS)
def test_kernel_features_of_nights_and_sites_are_those_of_one_fit(tmp_path: Path, how: str) -> None:
    X, nights = rows(400), [rows(5 + night, seed=night + 1) for night in range(4)]
    np.save(tmp_path / "x.npy", X)
    method = {"name": "kpca", "n_components": 3, "gamma": 0.01, "method": how, "fit_inverse_transform": True, **KERNELS[how]}
    content: dict[str, Any] = {"input": {"path": str(tmp_path / "x.npy")}, "method": method, "output": {"model": str(tmp_path / "m.zarr")}}
    run_job(make_config(content), Observer())
    first = sp.load(tmp_path / "m.zarr")
    first.save(tmp_path / "first.zarr")
    parts = [first.part_of(sp.open_source(night)) for night in nights]
    for number, night in enumerate(nights):
        np.save(tmp_path / f"night{number}.npy", night)
        update_job(change(str(tmp_path / "m.zarr"), tmp_path / f"night{number}.npy"), Observer())
    whole = np.concatenate([X, *nights])
    found = sp.load(tmp_path / "m.zarr")
    assert_is_of_features(found, first, whole)
    assert found.inverse_transform(found.transform(X[:5])).shape == (5, 6)
    sites = []
    for number in range(len(nights)):
        site = {
            **content,
            "input": {"path": str(tmp_path / f"night{number}.npy")},
            "output": {"model": str(tmp_path / f"site{number}.zarr")},
        }
        site["method"] = {"name": "kpca", "n_components": 3, "landmarks": str(tmp_path / "first.zarr")}
        run_job(make_config(site), Observer())
        sites.append(site["output"]["model"])
    merge_job(str(tmp_path / "all.zarr"), [str(tmp_path / "first.zarr"), *sites])
    np.testing.assert_allclose(sp.load(tmp_path / "all.zarr").eigenvalues_, found.eigenvalues_, rtol=1e-12)
    merged = first
    for part in parts:
        merged.merge(part)
    np.testing.assert_allclose(merged.eigenvalues_, found.eigenvalues_, rtol=1e-12)
    for part in parts[1:]:
        merged.subtract(part)
    assert_is_of_features(merged, merged, np.concatenate([X, nights[0]]))
    other = sp.KernelPCA(3, gamma=0.01, random_state=1, **{**KERNELS[how], "method": how}).fit(whole)
    with pytest.raises(UsageError, match="part_of"):
        merged.merge(other)


def test_the_manifest_says_how_far_the_model_has_moved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(300, 4)) * [5, 3, 1, 1], rng.normal(size=(300, 4)) * [1, 1, 3, 5]
    X[:, 3], Y[:, 3] = 7.0, 8.0  # something constant has moved: infinitely far
    for name, rows in (("x", X), ("y", Y)):
        np.save(tmp_path / f"{name}.npy", rows)
    model = str(tmp_path / "m.zarr")
    sp.PCA(2).fit(str(tmp_path / "x.npy")).save(model)
    update_job(Change(model, InputConfig(path=str(tmp_path / "y.npy"))), Observer())
    drift = json.loads((tmp_path / "m.zarr.manifest.json").read_text())["drift"]
    assert drift["angle"] > 1
    assert drift["rows"] == [300, 600]
    assert drift["moved"]["x3"] is None
