from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

import streampca as sp
from streampca import PCA
from streampca.engine import choose_scheduler
from streampca.errors import InterruptedRunError, MemoryBudgetError, OutputError, UsageError
from streampca.events import Observer

SUFFIXES = [".zarr", ".h5", ".npy"]


def data(n: int = 5000, dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(3)
    return (rng.standard_normal((n, 6)) * np.arange(1, 7) + 5).astype(dtype)


def scores_in(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            return file["scores"][:]
    return np.asarray(zarr.open_array(path, mode="r")[:])


def given_as(kind: str, X: np.ndarray, folder: Path) -> Any:
    path = folder / "in" / "x.h5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(512, 6), compression="gzip")
    kinds = {"array": X, "dask": da.from_array(X, chunks=(700, 4)), "path": str(path), "source": sp.open_source(path)}
    return kinds[kind]


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("kind", ["array", "dask", "path", "source"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stored_scores_are_those_of_transform(tmp_path: Path, suffix: str, kind: str, dtype: str) -> None:
    X = data(dtype=dtype)
    pca = PCA(3, whiten=True).fit(X)
    out = tmp_path / "new" / f"z{suffix}"
    pca.transform_to(given_as(kind, X, tmp_path), out)
    scores = scores_in(out)
    assert scores.dtype == (np.float32 if dtype == "float32" else np.float64)
    np.testing.assert_array_equal(scores, pca.transform(X))
    assert [each.name for each in (tmp_path / "new").iterdir()] == [out.name]


@pytest.mark.parametrize("kind", ["array", "dask", "path"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_cluster_writes_the_same_scores(tmp_path: Path, two_processes: Any, suffix: str, kind: str) -> None:
    X = data()
    pca = PCA(3).fit(X)
    given = given_as(kind, X, tmp_path)
    pca.transform_to(given, tmp_path / f"here{suffix}")
    pca.transform_to(given, tmp_path / f"there{suffix}", scheduler=choose_scheduler(two_processes))
    np.testing.assert_array_equal(scores_in(tmp_path / f"there{suffix}"), pca.transform(X))
    with two_processes.as_current():
        pca.transform_to(given, tmp_path / f"again{suffix}")
    np.testing.assert_array_equal(scores_in(tmp_path / f"again{suffix}"), scores_in(tmp_path / f"here{suffix}"))
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("suffix", [".zarr", ".h5"])
def test_the_columns_are_named(tmp_path: Path, suffix: str) -> None:
    X = data(100)
    PCA(3).fit(X).transform_to(X, tmp_path / f"z{suffix}")
    assert sp.open_source(tmp_path / f"z{suffix}").info.feature_names == ("pca0", "pca1", "pca2")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_output_is_replaced_only_on_request(tmp_path: Path, suffix: str) -> None:
    X = data(500)
    pca, out = PCA(3).fit(X), tmp_path / f"z{suffix}"
    pca.transform_to(X, out)
    with pytest.raises(OutputError, match="exists already") as caught:
        pca.transform_to(X[:100], out)
    assert caught.value.exit_code == 73
    np.testing.assert_array_equal(scores_in(out), pca.transform(X))
    pca.transform_to(X[:100], out, overwrite=True)
    np.testing.assert_array_equal(scores_in(out), pca.transform(X[:100]))
    assert [each.name for each in tmp_path.iterdir()] == [out.name]


class StopAfter(Observer):
    """Asks to stop once some rows are done, and looks at the folder meanwhile."""

    def __init__(self, rows: int, out: Path) -> None:
        self.left, self.out = rows, out
        self.seen: list[np.ndarray | None] = []

    def advanced(self, rows: int, n_bytes: int) -> None:
        self.left -= rows
        self.seen.append(scores_in(self.out) if self.out.exists() else None)

    def stop_requested(self) -> bool:
        return self.left <= 0


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_stopped_transform_leaves_what_was_there(tmp_path: Path, suffix: str, exists: bool) -> None:
    X = np.random.default_rng(0).standard_normal((40_000, 256))  # more than one block of 32 MiB
    pca, out = PCA(2).fit(X[:500]), tmp_path / f"z{suffix}"
    old = pca.transform(X[:10])
    if exists:
        pca.transform_to(X[:10], out)
    observer = StopAfter(1, out)
    with pytest.raises(InterruptedRunError):
        pca.transform_to(X, out, overwrite=True, observer=observer)
    assert observer.seen
    assert [each.name for each in tmp_path.iterdir()] == ([out.name] if exists else [])
    for scores in observer.seen:  # the old output stayed in its place all the time
        assert (scores is not None) == exists
        if exists:
            np.testing.assert_array_equal(scores, old)
    if exists:
        np.testing.assert_array_equal(scores_in(out), old)


def test_a_suffix_that_is_not_known(tmp_path: Path) -> None:
    X = data(10)
    with pytest.raises(UsageError, match=r"the suffix '\.csv' is not one of \.zarr, \.h5"):
        PCA(2).fit(X).transform_to(X, tmp_path / "z.csv")
    assert [each.name for each in tmp_path.iterdir()] == []


def test_a_budget_that_is_too_small(tmp_path: Path) -> None:
    X = data(100)
    pca = PCA(2).fit(X)
    pca.memory = "1MiB"
    with pytest.raises(MemoryBudgetError, match=r"a memory budget of 1\.0 MiB cannot hold a transform, which needs at least"):
        pca.transform_to(X, tmp_path / "z.npy")
    assert [each.name for each in tmp_path.iterdir()] == []
