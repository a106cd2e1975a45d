from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import linalg
from threadpoolctl import threadpool_limits

from streampca.errors import DataError
from streampca.models.pca import PCAModel
from streampca.solvers import covariance
from streampca.solvers.spectrum import Options, fix_signs
from streampca.solvers.tsqr import column_scales, model_of, singular_pairs, solve, solve_bytes
from streampca.statistics import RFactor, Scatter

EPS = float(np.finfo(np.float64).eps)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with threadpool_limits(limits=1, user_api="blas"):
        yield


class Loop:
    """Runs passes over an array in blocks, and remembers their names."""

    def __init__(self, X: np.ndarray, block: int = 50) -> None:
        self.X, self.block = X, block
        self.passes: list[str] = []

    def __call__(self, name: str, statistic: RFactor) -> RFactor:
        self.passes.append(name)
        for start in range(0, len(self.X), self.block):
            statistic.update(self.X[start : start + self.block])
        return statistic


def fit(X: np.ndarray, n_components: Any = None, block: int = 50, *, standardize: bool = False) -> PCAModel:
    return solve(X.shape[1], Options(n_components, standardize=standardize), Loop(X, block))[0]


def covariance_fit(X: np.ndarray) -> PCAModel:
    scatter = Scatter(X.shape[1])
    scatter.update(X)
    return covariance.model_of(scatter, Options())


def rows(n: int = 200, d: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) + 7


def centred(X: np.ndarray) -> np.ndarray:
    """Centre in extended precision, so that the reference's own rounding does not show."""
    exact = X.astype(np.longdouble)
    exact -= exact.mean(axis=0)
    return (exact - exact.mean(axis=0)).astype(np.float64)


def check(model: PCAModel, X: np.ndarray, tolerance: float = 1e-12) -> None:
    """Compare with NumPy's SVD of the centred rows: values, spaces of (nearly) equal ones, and what follows from them."""
    Y = centred(X)
    k, n, limit = model.n_components, len(X), min(X.shape)
    _, L, V = np.linalg.svd(Y, full_matrices=False)
    np.testing.assert_allclose(model.singular_values, L[:k], rtol=tolerance, atol=tolerance * L[0])
    np.testing.assert_allclose(model.components @ model.components.T, np.eye(k), atol=1e-13 * limit)
    for i in np.flatnonzero(L[:k] > 1e-9 * L[0]):  # each component lies in the space of the singular vectors with nearly its value
        near = np.abs(L - L[i]) <= 1e-6 * L[0]
        assert np.linalg.norm(V[near] @ model.components[i]) == pytest.approx(1, abs=1e-8)
    np.testing.assert_allclose(Y @ model.components.T @ (model.components @ Y.T), _nearest(Y, k), atol=1e-9 * L[0] ** 2)
    np.testing.assert_allclose(model.explained_variance, L[:k] ** 2 / (n - 1), rtol=1e-9, atol=tolerance * L[0] ** 2)
    total = (Y**2).sum() / (n - 1)
    assert model.total_variance == pytest.approx(total, rel=tolerance)
    np.testing.assert_allclose(model.explained_variance_ratio, L[:k] ** 2 / (n - 1) / total, rtol=1e-9, atol=tolerance)
    rest = (L[k:] ** 2).sum() / (n - 1) / (limit - k) if k < limit else 0.0
    assert model.noise_variance == pytest.approx(rest, rel=1e-9, abs=tolerance * total)
    np.testing.assert_allclose(model.mean, X.astype(np.longdouble).mean(axis=0).astype(float), rtol=1e-14, atol=1e-13 * L[0])
    assert model.n_samples == n


def _nearest(Y: np.ndarray, k: int) -> np.ndarray:
    """Return the Gram matrix of the rows, projected onto k leading directions, which no rotation among equal ones changes."""
    U, L, _ = np.linalg.svd(Y, full_matrices=False)
    return (U[:, :k] * L[:k] ** 2) @ U[:, :k].T


# --- small singular values: what this solver is for ----------------------------------------------------------------


def graded(order: Callable[[np.ndarray], np.ndarray], n: int = 300, d: int = 13) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose columns are orthogonal, have mean zero, and fall from 1 to 1e-12; and the singular values."""
    rng = np.random.default_rng(0)
    sizes = np.logspace(0, -12, d)
    Q = np.linalg.qr(np.c_[np.ones(n), rng.standard_normal((n, d))])[0][:, 1:]
    return Q * order(sizes), sizes


ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "falling": lambda sizes: sizes,
    "rising": lambda sizes: sizes[::-1],
    "mixed": lambda sizes: np.random.default_rng(1).permutation(sizes),
}


def worst(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest relative error."""
    return float(np.abs(found / wanted - 1).max())


@pytest.mark.parametrize("order", ORDERS)
def test_graded_columns_keep_all_their_digits(order: str) -> None:
    """Relative accuracy, whatever the size: rounding stays within its own column."""
    X, L = graded(ORDERS[order])
    assert worst(fit(X).singular_values, L) < 1e-13
    if order != "rising":  # there, eigh is lucky
        assert worst(covariance_fit(X).singular_values, L) > 0.9


@pytest.mark.parametrize("order", ORDERS)
def test_graded_and_correlated_columns_keep_all_their_digits(order: str) -> None:
    """Well conditioned columns times sizes: each singular value is known to its own last digits, and NumPy's SVD does not find them all."""
    X, sizes = graded(ORDERS[order])
    mixing = np.triu(np.random.default_rng(2).uniform(-1, 1, (13, 13)), 1) + np.eye(13)
    by_size = np.argsort(-np.abs(X).max(axis=0))
    Y = np.empty_like(X)
    Y[:, by_size] = (X[:, by_size] / sizes) @ mixing * sizes
    Y -= Y.mean(axis=0)
    L = relative_singular_values(Y)
    assert worst(fit(Y).singular_values, L) < 1e-13
    if order != "rising":
        assert worst(covariance_fit(Y).singular_values, L) > 0.9


def relative_singular_values(Y: np.ndarray) -> np.ndarray:
    """Return singular values by one-sided Jacobi rotations in extended precision: each to its own last digits (Demmel, Veselic 1992)."""
    A = Y[:, np.argsort(-np.linalg.norm(Y, axis=0))].astype(np.longdouble)
    d = A.shape[1]
    for _ in range(30):
        largest = 0.0
        for i in range(d):
            for j in range(i + 1, d):
                a, b, c = A[:, i] @ A[:, i], A[:, j] @ A[:, j], A[:, i] @ A[:, j]
                largest = max(largest, float(abs(c) / np.sqrt(a * b)))
                if abs(c) > 1e-18 * np.sqrt(a * b):
                    zeta = (b - a) / (2 * c)
                    t = (1 if zeta >= 0 else -1) / (abs(zeta) + np.sqrt(1 + zeta * zeta))
                    cosine = 1 / np.sqrt(1 + t * t)
                    A[:, i], A[:, j] = cosine * (A[:, i] - t * A[:, j]), cosine * (t * A[:, i] + A[:, j])
        if largest < 1e-17:
            break
    values = np.sort(np.sqrt((A * A).sum(axis=0)))[::-1]
    return values.astype(np.float64)


def rotated() -> tuple[np.ndarray, np.ndarray]:
    X, L = graded(lambda s: s)
    Q = np.linalg.qr(np.random.default_rng(3).standard_normal((13, 13)))[0]
    return X @ Q, L


def test_rotated_they_are_right_to_the_rounding_of_the_largest() -> None:
    """Absolute accuracy: the data itself is rounded by eps of its largest direction, so 1e-12 of it keeps about three digits."""
    X, L = rotated()
    found = fit(X).singular_values
    np.testing.assert_allclose(found, L, atol=4 * EPS, rtol=1e-13)
    np.testing.assert_allclose(found, L, rtol=1e-3)


def test_a_scatter_matrix_cannot_tell_them() -> None:
    X, L = rotated()
    found = covariance_fit(X).singular_values
    large = L >= 1e-6
    np.testing.assert_allclose(found[large], L[large], rtol=1e-3)  # squares of down to 1e-12
    small = L <= 1e-9
    assert (np.abs(found[small] / L[small] - 1) > 0.9).all()


def test_components_of_small_singular_values_are_found_too() -> None:
    X, _ = graded(lambda s: s)
    Q = np.linalg.qr(np.random.default_rng(3).standard_normal((13, 13)))[0]
    np.testing.assert_allclose(np.abs(fit(X @ Q).components @ Q.T), np.eye(13), atol=1e-3)
    assert np.abs(np.abs(covariance_fit(X @ Q).components @ Q.T) - np.eye(13)).max() > 0.1


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e3])
def test_merge_trees_keep_small_singular_values(offset: float) -> None:
    """An offset costs what rounding the data costs: eps of it in every entry."""
    X, L = rotated()
    states = []
    for part in np.split(X + offset, [1, 2, 40, 150]):
        states.append(RFactor(13))
        states[-1].update(part)
    states[3].merge(states[1])
    states[3].merge(states[4])
    states[0].merge(states[2])
    states[0].merge(states[3])
    np.testing.assert_allclose(model_of(states[0], Options()).singular_values, L, atol=EPS * (8 + 20 * offset), rtol=1e-12)


# --- against NumPy's SVD of the centred matrix -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "uint8", "int64"])
@pytest.mark.parametrize(("n", "d"), [(5, 12), (12, 12), (13, 12), (40, 12), (2, 3), (200, 1), (1500, 20)])
def test_every_shape_and_type(n: int, d: int, dtype: str) -> None:
    X = (rows(n, d) * 3 + 40).clip(0, 255).astype(dtype)
    for k in {1, min(n, d) // 2 or 1, min(n, d), None}:
        check(fit(X, k), X)


@pytest.mark.parametrize("block", [1, 2, 3, 1000])
@pytest.mark.parametrize("kind", ["as is", "sorted", "walk", "offset", "far parts"])
def test_every_order_and_height(kind: str, block: int) -> None:
    X = rows(300, 5)
    if kind == "sorted":
        X.sort(axis=0)
    elif kind == "walk":
        X = X.cumsum(axis=0)
    elif kind == "offset":
        X += 1e8
    elif kind == "far parts":
        X += np.repeat([0, 1e5, -1e5], 100)[:, None]
    check(fit(X, block=block), X)


@pytest.mark.parametrize(("n", "d", "rank"), [(60, 10, 3), (8, 20, 2), (60, 10, 0)])
def test_rank_deficiency(n: int, d: int, rank: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d)) + rng.standard_normal(d)
    model = fit(X)
    assert np.abs(model.singular_values[rank:]).max() <= 1e-14 * max(model.singular_values[0], 10)
    if rank:
        check(model, X)
        check(fit(X, rank), X)
        check(fit(X, rank + 2), X)


def test_repeated_singular_values() -> None:
    Q = np.linalg.qr(np.c_[np.ones(50), np.random.default_rng(0).standard_normal((50, 6))])[0][:, 1:]
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    L = np.array([3.0, 3, 3, 2, 1, 1])
    X = Q * L @ turn
    model = fit(X)
    np.testing.assert_allclose(model.singular_values, L, rtol=1e-14)
    for part in (slice(0, 3), slice(3, 4), slice(4, 6)):
        found, wanted = model.components[part], turn[part]
        np.testing.assert_allclose(found.T @ found, wanted.T @ wanted, atol=1e-13)
    check(fit(X, 3), X)
    check(fit(X, 4), X)


def test_constant_columns_take_no_part() -> None:
    X = np.insert(rows(100, 5), [0, 2, 5], [1 / 3, 1e9, 0], axis=1)
    model = fit(X)
    assert not model.components[:5][:, [0, 3, 7]].any()
    assert not model.singular_values[5:].any()
    np.testing.assert_allclose(model.singular_values[:5], np.linalg.svd(centred(rows(100, 5)))[1], rtol=1e-13)
    np.testing.assert_array_equal(model.mean[[0, 3, 7]], [1 / 3, 1e9, 0])


def test_rows_that_are_all_the_same() -> None:
    model = fit(np.full((10, 3), 0.1), 2)
    assert not model.singular_values.any()
    assert not model.explained_variance_ratio.any()
    assert model.total_variance == model.noise_variance == 0
    np.testing.assert_allclose(model.components @ model.components.T, np.eye(2), atol=1e-15)
    assert fit(np.full((10, 3), 0.1), 0.5).n_components == 1


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(2, 30), st.integers(1, 8)),
    block=st.integers(1, 31),
    offset=st.sampled_from([0.0, 1.0, -1e4, 1e8]),
)
def test_any_split_agrees_with_numpy(seed: int, shape: tuple[int, int], block: int, offset: float) -> None:
    X = np.random.default_rng(seed).normal(size=shape) + offset
    check(fit(X, block=block), X, 1e-11)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.99])
def test_a_fraction_takes_as_many_as_the_covariance_solver(fraction: float) -> None:
    scatter = Scatter(6)
    scatter.update(rows())
    wanted = covariance.model_of(scatter, Options(fraction))
    found = fit(rows(), fraction)
    assert found.n_components == wanted.n_components
    check(found, rows())


@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("n_components", [None, 1, 4, 0.8])
def test_the_model_is_that_of_the_covariance_solver(n_components: Any, standardize: bool) -> None:
    scatter = Scatter(6)
    scatter.update(rows())
    options = Options(n_components, whiten=True, standardize=standardize)
    wanted = covariance.model_of(scatter, options).to_arrays()
    run = Loop(rows())
    model, rfactor = solve(6, options, run)
    assert run.passes == ["rfactor"]
    assert rfactor.count == 200
    for name, array in model.to_arrays().items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-11, atol=1e-11, err_msg=name)


# --- standardised and weighted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 100])
def test_standardised_is_the_svd_of_z_scores(n: int) -> None:
    X = np.c_[rows(n, 5) * [1e-9, 1, 1e9, 3, 1e-100], np.full(n, 4.2)]
    scale = np.append(centred(X[:, :5] * [1, 1, 1, 1, 1e100]).std(axis=0) * [1, 1, 1, 1, 1e-100], 1.0)
    model = fit(X, standardize=True)
    np.testing.assert_allclose(model.scale, scale, rtol=1e-13)
    Z = centred(X / scale)
    _, L, V = np.linalg.svd(Z, full_matrices=False)
    rank = min(n - 1, 5)
    np.testing.assert_allclose(model.singular_values[:rank], L[:rank], rtol=1e-12)
    np.testing.assert_allclose(model.singular_values[rank:], 0, atol=1e-13)
    np.testing.assert_allclose(model.components[:rank], fix_signs(V[:rank]), atol=1e-11)
    assert model.total_variance == pytest.approx(5 * n / (n - 1), rel=1e-13)


def test_column_scales() -> None:
    one = RFactor(3)
    one.update(np.array([[1.0, 5, 0], [3, 5, 0]]))
    assert column_scales(one).tolist() == [1, 1, 1]
    one.update(np.array([[5.0, 5, 9]]), np.array([2.0]))
    np.testing.assert_allclose(column_scales(one), np.array([np.sqrt(2.75), 1.0, 4.5]), rtol=1e-15)


@pytest.mark.parametrize("standardize", [False, True])
def test_integer_weights_are_repeats(standardize: bool) -> None:
    rng = np.random.default_rng(0)
    X, times = rows(80), rng.integers(0, 4, size=80)
    options = Options(4, standardize=standardize)
    one = RFactor(6)
    for part in (slice(30), slice(30, 31), slice(31, 80)):
        one.update(X[part], times[part].astype(float))
    found, wanted = model_of(one, options).to_arrays(), fit(X.repeat(times, axis=0), 4, standardize=standardize).to_arrays()
    assert found.pop("n_samples") == np.count_nonzero(times)
    for name, array in found.items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-12, atol=1e-13, err_msg=name)


def test_fractional_weights_are_numpys() -> None:
    X, weights = rows(50), np.random.default_rng(1).gamma(2.0, size=50)
    one = RFactor(6)
    one.update(X, weights)
    model = model_of(one, Options())
    mean = np.average(X, axis=0, weights=weights)
    L = np.linalg.svd((X - mean) * np.sqrt(weights)[:, None])[1]
    np.testing.assert_allclose(model.singular_values, L, rtol=1e-13)
    np.testing.assert_allclose(model.explained_variance, L**2 / (weights.sum() - 1), rtol=1e-13)


def test_no_more_components_than_rows_that_count() -> None:
    one = RFactor(6)
    one.update(rows(20), np.array([0.5, 0, 0, 0.2, 1.7] + [0] * 15))
    assert model_of(one, Options()).n_components == 3


# --- what is refused, and the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_rows_are_refused(n: int) -> None:
    with pytest.raises(DataError, match="at least 2"):
        fit(rows(n))


def test_squares_that_overflow_are_refused() -> None:
    with pytest.raises(DataError, match="overflow float64: rescale"):
        fit(rows() * 1e160)


def test_the_slower_iteration_helps_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = []
    svd = linalg.svd

    def failing(*args: Any, lapack_driver: str = "gesdd", **options: Any) -> Any:
        drivers.append(lapack_driver)
        if lapack_driver == "gesdd":
            raise linalg.LinAlgError("SVD did not converge")
        return svd(*args, lapack_driver=lapack_driver, **options)

    monkeypatch.setattr(linalg, "svd", failing)
    check(fit(rows()), rows())
    assert drivers == ["gesdd", "gesvd"]


def test_the_factor_is_left_as_it_is() -> None:
    one = RFactor(6)
    one.update(rows())
    before = one.R.copy()
    model_of(one, Options(standardize=True))
    singular_pairs(one.R, np.ones(6))
    np.testing.assert_array_equal(one.R, before)


def test_bytes_grow_with_the_square() -> None:
    assert solve_bytes(2000) < 8 * 2000 * 2000 * 9
