from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import chi2_kernel, euclidean_distances, manhattan_distances, pairwise_kernels

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels.functions import KERNELS, Custom, Kernel, Linear, Polynomial, Rbf, Sigmoid, gamma_of, kernel_from, make_kernel

DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64"]


def rows(n: int, d: int, dtype: Any = "f8", seed: int = 0, offset: float = 0.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((n, d)) * 2 + offset
    return values > 0 if np.dtype(dtype).kind == "b" else np.abs(values).astype(dtype)


def reference(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The kernel by plain formulas in extended precision."""
    X, Z = X.astype(np.longdouble), Z.astype(np.longdouble)
    difference = X[:, None] - Z
    inner = (X[:, None] * Z).sum(axis=2)
    given = {name: value for name, value in kernel.parameters().items() if name != "name"}
    gamma, coef0 = float(given.get("gamma", 1)), float(given.get("coef0", 0))
    match kernel.name:
        case "linear":
            return inner
        case "rbf":
            return np.exp(-gamma * (difference**2).sum(axis=2))
        case "laplacian":
            return np.exp(-gamma * np.abs(difference).sum(axis=2))
        case "polynomial":
            return (gamma * inner + coef0) ** int(given["degree"])
        case "sigmoid":
            return np.tanh(gamma * inner + coef0)
    norms = np.sqrt((X**2).sum(axis=1))[:, None] * np.sqrt((Z**2).sum(axis=1))
    return inner / np.where(norms > 0, norms, 1)


# --- values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_values_are_scikit_learns(name: str, dtype: str) -> None:
    X, Z = rows(40, 6, dtype), rows(15, 6, dtype, seed=1)
    kernel = make_kernel(name, n_features=6)
    found = kernel.evaluate(X, Z)
    narrow = name in ("rbf", "laplacian") and np.can_cast(dtype, np.float32)
    assert found.dtype == (np.float32 if narrow else np.float64)
    expected = pairwise_kernels(X.astype(float), Z.astype(float), metric=name)
    np.testing.assert_allclose(found, expected, rtol=3e-6 if narrow else 1e-12, atol=1e-7 if narrow else 1e-13)
    np.testing.assert_allclose(kernel.diagonal(X), pairwise_kernels(X.astype(float), metric=name).diagonal(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "parameters", [{"gamma": 0.3}, {"gamma": 0.02, "degree": 2, "coef0": 0.5}, {"degree": 5}, {"degree": 1}, {"coef0": 0}]
)
@pytest.mark.parametrize("name", KERNELS)
def test_parameters_mean_what_scikit_learn_means(name: str, parameters: dict[str, Any]) -> None:
    X, Z = rows(20, 4), rows(9, 4, seed=1)
    found = make_kernel(name, n_features=4, **parameters).evaluate(X, Z)
    expected = pairwise_kernels(X, Z, metric=name, filter_params=True, **parameters)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_values_are_put_where_asked(name: str) -> None:
    X, Z, kernel = rows(20, 4), rows(9, 4, seed=1), make_kernel(name, n_features=4)
    expected = kernel.evaluate(X, Z)
    for out in (np.empty((20, 9)), np.empty((20, 12))[:, 1:10], np.empty((20, 9), np.float32)):
        assert kernel.evaluate(X, Z, out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-14 if out.dtype == float else 1e-5)
    before = X.copy()
    kernel.evaluate(X, Z)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("layout", ["F", "strided", "frozen"])
@pytest.mark.parametrize("name", KERNELS)
def test_any_layout(name: str, layout: str) -> None:
    X, Z, kernel = rows(20, 4, "f4"), rows(9, 4, "f4", seed=1), make_kernel(name, n_features=4)
    wide = np.zeros((40, 8), "f4")
    wide[::2, ::2] = X
    other = {"F": np.asfortranarray(X), "strided": wide[::2, ::2], "frozen": X.copy()}[layout]
    other.flags.writeable = False
    np.testing.assert_allclose(kernel.evaluate(other, Z), kernel.evaluate(X, Z), rtol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_a_large_mean_does_not_cancel_in_float32_distances(offset: float) -> None:
    X, Z = rows(300, 10, "f4", offset=offset), rows(50, 10, "f4", seed=1, offset=offset)
    kernel = Rbf(0.1)
    np.testing.assert_allclose(kernel.evaluate(X, Z), reference(kernel, X, Z).astype(float), atol=1e-6)
    X, Z = X.astype("f8"), Z.astype("f8")
    np.testing.assert_allclose(kernel.evaluate(X, Z), reference(kernel, X, Z).astype(float), atol=1e-14 * max(offset, 1))


@settings(deadline=None, max_examples=60)
@given(log_gamma=st.floats(-3, 4), d=st.integers(1, 8), seed=st.integers(0, 10**6), spread=st.sampled_from([0.01, 1.0, 30.0]))
def test_float32_rbf_keeps_its_promise(log_gamma: float, d: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    Z = (rng.standard_normal((12, d)) * spread).astype("f4")
    X = (Z[rng.integers(12, size=30)] + rng.standard_normal((30, d)) * spread * rng.choice([0, 1e-3, 1, 10], (30, 1))).astype("f4")
    kernel = Rbf(10.0**log_gamma)
    assert np.abs(kernel.evaluate(X, Z) - reference(kernel, X, Z)).max() < 1.5e-5


def test_float32_rows_that_leave_its_range() -> None:
    X = np.array([[1e30, 1e30], [0.0, 0.0], [3e38, -3e38]], "f4")
    Z = np.zeros((2, 2), "f4")
    np.testing.assert_array_equal(Rbf(0.5).evaluate(X, Z), [[0, 0], [1, 1], [0, 0]])
    np.testing.assert_array_equal(Rbf(0.5).evaluate(X, X), np.eye(3))
    wide = np.array([[1e200, 1e200], [1e200, -1e200]])
    np.testing.assert_array_equal(Rbf(0.5).evaluate(wide, wide), np.eye(2))
    np.testing.assert_array_equal(Rbf(0.5).evaluate(wide, np.zeros((1, 2))), np.zeros((2, 1)))


def test_narrow_kernels_are_as_accurate_in_float64() -> None:
    Z = rows(30, 3)
    X = Z + 1e-6 * rows(30, 3, seed=1)
    for gamma in (1e3, 1e6, 1e9, 1e12):
        kernel = Rbf(gamma)
        assert np.abs(kernel.evaluate(X, Z) - reference(kernel, X, Z)).max() < 2e-9


def test_a_row_of_zeros_has_cosine_zero() -> None:
    kernel = make_kernel("cosine", n_features=2)
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(kernel.evaluate(X, X), [[0, 0], [0, 1]])
    np.testing.assert_allclose(kernel.diagonal(X), [0, 1])


def test_kernels_are_values() -> None:
    for name in KERNELS:
        kernel = make_kernel(name, n_features=3)
        assert pickle.loads(pickle.dumps(kernel)) == kernel == kernel_from(kernel.parameters())
        assert kernel.name == name
    assert make_kernel("poly", n_features=3) == make_kernel("polynomial", n_features=3)
    assert Polynomial(1.0).definite
    assert not Polynomial(1.0, coef0=-1.0).definite
    assert not Polynomial(1.0, degree=2.5).definite


# --- functions ----------------------------------------------------------------------------------------------------


def test_a_function_of_two_blocks() -> None:
    X, Z = np.abs(rows(70, 4)), np.abs(rows(9, 4, seed=1))
    kernel = make_kernel(chi2_kernel, n_features=4)
    np.testing.assert_allclose(kernel.evaluate(X, Z), chi2_kernel(X, Z))
    np.testing.assert_allclose(kernel.diagonal(X), chi2_kernel(X, X).diagonal())
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    with pytest.raises(UsageError, match="cannot be stored"):
        kernel.parameters()


def test_functions_that_return_something_else() -> None:
    with pytest.raises(UsageError, match=r"returned shape \(\) for 5 rows and 3 points"):
        Custom(lambda X, Z: 1.0).evaluate(rows(5, 2), rows(3, 2))  # type: ignore[arg-type, return-value]
    with pytest.raises(DataError, match="custom kernel overflow"):
        Custom(lambda X, Z: np.full((len(X), len(Z)), np.nan)).evaluate(rows(5, 2), rows(3, 2))


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", [*KERNELS, "function"])
def test_what_is_not_finite_is_named(name: str, dtype: str, value: float) -> None:
    kernel = make_kernel(chi2_kernel if name == "function" else name, n_features=3)
    X, Z = rows(9, 3, dtype), rows(4, 3, dtype)
    X[5, 2] = X[7, 0] = value
    with pytest.raises(NonFiniteError) as caught:
        kernel.evaluate(X, Z)
    assert (caught.value.row, caught.value.column) == (5, 2)


@pytest.mark.parametrize(("name", "size"), [("linear", 1e200), ("polynomial", 1e120), ("cosine", 1e200)])
def test_overflow_is_an_error(name: str, size: float) -> None:
    X = np.full((3, 2), size)
    with pytest.raises(DataError, match="rescale"):
        make_kernel(name, n_features=2).evaluate(X, np.array([[size, -size]]))


def test_rows_of_another_width() -> None:
    with pytest.raises(DataError, match=r"shape \(4, 3\), but the kernel's points have 2 columns"):
        Linear().evaluate(rows(4, 3), rows(2, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel": "rbff"}, "no kernel 'rbff'.*Did you mean 'rbf'"),
        ({"kernel": "poli"}, "Did you mean 'polynomial'"),
        ({"kernel": 3}, "must be a name or a function"),
        ({"gamma": 0}, "gamma must be a positive number, not 0"),
        ({"gamma": -1.0}, "gamma must be a positive number, not -1"),
        ({"gamma": np.nan}, "gamma must be"),
        ({"gamma": np.inf}, "gamma must be"),
        ({"gamma": "scal"}, "Did you mean 'scale'"),
        ({"gamma": "scale"}, "none were given"),
        ({"gamma": True}, "gamma must be a number, not True"),
        ({"kernel": "poly", "degree": 0}, "degree must be a positive number"),
        ({"kernel": "poly", "degree": "3"}, "degree must be a number"),
        ({"kernel": "poly", "coef0": np.inf}, "coef0 must be a finite"),
        ({"kernel": "sigmoid", "coef0": None}, "coef0 must be a number"),
        ({"kernel": "sigmoid", "gamma": "median", "sample": np.eye(2)}, "the sigmoid kernel has none"),
    ],
)
def test_wrong_parameters(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_kernel(**{"n_features": 2, **arguments})


# --- gamma --------------------------------------------------------------------------------------------------------


def test_gamma_by_name() -> None:
    X = rows(300, 4, "f4", offset=3.0)
    assert gamma_of(None, "rbf", 4) == 0.25
    assert gamma_of(np.float32(0.5), "rbf", 4) == 0.5  # type: ignore[arg-type]
    assert gamma_of("scale", "rbf", 4, X) == pytest.approx(1 / (4 * X.astype(float).var()))
    apart = ~np.eye(300, dtype=bool)
    assert gamma_of("median", "rbf", 4, X) == pytest.approx(1 / (2 * np.median(euclidean_distances(X.astype(float))[apart]) ** 2))
    assert gamma_of("median", "laplacian", 4, X) == pytest.approx(1 / np.median(manhattan_distances(X.astype(float))[apart]))
    assert gamma_of("median", "rbf", 4, np.repeat(X, 20, axis=0)) == pytest.approx(gamma_of("median", "rbf", 4, X), rel=0.1)


@pytest.mark.parametrize("gamma", ["scale", "median"])
def test_constant_rows_have_the_default_gamma(gamma: Any) -> None:
    assert gamma_of(gamma, "rbf", 4, np.ones((5, 4))) == 0.25
    assert make_kernel("rbf", n_features=4, gamma=gamma, sample=np.ones((1, 4))) == Rbf(0.25)


def test_sigmoid_is_not_definite() -> None:
    kernel = Sigmoid(0.5, -1.0)
    X = rows(30, 3)
    assert not kernel.definite
    assert np.linalg.eigvalsh(kernel.evaluate(X, X)).min() < -1e-3
