from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels.fourier import FourierMap
from streampca.kernels.functions import Kernel, Laplacian, Linear, Rbf
from streampca.memory import KIB


def normal(n: int, d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def error(kernel: Kernel, m: int, seed: int, X: np.ndarray, **options: Any) -> float:
    F = FourierMap.draw(kernel, X.shape[1], m, seed, **options).transform(X).astype(float)
    return float(np.sqrt(np.mean((F @ F.T - kernel.evaluate(X, X)) ** 2)))


def mean_error(kernel: Kernel, m: int, X: np.ndarray, seeds: int = 12, **options: Any) -> float:
    return float(np.mean([error(kernel, m, seed, X, **options) for seed in range(seeds)]))


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (Rbf(0.1), {"orthogonal": False}),
        (Rbf(0.1), {"orthogonal": True}),
        (Rbf(0.1), {"paired": False, "orthogonal": False}),
        (Laplacian(0.1), {}),
        (Laplacian(0.1), {"paired": False}),
    ],
)
def test_the_error_falls_like_one_over_the_root(kernel: Kernel, options: dict[str, bool]) -> None:
    X, sizes = normal(60, 6), np.array([64, 256, 1024, 4096])
    errors = [mean_error(kernel, int(m), X, **options) for m in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4
    assert errors[-1] < 0.02


def test_pairs_beat_phases_and_orthogonal_beats_both() -> None:
    X, kernel = normal(60, 8), Rbf(0.06)
    phases, pairs, orthogonal = (
        mean_error(kernel, 512, X, 20, **options)
        for options in ({"paired": False, "orthogonal": False}, {"orthogonal": False}, {"orthogonal": True})
    )
    assert orthogonal < 0.9 * pairs < 0.9 * phases


def test_frequencies_are_those_of_the_kernel() -> None:
    """With gamma = 1 / (2 sigma^2), w is N(0, 1 / sigma^2); of the laplacian kernel, Cauchy with scale gamma."""
    plain = FourierMap.draw(Rbf(0.08), 3, 100_000, 0, orthogonal=False).frequencies
    np.testing.assert_allclose(plain.var(axis=1), 0.16, rtol=0.02)
    orthogonal = FourierMap.draw(Rbf(0.08), 3, 99_996, 0).frequencies
    np.testing.assert_allclose(orthogonal.var(axis=1), 0.16, rtol=0.02)
    np.testing.assert_allclose((orthogonal**4).mean(axis=1), 3 * 0.16**2, rtol=0.05)  # normal one by one
    groups = orthogonal.T.reshape(-1, 3, 3)
    products = groups @ groups.transpose(0, 2, 1)
    products[:, range(3), range(3)] = 0
    assert np.abs(products).max() < 1e-12
    cauchy = FourierMap.draw(Laplacian(0.3), 2, 100_000, 0).frequencies
    np.testing.assert_allclose(np.quantile(np.abs(cauchy), [0.5, 0.75], axis=1).T, [[0.3, 0.3 * (1 + 2**0.5)]] * 2, rtol=0.03)


@pytest.mark.parametrize(("kernel", "theirs"), [(Rbf(0.2), rbf_kernel), (Laplacian(0.2), laplacian_kernel)])
@pytest.mark.parametrize(("dtype", "offset"), [("f4", 0), ("f4", 1e5), ("f8", 1e9), ("i4", 1000), ("u1", 100)])
def test_a_large_mean_costs_nothing(kernel: Kernel, theirs: Any, dtype: str, offset: float) -> None:
    X = (normal(80, 4) * (3 if dtype in ("i4", "u1") else 1) + offset).astype(dtype)
    mapped = FourierMap.draw(kernel, 4, 20_000, 0, origin=X[:20].mean(axis=0))
    F = mapped.transform(X).astype(float)
    assert mapped.dtype == np.float32
    exact = theirs(X.astype(float) - offset, gamma=0.2)
    assert np.abs(F @ F.T - exact).max() < 0.04
    np.testing.assert_allclose((F * F).sum(axis=1), 1, atol=1e-5)  # k(x, x)
    W = mapped.frequencies
    angles = (X.astype(float) - mapped.origin) @ W
    np.testing.assert_allclose(F * 100, np.hstack([np.cos(angles), np.sin(angles)]), atol=1e-5 if dtype != "f8" else 3e-5)


def test_the_same_seed_gives_the_same_features() -> None:
    X = normal(5, 3)
    for kernel in (Rbf(0.5), Laplacian(0.5)):
        one, same, other = (FourierMap.draw(kernel, 3, 10, seed) for seed in (7, 7, 8))
        np.testing.assert_array_equal(one.transform(X), same.transform(X))
        assert one.digest == same.digest != other.digest


def test_more_features_than_rows_and_columns() -> None:
    X = normal(3, 2)
    assert FourierMap.draw(Rbf(0.5), 2, 600, 0).transform(X).shape == (3, 600)
    assert FourierMap.draw(Rbf(0.5), 2000, 6, 0).transform(normal(3, 2000)).shape == (3, 6)


@pytest.mark.parametrize("paired", [True, False])
def test_travels_and_is_stored(paired: bool) -> None:
    X = normal(50, 3, "f4")
    one = FourierMap.draw(Rbf(0.5), 3, 40, 1, origin=X.mean(axis=0), paired=paired)
    expected = one.transform(X)
    for copy in (pickle.loads(pickle.dumps(one)), FourierMap.from_arrays(one.to_arrays(), one.attributes())):
        assert copy.digest == one.digest
        np.testing.assert_array_equal(copy.transform(X), expected)
    assert one.cheapest_pass().features is one
    V, mean = np.linalg.qr(normal(40, 5))[0].T, np.full(40, 0.1)
    np.testing.assert_allclose(one.projected(V, mean).transform(X), (expected - mean) @ V.T, atol=1e-5)


@pytest.mark.parametrize(("kernel", "dtype"), [(Rbf(0.1), "f4"), (Rbf(0.1), "f8"), (Rbf(1e6), "f4"), (Laplacian(0.1), "f4")])
@pytest.mark.parametrize(("n", "d"), [(5000, 30), (300, 1500)])
def test_memory_is_bounded(kernel: Kernel, dtype: str, n: int, d: int) -> None:
    X = normal(n, d, dtype)
    one = FourierMap.draw(kernel, d, 200, 0)
    out = np.empty((n, 200), "f4")
    one.transform(X[:1])
    tracemalloc.start()
    one.transform(X, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= one.workspace(n) + 64 * KIB, (peak, one.workspace(n))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kernel", [Rbf(0.1), Laplacian(0.1)])
def test_what_is_not_finite_is_named(kernel: Kernel, dtype: str, value: float) -> None:
    X = normal(9000, 3, dtype)
    X[8000, 1] = X[8002, 0] = value
    with pytest.raises(NonFiniteError) as caught:
        FourierMap.draw(kernel, 3, 200, 0).transform(X)
    assert (caught.value.row, caught.value.column) == (8000, 1)


def test_values_that_overflow() -> None:
    with pytest.raises(DataError, match="rescale"):
        FourierMap.draw(Rbf(1e9), 2, 20, 0).transform(np.array([[1e308, -1e308]]))
    assert np.isfinite(FourierMap.draw(Rbf(1.0), 2, 20, 0).transform(np.array([[3e38, -3e38]], "f4"))).all()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Linear(), 3, 10), {}, "not for linear: use Nystrom"),
        ((Rbf(1.0), 3, 11), {}, "even as cos and sin are paired, not 11"),
        ((Rbf(1.0), 3, 0), {}, "must be positive"),
        ((Laplacian(1.0), 3, 10), {"orthogonal": True}, "no rotational symmetry"),
    ],
)
def test_what_is_refused(arguments: Any, options: dict[str, Any], message: str) -> None:
    kernel, d, m = arguments
    with pytest.raises(UsageError, match=message):
        FourierMap.draw(kernel, d, m, 0, **options)
