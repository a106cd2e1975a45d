from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels.exact import ExactKernelPCA
from streampca.kernels.functions import KERNELS, Custom, Linear, Rbf, Sigmoid, make_kernel
from streampca.kernels.nystrom import KernelColumns, NystromMap, gram
from streampca.memory import KIB
from tests.kernels.cases import DATA, circles, digits, scatter_of, scores_of, swiss_roll

SMALL = 1e-6


def normal(n: int, d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


# --- all rows as landmarks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "sigmoid"])
def test_all_rows_as_landmarks_are_exact(name: str, data: str) -> None:
    X = DATA[data](200)
    kernel = make_kernel(name, n_features=X.shape[1])
    exact, nystrom = ExactKernelPCA.fit(kernel, X, 6), NystromMap.fit(kernel, X)
    values, scores = scores_of(nystrom.transform(X), 6)
    found = min(6, len(values))
    np.testing.assert_allclose(values, exact.eigenvalues[:found], atol=SMALL * values[0])
    apart = np.diff(exact.eigenvalues[:found], append=0) < -1e-3 * values[0]
    apart &= np.r_[True, apart[:-1]]
    np.testing.assert_allclose(scores[:, apart], exact.scores[:, :found][:, apart], atol=SMALL * values[0] ** 0.5)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_products_of_features_are_the_kernel(dtype: str) -> None:
    X = digits(200).astype(dtype)
    for name in KERNELS[:-2]:
        kernel = make_kernel(name, n_features=64)
        nystrom = NystromMap.fit(kernel, X)
        F = nystrom.transform(X).astype(float)
        rows = nystrom.columns.shifted(X)
        np.testing.assert_allclose(F @ F.T, gram(kernel, rows), atol=2e-5 if nystrom.dtype == np.float32 else 1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_the_linear_kernel_is_pca(offset: float) -> None:
    X = normal(300, 6) * [9, 7, 5, 3, 2, 1] + offset
    nystrom = NystromMap.fit(Linear(), X[:20])
    assert nystrom.n_features_out == 6
    values, scores = scores_of(nystrom.transform(X), 6)
    expected, their = scores_of(X - offset, 6)
    np.testing.assert_allclose(values, expected, rtol=1e-8)
    np.testing.assert_allclose(scores, their, atol=1e-6)


def test_as_scikit_learns_nystroem() -> None:
    X = digits(300)
    theirs = Nystroem(kernel="rbf", gamma=0.05, n_components=40, random_state=0).fit(X)
    ours = NystromMap.fit(Rbf(0.05), X[theirs.component_indices_])
    F, G = ours.transform(X), theirs.transform(X)
    np.testing.assert_allclose(F @ F.T, G @ G.T, atol=1e-9)


# --- rank ---------------------------------------------------------------------------------------------------------


def test_landmarks_may_repeat() -> None:
    X = digits(60)
    once, twice = NystromMap.fit(Rbf(0.1), X), NystromMap.fit(Rbf(0.1), np.r_[X, X, X[:7]])
    assert once.n_features_out == twice.n_features_out == 60
    F, G = (each.transform(digits(200)) for each in (once, twice))
    np.testing.assert_allclose(F @ F.T, G @ G.T, atol=1e-9)
    same = NystromMap.fit(Rbf(1.0), np.ones((5, 3)))
    assert same.n_features_out == 1
    np.testing.assert_allclose(same.transform(np.ones((2, 3))), [[1.0], [1.0]])


def test_negative_eigenvalues_are_dropped_and_told() -> None:
    X, kernel = normal(80, 3), Sigmoid(0.5, -1.0)
    nystrom = NystromMap.fit(kernel, X)
    values, vectors = np.linalg.eigh(gram(kernel, X))
    assert nystrom.negative_share == pytest.approx(-values[values < 0].sum() / np.abs(values).sum(), rel=1e-9)
    assert nystrom.n_features_out == (values > 1e-11 * values[-1]).sum() < 80
    F = nystrom.transform(X)
    np.testing.assert_allclose(F @ F.T, (vectors * np.maximum(values, 0)) @ vectors.T, atol=1e-8)
    assert NystromMap.fit(Rbf(1.0), X).negative_share == 0


def test_a_kernel_that_is_negative_is_refused() -> None:
    with pytest.raises(DataError, match="zero or negative between all landmarks"):
        NystromMap.fit(Custom(lambda X, Z: -np.ones((len(X), len(Z)))), np.eye(3))
    with pytest.raises(DataError, match="zero or negative"):
        NystromMap.fit(make_kernel("cosine", n_features=2), np.zeros((3, 2)))


# --- raw columns first, the root afterwards -------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("data", DATA)
def test_the_scatter_of_columns_gives_that_of_features(name: str, data: str) -> None:
    X = DATA[data](300)
    nystrom = NystromMap.fit(make_kernel(name, n_features=X.shape[1]), X[:50])
    columns = scatter_of(nystrom.columns.transform(X))
    found, expected = nystrom.features_of(columns), scatter_of(nystrom.transform(X))
    assert found.count == expected.count == 300
    size = np.linalg.eigvalsh(expected.scatter)[-1]
    np.testing.assert_allclose(
        np.linalg.eigvalsh(found.scatter)[::-1][:8], np.linalg.eigvalsh(expected.scatter)[::-1][:8], atol=1e-8 * size
    )
    np.testing.assert_allclose(found.mean[:8], expected.mean[:8], atol=1e-8 * max(np.abs(expected.mean).max(), 1))
    total = make_kernel(name, n_features=X.shape[1]).diagonal(nystrom.columns.shifted(X)).sum()
    assert nystrom.columns.trace(columns) == pytest.approx(total, rel=1e-12)
    with pytest.raises(DataError, match="were expected"):
        nystrom.features_of(scatter_of(X[:, :1]))


@pytest.mark.parametrize("data", ["swiss", "circles", "narrow", "digits"])
def test_the_cheapest_pass_is_as_good_as_float64_features(data: str) -> None:
    """Float32 rows, with landmarks whose kernel matrix is anything from singular to well-conditioned."""
    X, gamma = {
        "swiss": (swiss_roll(3000), 2.0),
        "circles": (circles(3000), 2.0),
        "narrow": (normal(3000, 5), 5.0),
        "digits": (digits(1700), 0.1),
    }[data]
    X = X.astype("f4")
    landmarks = X[np.random.default_rng(0).choice(len(X), 150, replace=False)]
    nystrom = NystromMap.fit(Rbf(gamma), landmarks)
    step = nystrom.cheapest_pass()
    found = step.finish(scatter_of(step.features.transform(X), "float64" if step.precision == "float64" else "float32"))
    values = np.linalg.eigvalsh(found.scatter)[::-1]
    reference = NystromMap.fit(Rbf(gamma), landmarks.astype(float), tolerance=1e-9)
    expected = np.linalg.eigvalsh(scatter_of(reference.transform(X.astype(float))).scatter)[::-1]
    np.testing.assert_allclose(values[:10], expected[:10], rtol=3e-6)
    np.testing.assert_allclose(values.sum(), expected.sum(), rtol=1e-5)


def test_which_pass_is_cheapest() -> None:
    well = NystromMap.fit(Rbf(5.0), normal(100, 5, "f4")).cheapest_pass()
    assert isinstance(well.features, KernelColumns)
    assert well.precision == "auto"
    ill = NystromMap.fit(Rbf(0.3), normal(100, 3, "f4")).cheapest_pass()
    assert isinstance(ill.features, KernelColumns)
    assert ill.precision == "float64"
    low = NystromMap.fit(Linear(), normal(100, 5)).cheapest_pass()
    assert isinstance(low.features, NystromMap)
    assert low.finish(scatter_of(np.eye(3))).count == 3


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", ["rbf", "polynomial"])
def test_scores_without_features(name: str, dtype: str) -> None:
    X = digits(400).astype(dtype)
    nystrom = NystromMap.fit(make_kernel(name, n_features=64), X[:60])
    F = nystrom.transform(X).astype(float)
    mean = F.mean(axis=0)
    V = np.linalg.svd(F - mean, full_matrices=False)[2][:7]
    scores = nystrom.projected(V, mean).transform(X)
    assert scores.dtype == nystrom.dtype
    np.testing.assert_allclose(scores, (F - mean) @ V.T, atol=1e-5 if nystrom.dtype == np.float32 else 1e-10)
    X[250, 3] = np.inf
    with pytest.raises(NonFiniteError, match="row 250, column 3"):
        nystrom.projected(V, mean).transform(X)


def test_coefficients_of_landmarks() -> None:
    Z = digits(30)
    nystrom = NystromMap.fit(Rbf(0.1), Z)
    np.testing.assert_allclose(nystrom.coefficients(nystrom.transform(Z)), np.eye(30), atol=1e-9)


# --- a picklable, bounded value -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_travels_and_is_stored(name: str) -> None:
    X = digits(80).astype("f4")
    nystrom = NystromMap.fit(make_kernel(name, n_features=64), X[:20])
    expected = nystrom.transform(X)
    assert len(pickle.dumps(nystrom)) < 8 * (20 * 64 + 20 * 20 + 20 + 64) + 3000
    for one in (nystrom, nystrom.columns):
        for copy in (pickle.loads(pickle.dumps(one)), type(one).from_arrays(one.to_arrays(), one.attributes())):
            assert copy.digest == one.digest
            np.testing.assert_array_equal(copy.transform(X), one.transform(X))
    assert nystrom.digest != nystrom.columns.digest
    assert nystrom.digest != NystromMap.fit(nystrom.kernel, X[1:21]).digest
    np.testing.assert_array_equal(nystrom.transform(X), expected)


def test_a_function_travels_but_is_not_stored() -> None:
    nystrom = NystromMap.fit(Custom(rbf_kernel), digits(20))
    copy = pickle.loads(pickle.dumps(nystrom))
    np.testing.assert_array_equal(copy.transform(digits(30)), nystrom.transform(digits(30)))
    assert nystrom.digest
    with pytest.raises(UsageError, match="cannot be stored"):
        nystrom.attributes()


@settings(deadline=None, max_examples=25)
@given(data=st.data(), dtype=st.sampled_from(["f4", "f8"]))
def test_any_split_gives_the_same_features(data: st.DataObject, dtype: str) -> None:
    X = normal(150, 4, dtype)
    nystrom = NystromMap.fit(Rbf(0.3), X[:30])
    cut = data.draw(st.integers(0, 150))
    out = np.empty((150, nystrom.n_features_out), dtype)
    for rows in (slice(0, cut), slice(cut, 150)):
        assert np.shares_memory(nystrom.transform(X[rows], out[rows]), out) or rows.start == rows.stop
    np.testing.assert_allclose(out, nystrom.transform(X), atol=3e-4 if dtype == "f4" else 1e-9)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("n", "d", "dtype"), [(5000, 40, "f4"), (3000, 3, "f8"), (200, 1500, "f4")])
def test_memory_is_bounded(name: str, n: int, d: int, dtype: str) -> None:
    X = normal(n, d, dtype)
    nystrom = NystromMap.fit(make_kernel(name, n_features=d), X[:100])
    for one in (nystrom, nystrom.columns):
        out = np.empty((n, one.n_features_out), one.dtype)
        one.transform(X[:2])
        copy: Any = pickle.loads(pickle.dumps(one))
        tracemalloc.start()
        copy.transform(X, out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        prepared = 8 * 100 * (d + 2) + (copy.root.nbytes if one is nystrom else 0)
        assert peak <= copy.workspace(n) + prepared + 64 * KIB, (name, peak, copy.workspace(n))


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_not_finite_is_named(name: str, value: float) -> None:
    X = normal(6000, 30, "f4")
    nystrom = NystromMap.fit(make_kernel(name, n_features=30), X[:20])
    X[5003, 17] = X[5500, 2] = value
    for one in (nystrom, nystrom.columns):
        with pytest.raises(NonFiniteError) as caught:
            one.transform(X)
        assert (caught.value.row, caught.value.column) == (5003, 17)


def test_landmarks_that_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one row"):
        NystromMap.fit(Rbf(1.0), np.empty((0, 3)))
    with pytest.raises(NonFiniteError, match="row 1, column 0"):
        NystromMap.fit(Rbf(1.0), np.array([[0.0], [np.nan]]))
    with pytest.raises(DataError, match="2 columns"):
        NystromMap.fit(Rbf(1.0), np.eye(2)).transform(np.eye(3))
