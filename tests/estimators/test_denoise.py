"""Denoised rows: against the SVD of the whole table with shrunk singular values, and against the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest

import streampca as sp
from streampca import PCA
from streampca.errors import DataError, MemoryBudgetError, NonFiniteError, OutputError, UsageError
from streampca.selection import shrink
from tests.estimators.test_transform_to import SUFFIXES, scores_in

KINDS = ["hard", "soft", "optimal"]


def planted(n: int = 300, d: int = 40, rank: int = 3, *, noise: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy rows and the rows without noise."""
    rng = np.random.default_rng([seed, n, d])
    signal = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d)) * 0.6 + 20
    return signal + noise * rng.standard_normal((n, d)), signal


def reference(X: np.ndarray, kind: Any) -> np.ndarray:
    """Return the table with its singular values shrunk."""
    mean = X.mean(axis=0)
    U, L, V = np.linalg.svd(X - mean, full_matrices=False)
    m = min(len(X) - 1, X.shape[1])
    rows: np.ndarray = U[:, :m] * shrink(L[:m], len(X) - 1, X.shape[1], kind) @ V[:m] + mean
    return rows


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(300, 40), (30, 60), (25, 25)], ids=str)
def test_rows_are_those_of_shrunk_singular_values(shape: tuple[int, int], kind: str, whiten: bool) -> None:
    X, _ = planted(*shape)
    pca = PCA(shrinkage=kind, whiten=whiten).fit(X)
    np.testing.assert_allclose(pca.denoise(X), reference(X, kind), atol=1e-9)
    plain = PCA(whiten=whiten).fit(X)
    np.testing.assert_array_equal(pca.transform(X), plain.transform(X))  # scores are left alone


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_components_are_as_good_if_they_hold_the_signal(kind: str) -> None:
    X, _ = planted()
    few, wanted = PCA(10, shrinkage=kind).fit(X).denoise(X), reference(X, kind)
    np.testing.assert_allclose(few, wanted, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_taken_away(kind: str) -> None:
    X, signal = planted(1000, 200)
    error = {name: np.mean((PCA(k, shrinkage=name).fit(X).denoise(X) - signal) ** 2) for name, k in ((kind, None), (None, 3))}
    assert error[kind] < 0.1 * np.mean((X - signal) ** 2)
    if kind == "optimal":
        assert error[kind] < error[None]  # better than to know the rank


def test_a_sketch_estimates_the_noise_from_its_tail() -> None:
    X, signal = planted(400, 500)
    pca = PCA(10, shrinkage="optimal", solver="sketch").fit(X)
    assert pca.solver_ == "sketch"
    np.testing.assert_allclose(pca.denoise(X), PCA(shrinkage="optimal").fit(X).denoise(X), atol=0.15)
    assert np.mean((pca.denoise(X) - signal) ** 2) < 0.05


def test_without_shrinkage_it_is_the_projection() -> None:
    X, _ = planted()
    pca = PCA(4).fit(X)
    np.testing.assert_allclose(pca.denoise(X), pca.inverse_transform(pca.transform(X)), atol=1e-12)


def test_standardised_columns_and_weights() -> None:
    X, _ = planted()
    scaled = PCA(shrinkage="hard", standardize=True).fit(X * np.geomspace(1e-3, 1e3, 40))
    wanted = reference((X - X.mean(axis=0)) / X.std(axis=0), "hard") * X.std(axis=0) + X.mean(axis=0)
    np.testing.assert_allclose(scaled.denoise(X * np.geomspace(1e-3, 1e3, 40)) / np.geomspace(1e-3, 1e3, 40), wanted, atol=1e-9)
    weights = np.arange(300) % 3
    weighted = PCA(shrinkage="soft").fit(X, sample_weight=weights.astype(float))
    np.testing.assert_allclose(weighted.denoise(X), PCA(shrinkage="soft").fit(np.repeat(X, weights, axis=0)).denoise(X), atol=1e-9)


def test_equal_rows_stay() -> None:
    X = np.full((6, 3), 2.5)
    np.testing.assert_array_equal(PCA(shrinkage="optimal").fit(X).denoise(X), X)


def test_noise_alone_leaves_the_mean() -> None:
    X = np.random.default_rng(0).standard_normal((400, 30))
    np.testing.assert_allclose(PCA(shrinkage="hard").fit(X).denoise(X), np.broadcast_to(X.mean(axis=0), X.shape), atol=1e-12)


# --- streamed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_stored_rows_are_those_of_denoise(tmp_path: Path, suffix: str, dtype: str, small_shards: None) -> None:
    X = planted()[0].astype(dtype)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(64, 40))
    pca = PCA(shrinkage="optimal").fit(str(tmp_path / "x.h5"))
    out = tmp_path / f"y{suffix}"
    pca.denoise_to(str(tmp_path / "x.h5"), out)
    stored = scores_in(out)
    assert stored.dtype == dtype
    np.testing.assert_allclose(stored, pca.denoise(X), rtol=1e-5 if dtype == "float32" else 1e-12)
    with pytest.raises(OutputError):
        pca.denoise_to(X, out)
    pca.denoise_to(X, out, overwrite=True)


def test_lazy_rows_are_denoised_lazily() -> None:
    X, _ = planted()
    pca = PCA(shrinkage="hard").fit(X)
    np.testing.assert_allclose(pca.denoise(da.from_array(X, chunks=(70, 40))).compute(), pca.denoise(X), atol=1e-12)
    np.testing.assert_allclose(pca.denoise(sp.open_source(X)).compute(), pca.denoise(X), atol=1e-12)


def test_a_loaded_fit_denoises_the_same(tmp_path: Path) -> None:
    X, _ = planted()
    pca = PCA(5, shrinkage="optimal").fit(X)
    pca.save(tmp_path / "m.zarr", state=False)
    loaded = sp.load(tmp_path / "m.zarr")
    assert isinstance(loaded, PCA)
    np.testing.assert_array_equal(loaded.denoise(X), pca.denoise(X))


def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    X, _ = planted()
    for wrong in ("best", 3, True):
        with pytest.raises(UsageError, match="shrinkage must be None or one of 'hard', 'soft', 'optimal', not"):
            PCA(shrinkage=wrong).fit(X)  # type: ignore[arg-type]
    pca = PCA(shrinkage="hard").fit(X)
    with pytest.raises(ValueError, match="39 features"):
        pca.denoise(X[:, 1:])
    with pytest.raises(DataError, match="39 features"):
        pca.denoise(da.from_array(X[:, 1:]))
    bad = X.copy()
    bad[3, 2] = np.nan
    with pytest.raises(NonFiniteError):
        pca.denoise_to(bad, tmp_path / "y.npy")
    with pytest.raises(MemoryBudgetError):
        PCA(shrinkage="hard", memory="1MiB").fit(X)


# --- rotated loadings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["varimax", "quartimax", "promax"])
def test_rotated_loadings_are_those_of_the_rotation(kind: str) -> None:
    X, _ = planted()
    pca = PCA(3).fit(X)
    loadings = pca.components_.T * np.sqrt(pca.explained_variance_)
    rotated, rotation = pca.rotate(kind)
    np.testing.assert_allclose(rotated, loadings @ rotation, atol=1e-12)
    if kind != "promax":
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-10)
    with pytest.raises(UsageError, match=r"unknown rotation 'varimx': choose one of varimax, quartimax, promax\. Did you mean 'varimax'"):
        pca.rotate("varimx")
