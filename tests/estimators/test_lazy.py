"""Inputs that are read block by block: Dask arrays, sources, paths. What comes back is lazy and right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

import streampca as sp
from streampca import PCA
from streampca.errors import DataError, NonFiniteError, SourceNotFoundError


def data(n: int = 300, d: int = 6, dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(5)
    return (rng.standard_normal((n, d)) * np.arange(1, d + 1) + 10).astype(dtype)


def write_h5(path: Path, X: np.ndarray, names: list[str] | None = None) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(64, X.shape[1]), compression="gzip")
        if names:
            file["feature_names"] = names
    return str(path)


def masked(X: np.ndarray) -> tuple[Any, np.ndarray]:
    lazy = da.from_array(X, chunks=(70, 4))
    return lazy[lazy[:, 0] > 9], X[X[:, 0] > 9]


DASK: dict[str, Callable[[np.ndarray], tuple[Any, np.ndarray]]] = {
    "one chunk": lambda X: (da.from_array(X, chunks=-1), X),
    "row chunks": lambda X: (da.from_array(X, chunks=(70, 6)), X),
    "uneven chunks": lambda X: (da.from_array(X, chunks=((1, 199, 3, 97), (6,))), X),
    "column chunks": lambda X: (da.from_array(X, chunks=(70, 4)), X),
    "single columns": lambda X: (da.from_array(X, chunks=(300, 1)), X),
    "unknown rows": masked,
    "an expression": lambda X: (da.from_array(2 * X.T, chunks=50).T / 2, X),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
@pytest.mark.parametrize("kind", DASK)
def test_a_dask_array_is_fitted_and_transformed_like_its_rows(kind: str, dtype: str) -> None:
    lazy, X = DASK[kind](data(dtype=dtype))
    ours, wanted = PCA(3).fit(lazy), PCA(3).fit(X)
    np.testing.assert_allclose(ours.explained_variance_, wanted.explained_variance_, rtol=1e-12)
    np.testing.assert_allclose(ours.components_, wanted.components_, atol=1e-12)
    assert ours.n_samples_ == len(X)

    scores = wanted.transform(lazy)
    assert isinstance(scores, da.Array)
    assert scores.dtype == (np.float32 if dtype == "float32" else np.float64) == scores._meta.dtype
    np.testing.assert_array_equal(scores.chunks[0], lazy.chunks[0])
    assert scores.chunks[1] == (3,)
    assert_chunks_are_declared(scores)
    atol = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(scores.compute(), wanted.transform(X), atol=atol)

    back = wanted.inverse_transform(scores)
    assert isinstance(back, da.Array)
    assert back.dtype == scores.dtype
    assert_chunks_are_declared(back)
    np.testing.assert_allclose(back.compute(), wanted.inverse_transform(wanted.transform(X)), atol=atol)

    each = wanted.score_samples(lazy)
    assert isinstance(each, da.Array)
    assert each.ndim == 1
    np.testing.assert_allclose(each.compute(), wanted.score_samples(X), rtol=1e-12)
    assert wanted.score(lazy) == pytest.approx(wanted.score(X), rel=1e-12)


def assert_chunks_are_declared(array: Any) -> None:
    """Compare every computed block with what the lazy array says of it."""
    for index in np.ndindex(array.numblocks):
        block = array.blocks[index].compute()
        declared = tuple(sizes[i] for sizes, i in zip(array.chunks, index, strict=True))
        assert block.dtype == array.dtype
        assert all(np.isnan(size) or size == length for size, length in zip(declared, block.shape, strict=True))


def boom(block: np.ndarray) -> np.ndarray:
    raise RuntimeError("computed")


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    lazy = da.ones((10, 6), chunks=5).map_blocks(boom, meta=np.empty((0, 0)))
    pca = PCA(2).fit(data())
    for result in (pca.transform(lazy), pca.score_samples(lazy), pca.inverse_transform(lazy[:, :2])):
        with pytest.raises(RuntimeError, match="computed"):
            result.compute()


def test_fit_transform_of_a_dask_array_is_lazy() -> None:
    X = data()
    scores = PCA(2, whiten=True).fit_transform(da.from_array(X, chunks=(100, 3)))
    assert isinstance(scores, da.Array)
    np.testing.assert_allclose(scores.compute(), PCA(2, whiten=True).fit_transform(X), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("how", ["source", "path", "text", "named", "glob", "array"])
def test_a_file_is_fitted_and_transformed_like_its_rows(tmp_path: Path, how: str, dtype: str) -> None:
    X = data(dtype=dtype)
    path = write_h5(tmp_path / "x.h5", X)
    given: Any = {
        "source": sp.open_source(path),
        "path": tmp_path / "x.h5",
        "text": path,
        "named": path + "::X",
        "glob": str(tmp_path / "*.h5"),
        "array": sp.open_array(path),
    }[how]
    ours, wanted = PCA(3, standardize=True).fit(given), PCA(3, standardize=True).fit(X)
    np.testing.assert_allclose(ours.components_, wanted.components_, atol=1e-12)
    scores = ours.transform(given)
    assert isinstance(scores, da.Array)
    assert (scores.shape, scores.dtype) == ((300, 3), np.dtype(dtype))
    assert_chunks_are_declared(scores)
    np.testing.assert_allclose(scores.compute(), wanted.transform(X), atol=1e-5 if dtype == "float32" else 1e-12)
    assert ours.score(given) == pytest.approx(wanted.score(X), rel=1e-6)
    np.testing.assert_allclose(ours.fit_transform(given).compute(), scores.compute(), atol=1e-12)
    np.testing.assert_allclose(PCA(3, standardize=True).partial_fit(given).partial_fit(given).mean_, wanted.mean_, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_stored_scores_are_inverted_lazily(tmp_path: Path, dtype: str) -> None:
    X = data(dtype=dtype)
    pca = PCA(3).fit(X)
    pca.transform_to(X, tmp_path / "z.h5")
    for given in (str(tmp_path / "z.h5"), sp.open_source(tmp_path / "z.h5")):
        back = pca.inverse_transform(given)
        assert isinstance(back, da.Array)
        assert (back.shape, back.dtype) == ((300, 6), np.dtype(dtype))
        assert_chunks_are_declared(back)
        np.testing.assert_allclose(back.compute(), pca.inverse_transform(pca.transform(X)), rtol=1e-5)


def test_another_width_is_refused_at_once(tmp_path: Path) -> None:
    pca = PCA(2).fit(data())
    narrow = data()[:, :5]
    for given in (da.from_array(narrow), sp.open_source(narrow), write_h5(tmp_path / "n.h5", narrow)):
        for method in (pca.transform, pca.score_samples, pca.score, pca.partial_fit):
            with pytest.raises(DataError, match="X has 5 features, but PCA is expecting 6 features"):
                method(given)
    for scores in (narrow, da.from_array(narrow), sp.open_source(narrow)):
        with pytest.raises(DataError, match=r"scores of shape \(300, 5\) do not have the 2 columns of this model"):
            pca.inverse_transform(scores)


def test_other_names_are_refused_and_named(tmp_path: Path) -> None:
    X = data()
    fitted = write_h5(tmp_path / "a.h5", X, ["a", "b", "c", "d", "e", "f"])
    other = write_h5(tmp_path / "b.h5", X, ["a", "b", "x", "d", "e", "f"])
    pca = PCA(2).fit(fitted)
    assert list(pca.feature_names_in_) == ["a", "b", "c", "d", "e", "f"]
    for method in (pca.transform, pca.score, pca.partial_fit, lambda path: pca.transform_to(path, tmp_path / "z.npy")):
        with pytest.raises(DataError, match=r"column 2 of .*b\.h5.* is 'x', but 'c' was there when the model was fitted"):
            method(other)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.h5", "b.h5"]
    assert not hasattr(pca.fit(X), "feature_names_in_")


def test_a_path_that_does_not_exist() -> None:
    with pytest.raises(SourceNotFoundError, match="no such file"):
        PCA(2).fit("no/such/file.h5")
    with pytest.raises(FileNotFoundError):
        PCA(2).fit(data()).transform("no/such/file.h5")


def test_an_entry_that_is_not_finite_is_named_by_its_row_in_the_file(tmp_path: Path) -> None:
    X = data()
    pca = PCA(2).fit(X)
    X[251, 4] = np.nan
    path = write_h5(tmp_path / "x.h5", X, list("abcdef"))
    for method in (PCA(2).fit, pca.partial_fit, lambda given: pca.transform_to(given, tmp_path / "z.npy")):
        with pytest.raises(NonFiniteError, match=r"row 251, column 4 \('e'\)"):
            method(path)
    with pytest.raises(NonFiniteError, match="column 4"):
        pca.transform(path).compute()


def test_a_cluster_gives_the_same_bits(tmp_path: Path, two_processes: Any) -> None:
    X = data()
    path = write_h5(tmp_path / "x.h5", X)
    for given in (path, X, da.from_array(X, chunks=(70, 4))):
        here = PCA(3).fit(given)
        with two_processes.as_current():
            there = PCA(3).fit(given)
        for name in ("components_", "explained_variance_", "mean_", "noise_variance_"):
            np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    with two_processes.as_current():
        np.testing.assert_allclose(here.transform(path).compute(), here.transform(X), atol=1e-12)
        assert here.score(path) == pytest.approx(here.score(X))


def test_stored_arrays_and_lists_of_paths_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open h5py dataset or Zarr array is not loaded into memory, as NumPy would."""
    X = data()
    path = write_h5(tmp_path / "x.h5", X)
    stored = zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(64, 6))
    monkeypatch.setattr(PCA, "_checked", lambda *_, **__: pytest.fail("taken as an array in memory"))
    wanted = PCA(3).fit(path)
    with h5py.File(path) as file:
        for each in (file["X"], stored, [path], (Path(path),)):
            ours = PCA(3).fit(each)
            np.testing.assert_allclose(ours.components_, wanted.components_, atol=1e-12)
            np.testing.assert_allclose(ours.transform(each).compute(), wanted.transform(path).compute(), atol=1e-12)
    assert PCA(3).fit([path, path]).n_samples_ == 2 * len(X)


def test_a_zarr_array_in_memory_is_an_array() -> None:
    X = data()
    np.testing.assert_array_equal(PCA(3).fit(zarr.array(X)).components_, PCA(3).fit(X).components_)
