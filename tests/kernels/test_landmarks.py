from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels import landmarks
from streampca.kernels.functions import Kernel, Linear, Rbf, Sigmoid, make_kernel
from streampca.kernels.landmarks import choice_bytes, choose_landmarks, read_rows, sample_rows, sample_size
from streampca.kernels.nystrom import NystromMap
from streampca.sources import ArraySource, Source, open_source
from tests.kernels.cases import digits, swiss_roll

METHODS: list[Any] = ["auto", "pivoted", "uniform", "kmeans++", "leverage"]


def lopsided(n: int = 600, tiny: int = 6, seed: int = 0) -> np.ndarray:
    """Four clusters and a tiny one far away."""
    rng = np.random.default_rng(seed)
    large = rng.standard_normal((n - tiny, 4)) * 0.2 + 3 * rng.standard_normal((4, 4))[rng.integers(4, size=n - tiny)]
    return np.r_[large, rng.standard_normal((tiny, 4)) * 0.1 + 15]


def missed(kernel: Kernel, X: np.ndarray, points: np.ndarray) -> float:
    """Spectral norm, as a share, of what the features leave out of the kernel matrix."""
    F = NystromMap.fit(kernel, points).transform(X)
    K = kernel.evaluate(X, X)
    return float(np.linalg.eigvalsh(K - F @ F.T)[-1] / np.linalg.eigvalsh(K)[-1])


# --- which rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["rbf", "linear", "polynomial", "cosine", "sigmoid"])
def test_landmarks_are_different_rows_by_seed(name: str, method: Any) -> None:
    X = digits(400)
    source, kernel = ArraySource(X), make_kernel(name, n_features=64)
    one, same, other = (choose_landmarks(source, kernel, 30, method=method, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.points, X[one.indices])
    assert len(set(one.indices.tolist())) == 30
    np.testing.assert_array_equal(one.indices, same.indices)
    assert set(one.indices.tolist()) != set(other.indices.tolist())
    assert one.method == method or method == "auto"


def test_what_auto_is() -> None:
    source = ArraySource(digits(100))
    assert choose_landmarks(source, Rbf(0.1), 10).method == "pivoted"
    assert choose_landmarks(source, Sigmoid(0.1), 10).method == "uniform"


@pytest.mark.parametrize("method", METHODS)
def test_more_landmarks_than_rows_are_all_rows(method: Any) -> None:
    X = digits(20)
    found = choose_landmarks(ArraySource(X), Rbf(0.1), 50, method=method)
    np.testing.assert_array_equal(found.points, X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", [Rbf(0.5), Linear()])
def test_repeated_rows_and_low_ranks(kernel: Kernel, method: Any) -> None:
    for X in (np.ones((80, 3)), np.repeat(np.eye(3), 40, axis=0), np.zeros((50, 2))):
        found = choose_landmarks(ArraySource(X), kernel, 20, method=method)
        assert len(set(found.indices.tolist())) == 20


@pytest.mark.parametrize("method", ["pivoted", "leverage", "kmeans++"])
def test_a_tiny_cluster_is_not_missed(method: Any) -> None:
    X, kernel = lopsided(), Rbf(0.1)
    source = ArraySource(X)
    errors = {
        each: np.mean([missed(kernel, X, choose_landmarks(source, kernel, 30, method=each, seed=seed).points) for seed in range(8)])
        for each in ("uniform", method)
    }
    assert errors[method] <= errors["uniform"]


@pytest.mark.parametrize(("X", "gamma"), [(swiss_roll(1500), 1.0), (digits(1200), 0.1)])
def test_pivoted_leaves_less_than_uniform(X: np.ndarray, gamma: float) -> None:
    kernel, source = Rbf(gamma), ArraySource(X)

    def left(method: Any) -> float:
        maps = [NystromMap.fit(kernel, choose_landmarks(source, kernel, 60, method=method, seed=seed).points) for seed in range(6)]
        return float(np.mean([1 - np.square(each.transform(X)).sum() / len(X) for each in maps]))

    assert left("pivoted") < left("uniform")


def test_pivoted_in_blocks_draws_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Randomly pivoted Cholesky: the trace that is left, in the mean over seeds, is that of the plain algorithm."""
    X, kernel, m = swiss_roll(300), Rbf(1.0), 12
    K = kernel.evaluate(X, X)

    def plain(rng: np.random.Generator) -> list[int]:
        rest, chosen = K.copy(), []
        for _ in range(m):
            diagonal = np.maximum(rest.diagonal(), 0)
            i = int(rng.choice(len(X), p=diagonal / diagonal.sum()))
            chosen.append(i)
            rest = rest - np.outer(rest[i], rest[i]) / rest[i, i]
        return chosen

    def left(chosen: Any) -> float:
        return float(np.trace(K - K[:, chosen] @ np.linalg.pinv(K[np.ix_(chosen, chosen)]) @ K[chosen]) / len(X))

    one_by_one = [left(plain(np.random.default_rng(seed))) for seed in range(60)]
    in_blocks = [left(landmarks._pivoted(kernel, X, m, np.random.default_rng(seed))) for seed in range(60)]
    uncertain = np.hypot(np.std(one_by_one), np.std(in_blocks)) / np.sqrt(60)
    assert abs(np.mean(one_by_one) - np.mean(in_blocks)) < 4 * uncertain


def test_a_sample_that_was_read_is_used() -> None:
    source = ArraySource(digits(500))
    sample = sample_rows(source, 100, seed=5)
    found = choose_landmarks(source, Rbf(0.1), 20, seed=5, sample=sample)
    assert set(found.indices.tolist()) <= set(sample.indices.tolist())


def test_wrong_requests() -> None:
    source = ArraySource(digits(50))
    with pytest.raises(UsageError, match=r"no choice of landmarks 'kmean'.*Did you mean 'kmeans\+\+'"):
        choose_landmarks(source, Rbf(1.0), 5, method="kmean")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1 landmark is needed, not 0"):
        choose_landmarks(source, Rbf(1.0), 0)


# --- the sample -----------------------------------------------------------------------------------------------------


def test_sizes() -> None:
    assert sample_size(100, 10**9) == 2000
    assert sample_size(100, 50) == 50
    assert sample_size(10_000, 10**9) == 20_000
    assert choice_bytes(1000, 10**9, 50) < 2**28


def write(path: Path, X: np.ndarray, chunk_rows: int) -> Source:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=X, chunks=(chunk_rows, X.shape[1]), compression="gzip")
    return open_source(path)


class Counted(ArraySource):
    """Counts reads, in chunks of some rows."""

    reads: list[tuple[int, int]]

    def _read(self, start: int, stop: int, out: Any) -> np.ndarray:
        self.reads.append((start, stop))
        return super()._read(start, stop, out)


def counted(X: np.ndarray) -> Counted:
    source = Counted(X)
    object.__setattr__(source, "reads", [])
    return source


@settings(deadline=None, max_examples=30)
@given(wanted=st.sets(st.integers(0, 199), min_size=1), chunk_rows=st.sampled_from([1, 7, 64, 300]), gap=st.sampled_from([0, 200, 10**6]))
def test_rows_by_index(tmp_path_factory: pytest.TempPathFactory, wanted: set[int], chunk_rows: int, gap: int) -> None:
    X, indices = np.arange(400.0).reshape(200, 2), np.array(sorted(wanted))
    path = tmp_path_factory.getbasetemp() / f"rows-{chunk_rows}.h5"
    source = open_source(path) if path.exists() else write(path, X, min(chunk_rows, 200))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(landmarks, "_GAP", gap)
        rows, weights = read_rows(source, indices)
    np.testing.assert_array_equal(rows, X[indices])
    assert (weights == 1).all()


def test_every_chunk_is_read_once_at_most(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((4000, 40))
    source = write(tmp_path / "x.h5", X, 100)
    indices = np.sort(np.random.default_rng(1).choice(4000, 600, replace=False))
    runs = list(landmarks._runs(source, indices))
    touched = [set(range(int(indices[a]) // 100, int(indices[b - 1]) // 100 + 1)) for a, b in runs]
    assert sum(map(len, touched)) == len(set().union(*touched))
    far = counted(np.asarray(X, ">f8"))
    read_rows(far, np.array([0, 1, 2000, 3999]))
    assert sum(b - a for a, b in far.reads) == 4


def test_the_sample_is_uniform() -> None:
    X = np.arange(50.0)[:, None]
    counts = np.zeros(50)
    for seed in range(400):
        counts[sample_rows(ArraySource(X), 10, seed).indices] += 1
    assert abs(counts - 80).max() < 6 * 8  # binomial(400, 0.2) has standard deviation 8


def test_few_chunks_of_many_are_read(tmp_path: Path) -> None:
    X = np.arange(6000.0).reshape(3000, 2)
    source = write(tmp_path / "x.h5", X, 10)
    sample = sample_rows(source, 500, seed=0, max_chunks=100)
    assert len(set((sample.indices // 10).tolist())) == 100
    assert 450 <= len(sample.indices) <= 500
    assert (np.diff(sample.indices) > 0).all()
    np.testing.assert_array_equal(sample.rows, X[sample.indices])


def test_rows_that_are_not_finite_are_no_landmarks() -> None:
    X = digits(200)
    X[::2, 5] = np.nan
    found = choose_landmarks(ArraySource(X), Rbf(0.1), 30)
    assert (found.indices % 2 == 1).all()
    X[:, 5] = np.inf
    with pytest.raises(NonFiniteError, match="contains inf"):
        choose_landmarks(ArraySource(X), Rbf(0.1), 30)


def test_rows_without_weight_are_no_landmarks() -> None:
    X = digits(200)
    weights = (np.arange(200) % 4 == 0).astype(float)

    class Weighted(ArraySource):
        def weights(self, rows: slice) -> Any:
            return weights[rows]

    found = choose_landmarks(Weighted(X), Rbf(0.1), 20)
    assert (found.indices % 4 == 0).all()
    weights[:] = 0
    with pytest.raises(DataError, match="weight zero"):
        choose_landmarks(Weighted(X), Rbf(0.1), 20)
