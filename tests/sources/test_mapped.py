"""Features of rows as a source: what it promises, and that passes over it find what they should."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streampca.blocks import Partition
from streampca.engine import Engine
from streampca.engine.threads import Threads
from streampca.errors import DataError, NonFiniteError
from streampca.kernels.fourier import FourierMap
from streampca.kernels.functions import KERNELS, Linear, Rbf, make_kernel
from streampca.kernels.maps import FeatureMap
from streampca.kernels.nystrom import NystromMap
from streampca.memory import KIB
from streampca.sources import ArraySource, Source, open_source
from streampca.sources.mapped import Mapped
from streampca.statistics import Moments, Scatter
from tests.sources.conformance import Case, SourceTests, numbers


def write(path: Path, data: np.ndarray, chunk_rows: int = 6) -> Path:
    other = path.with_suffix(".tmp")
    with h5py.File(other, "w") as file:
        file.create_dataset("X", data=data, chunks=(chunk_rows, data.shape[1])).attrs["columns"] = [f"f{i}" for i in range(data.shape[1])]
    return other.rename(path)


class Doubled:
    """The simplest features: twice each column, which any split of the rows gives to the last bit."""

    n_features_in = n_features_out = 5
    dtype: np.dtype[Any] = np.dtype("f8")
    digest = "doubled"

    def transform(self, block: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return np.multiply(block, 2.0, out=out)

    def workspace(self, rows: int) -> int:
        return 0


class TestMappedFile(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(61, 5), folder / "x.h5"
        write(path, data)
        return Case(lambda: Mapped(open_source(path), Doubled()), 2 * data, lambda: write(path, data + 1))


class TestMappedMemory(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(40, 5)
        return Case(lambda: Mapped(ArraySource(data), Doubled()), 2 * data)


def features(kind: str, X: np.ndarray) -> FeatureMap:
    d = X.shape[1]
    if kind == "fourier":
        return FourierMap.draw(Rbf(0.1), d, 24, 0, origin=X.mean(axis=0))
    nystrom = NystromMap.fit(make_kernel("laplacian" if kind == "columns" else "rbf", n_features=d), X[:20])
    return nystrom.columns if kind == "columns" else nystrom


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
@pytest.mark.parametrize("kind", ["nystrom", "columns", "fourier"])
def test_blocks_are_features_of_blocks(tmp_path: Path, kind: str, dtype: str) -> None:
    X = (numbers(90, 5) * 3).astype(dtype)
    source, mapping = open_source(write(tmp_path / "x.h5", X)), features(kind, X)
    mapped = Mapped(source, mapping)
    assert (mapped.info.n_rows, mapped.info.n_features, mapped.info.dtype) == (90, mapping.n_features_out, mapping.dtype)
    np.testing.assert_allclose(mapped.read(slice(None)), mapping.transform(X), rtol=1e-5, atol=1e-5)
    out = np.empty((50, mapping.n_features_out), mapping.dtype)
    assert np.shares_memory(mapped.read(slice(7, 40), out), out)
    np.testing.assert_allclose(out[:33], mapping.transform(X[7:40]), rtol=1e-4, atol=1e-4)


def test_facts(tmp_path: Path) -> None:
    X = numbers(90, 5)
    source, mapping = open_source(write(tmp_path / "x.h5", X)), features("nystrom", X)
    info, base = Mapped(source, mapping).info, source.info
    assert info.segments == base.segments
    assert info.bytes_stored == base.bytes_stored
    assert info.feature_names is None
    assert info.prefetches
    assert not info.in_memory
    assert info.read_scratch > base.read_scratch + mapping.workspace(1)
    assert "20 features of" in info.description
    prints = {Mapped(source, each).info.fingerprint for each in (mapping, features("columns", X), features("fourier", X))}
    assert len(prints | {base.fingerprint}) == 4
    with pytest.raises(DataError, match="has 4 columns, but the features are made of 5"):
        Mapped(ArraySource(X[:, :4]), mapping)


def test_weights_are_those_of_the_source() -> None:
    class Weighted(ArraySource):
        def weights(self, rows: slice) -> Any:
            return np.arange(90.0)[rows]

    source = Weighted(numbers(90, 5))
    object.__setattr__(source, "pinned", __import__("dataclasses").replace(source.info, weighted=True))
    mapped = Mapped(source, Doubled())
    assert mapped.info.weighted
    np.testing.assert_array_equal(mapped.weights(slice(3, 9)), np.arange(3.0, 9.0))
    assert Mapped(ArraySource(numbers(90, 5)), Doubled()).weights(slice(0, 3)) is None


def test_slabs_bound_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.sources.views.SLAB", 64 * KIB)
    X = numbers(20_000, 30, "f4")
    np.save(tmp_path / "x.npy", X)
    for source in (open_source(tmp_path / "x.npy"), ArraySource(X)):
        for kind in ("nystrom", "columns", "fourier"):
            mapped = Mapped(source, features(kind, X))
            block = np.empty((20_000, mapped.info.n_features), mapped.info.dtype)
            mapped.read(slice(0, 10), block)
            tracemalloc.start()
            mapped.read(slice(None), block)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak <= mapped.info.read_scratch + 64 * KIB


# --- passes -----------------------------------------------------------------------------------------------------------


def run(source: Source, statistic: Any, block_rows: int = 100, shard_rows: int = 300) -> Any:
    return Engine(source, Partition(source.info.segments, block_rows, shard_rows), Threads(2)).run("pass", statistic)


def test_statistics_run_unchanged(tmp_path: Path) -> None:
    X = numbers(2000, 5, "f4")
    source = open_source(write(tmp_path / "x.h5", X, 50))
    for kind in ("nystrom", "columns", "fourier"):
        mapped = Mapped(source, features(kind, X))
        F = mapped.features.transform(X).astype(float)
        scatter = run(mapped, Scatter(F.shape[1]))
        expected = np.cov(F.T) * 1999
        np.testing.assert_allclose(scatter.scatter, expected, atol=1e-5 * expected.diagonal().max())
        np.testing.assert_allclose(run(mapped, Moments(F.shape[1])).mean, F.mean(axis=0), atol=1e-6)


def test_pca_of_linear_features_is_pca() -> None:
    X = numbers(3000, 5) * [5, 4, 3, 2, 1] + 1e4
    mapped = Mapped(ArraySource(X), NystromMap.fit(Linear(), X[:50]))
    values = np.linalg.eigvalsh(run(mapped, Scatter(5)).scatter)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(np.cov(X.T) * 2999), rtol=1e-6)


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    X = numbers(3000, 5, "f4")
    mapped = Mapped(open_source(write(tmp_path / "x.h5", X, 50)), features("nystrom", X))
    partition = Partition(mapped.info.segments, 100, 300)
    one, two = (Engine(mapped, partition, Threads(workers)).run("pass", Scatter(20, "float32")) for workers in (1, 2))
    np.testing.assert_array_equal(one.scatter, two.scatter)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [*KERNELS, "fourier"])
def test_the_first_bad_entry_of_the_input_is_named(tmp_path: Path, kind: str, value: float) -> None:
    """exp(-inf) = 0 is finite: without a check of the input, the features would hide it."""
    X = numbers(2000, 5, "f4")
    mapping = features("fourier", X) if kind == "fourier" else NystromMap.fit(make_kernel(kind, n_features=5), X[:20]).columns
    X[1234, 3] = X[1234, 4] = X[1700, 0] = value
    source = open_source(write(tmp_path / "x.h5", X, 50))
    with pytest.raises(NonFiniteError) as caught:
        run(Mapped(source, mapping), Scatter(mapping.n_features_out))
    assert (caught.value.row, caught.value.column, caught.value.name) == (1234, 3, "f3")


def test_dask_computes_the_features() -> None:
    da = pytest.importorskip("dask.array")
    X = numbers(200, 5)
    mapping = features("nystrom", X)
    mapped = Mapped(open_source(da.from_array(X, chunks=(70, 3))), mapping)
    lazy = mapped.lazy_rows(30, 120)
    assert lazy is not None
    assert lazy.shape == (90, mapping.n_features_out)
    np.testing.assert_allclose(lazy.compute(), mapping.transform(X[30:120]), atol=1e-9)
    X = X.copy()
    X[100, 2] = np.inf
    with pytest.raises(NonFiniteError, match="row 100, column 2"):
        Mapped(open_source(da.from_array(X, chunks=(70, 3))), mapping).lazy_rows(30, 120).compute()  # type: ignore[union-attr]
    assert Mapped(ArraySource(X), mapping).lazy_rows(0, 3) is None
