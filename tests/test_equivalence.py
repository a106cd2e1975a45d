"""Every kind of source on every scheduler: the same bits, and the numbers of NumPy's SVD."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import zarr
from distributed import Client

import streampca as sp

N_ROWS, N_FEATURES, CHUNK_ROWS, K = 1500, 12, 50, 5
pytestmark = pytest.mark.usefixtures("small_shards")

Make = Callable[[Path, np.ndarray], Any]
KINDS: dict[str, Make] = {}


def kind(name: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        KINDS[name] = make
        return make

    return register


@cache
def table(dtype: str) -> np.ndarray:
    """Rows with a spectrum that falls by a factor of 1.5, and means other than zero."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(N_FEATURES, N_FEATURES)))[0]
    rows = (rng.normal(size=(N_ROWS, N_FEATURES)) * 1.5 ** -np.arange(N_FEATURES)) @ rotation + np.arange(N_FEATURES)
    return rows.astype(dtype)


def _hdf5(path: Path, rows: np.ndarray, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=rows, **options)
    return path


@kind("HDF5, contiguous")
def _(folder: Path, rows: np.ndarray) -> Any:
    return _hdf5(folder / "x.h5", rows)


@kind("HDF5, gzip")
def _(folder: Path, rows: np.ndarray) -> Any:
    return _hdf5(folder / "x.h5", rows, chunks=(CHUNK_ROWS, N_FEATURES), compression="gzip", shuffle=True)


@kind("HDF5, column chunks")
def _(folder: Path, rows: np.ndarray) -> Any:
    return _hdf5(folder / "x.h5", rows, chunks=(CHUNK_ROWS, 5))


@kind("HDF5, big-endian")
def _(folder: Path, rows: np.ndarray) -> Any:
    return _hdf5(folder / "x.h5", rows.astype(rows.dtype.newbyteorder(">")), chunks=(CHUNK_ROWS, N_FEATURES))


@kind("HDF5, samples in columns")
def _(folder: Path, rows: np.ndarray) -> Any:
    return sp.open_source(_hdf5(folder / "x.h5", rows.T, chunks=(N_FEATURES, CHUNK_ROWS)), samples_axis=1)


@kind("many HDF5 files")
def _(folder: Path, rows: np.ndarray) -> Any:
    for index, part in enumerate(np.split(rows, [500, 1100])):
        _hdf5(folder / f"part{index}.h5", part, chunks=(CHUNK_ROWS, N_FEATURES))
    return str(folder / "part*.h5")


@kind("many HDF5 files of odd lengths")
def _(folder: Path, rows: np.ndarray) -> Any:
    for index, part in enumerate(np.split(rows, [7, 8, 777])):
        _hdf5(folder / f"part{index}.h5", part, chunks=(min(CHUNK_ROWS, len(part)), N_FEATURES))
    return str(folder / "part*.h5")


@kind("Zarr v2")
def _(folder: Path, rows: np.ndarray) -> Any:
    zarr.create_array(folder / "x.zarr", data=rows, chunks=(CHUNK_ROWS, N_FEATURES), zarr_format=2)
    return folder / "x.zarr"


@kind("Zarr v3")
def _(folder: Path, rows: np.ndarray) -> Any:
    zarr.create_array(folder / "x.zarr", data=rows, chunks=(CHUNK_ROWS, 5), zarr_format=3)
    return folder / "x.zarr"


@kind("Zarr v3, sharded")
def _(folder: Path, rows: np.ndarray) -> Any:
    zarr.create_array(folder / "x.zarr", data=rows, chunks=(CHUNK_ROWS, N_FEATURES), shards=(250, N_FEATURES), zarr_format=3)
    return folder / "x.zarr"


@kind("npy, C order")
def _(folder: Path, rows: np.ndarray) -> Any:
    np.save(folder / "x.npy", rows)
    return folder / "x.npy"


@kind("npy, Fortran order")
def _(folder: Path, rows: np.ndarray) -> Any:
    np.save(folder / "x.npy", np.asfortranarray(rows))
    return folder / "x.npy"


@kind("ndarray")
def _(folder: Path, rows: np.ndarray) -> Any:
    return rows


@kind("ndarray, Fortran order")
def _(folder: Path, rows: np.ndarray) -> Any:
    return np.asfortranarray(rows)


@kind("ndarray, strided")
def _(folder: Path, rows: np.ndarray) -> Any:
    wide = np.zeros((2 * N_ROWS, 3 * N_FEATURES), rows.dtype)
    wide[::2, ::3] = rows
    return wide[::2, ::3]


@kind("Dask array, column chunks")
def _(folder: Path, rows: np.ndarray) -> Any:
    return da.from_array(rows, chunks=(CHUNK_ROWS, 5))


@kind("Dask array, irregular chunks")
def _(folder: Path, rows: np.ndarray) -> Any:
    return da.from_array(rows, chunks=((700, 13, 87, 700), (N_FEATURES,)))


def fits(data: Any, client: Client, **parameters: Any) -> dict[str, sp.PCA]:
    """The fit of the same data on each scheduler."""
    found = {}
    for workers in (1, 2):
        with dask.config.set(scheduler="threads", num_workers=workers):
            found[f"{workers} thread(s)"] = sp.PCA(K, memory="2GiB", **parameters).fit(data)
    found["cluster"] = sp.PCA(K, memory="2GiB", **parameters).fit(data)
    return found


def bits(pca: sp.PCA) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in (pca.components_, pca.explained_variance_, pca.mean_, np.asarray(pca.noise_variance_)))


def check_against_svd(pca: sp.PCA, rows: np.ndarray, variance: float, subspace: float) -> None:
    exact = rows.astype(np.float64)
    mean = exact.mean(axis=0)
    _, singular, v = np.linalg.svd(exact - mean, full_matrices=False)
    np.testing.assert_allclose(pca.explained_variance_, singular[:K] ** 2 / (len(rows) - 1), rtol=variance)
    np.testing.assert_allclose(pca.explained_variance_ratio_, singular[:K] ** 2 / (singular**2).sum(), rtol=variance)
    np.testing.assert_allclose(pca.noise_variance_, (singular[K:] ** 2).sum() / (len(rows) - 1) / (N_FEATURES - K), rtol=10 * variance)
    np.testing.assert_allclose(pca.mean_, mean, rtol=0, atol=variance / 10)
    assert np.linalg.norm(pca.components_.T @ pca.components_ - v[:K].T @ v[:K], 2) < subspace
    np.testing.assert_allclose(np.abs((pca.components_ * v[:K]).sum(axis=1)), 1, atol=subspace)  # each component for itself


@pytest.mark.parametrize(("dtype", "variance", "subspace"), [("float64", 1e-10, 1e-8), ("float32", 1e-6, 1e-5)])
@pytest.mark.parametrize("name", KINDS)
def test_every_source_on_every_scheduler(name: str, dtype: str, variance: float, subspace: float, client: Client, tmp_path: Path) -> None:
    rows = table(dtype)
    found = fits(KINDS[name](tmp_path, rows), client)
    one = found["1 thread(s)"]
    assert one.plan_ is not None
    assert one.plan_.n_shards > 2
    assert {where: bits(pca) == bits(one) for where, pca in found.items()} == dict.fromkeys(found, True)
    check_against_svd(one, rows, variance, subspace)


def test_float32_products(client: Client, tmp_path: Path) -> None:
    found = fits(KINDS["HDF5, gzip"](tmp_path, table("float32")), client, precision="float32")
    assert len({bits(pca) for pca in found.values()}) == 1
    check_against_svd(found["cluster"], table("float32"), 1e-6, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sources_that_are_cut_alike_give_the_same_bits(dtype: str, tmp_path: Path) -> None:
    """The storage of the rows leaves no trace in the result."""
    by_cut: dict[Any, dict[str, tuple[bytes, ...]]] = {}
    with dask.config.set(scheduler="threads", num_workers=2):
        for name, make in KINDS.items():
            folder = tmp_path / name
            folder.mkdir()
            source = sp.open_source(make(folder, table(dtype)))
            pca = sp.PCA(K, memory="2GiB").fit(source)
            assert pca.plan_ is not None
            partition = pca.plan_.partition(source.info)
            cut = tuple(tuple(partition.blocks(*shard)) for shard in partition.shards())
            by_cut.setdefault(cut, {})[name] = bits(pca)
    alike = sorted(len(found) for found in by_cut.values())
    assert alike[-2] >= 5
    assert alike[-1] >= 6
    for found in by_cut.values():
        assert len(set(found.values())) == 1, found.keys()


def test_a_persisted_dask_array(client: Client) -> None:
    rows = table("float64")
    array = da.from_array(rows, chunks=(CHUNK_ROWS, 5))
    assert bits(sp.PCA(K, memory="2GiB").fit(client.persist(array))) == bits(sp.PCA(K, memory="2GiB").fit(array))


@pytest.mark.parametrize("budget", ["180MiB", "200MiB", "2GiB", "200GiB"])
def test_the_budget_changes_nothing_unless_it_is_tight(budget: str) -> None:
    rows = table("float64")
    one = sp.PCA(K, memory="2GiB").fit(rows)
    try:
        other = sp.PCA(K, memory=budget).fit(rows)
    except sp.errors.MemoryBudgetError:
        assert budget.endswith("MiB")
        return
    check_against_svd(other, rows, 1e-10, 1e-8)
    assert one.plan_ is not None
    assert other.plan_ is not None
    if one.plan_.block_rows == other.plan_.block_rows:
        assert bits(one) == bits(other)
