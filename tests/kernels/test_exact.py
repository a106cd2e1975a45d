from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA, KernelPCA
from sklearn.metrics.pairwise import pairwise_kernels

from streampca.errors import NonFiniteError, UsageError
from streampca.kernels import exact
from streampca.kernels.exact import ExactKernelPCA, exact_bytes
from streampca.kernels.functions import KERNELS, Linear, Rbf, Sigmoid, make_kernel
from tests.kernels.cases import DATA, digits, scores_of, signed, swiss_roll

SMALL = 1e-6


def theirs(name: str, X: np.ndarray, k: int | None, **options: Any) -> Any:
    """scikit-learn's KernelPCA; of the kernels that it does not name, by their matrix."""
    name = {"polynomial": "poly", "laplacian": "precomputed"}.get(name, name)
    model = KernelPCA(k, kernel=name, eigen_solver="dense", **options)
    return model.fit(pairwise_kernels(X, metric="laplacian") if name == "precomputed" else X)


def their_scores(name: str, model: Any, fitted: np.ndarray, X: np.ndarray) -> np.ndarray:
    return model.transform(pairwise_kernels(X, fitted, metric="laplacian") if name == "laplacian" else X)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", KERNELS)
def test_equal_to_scikit_learn(name: str, data: str) -> None:
    X = DATA[data]()
    fitted, new = X[:200], X[200:] + 0.01
    ours, reference = ExactKernelPCA.fit(make_kernel(name, n_features=X.shape[1]), fitted, 8), theirs(name, fitted, 8)
    size = reference.eigenvalues_[0]
    np.testing.assert_allclose(ours.eigenvalues, reference.eigenvalues_, rtol=0, atol=SMALL * size)
    positive = reference.eigenvalues_ > 0
    np.testing.assert_allclose(ours.scores[:, positive], their_scores(name, reference, fitted, fitted)[:, positive], atol=SMALL * size**0.5)
    np.testing.assert_allclose(
        ours.transform(new)[:, positive], their_scores(name, reference, fitted, new)[:, positive], atol=SMALL * size**0.5
    )
    assert not ours.scores[:, ~positive].any()
    assert not ours.transform(new)[:, ~positive].any()


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", [name for name in KERNELS if name != "sigmoid"])
def test_zero_eigenvalues_are_removed_as_there(name: str, data: str) -> None:
    X = DATA[data](150)
    kernel = make_kernel(name, n_features=X.shape[1])
    assert abs(ExactKernelPCA.fit(kernel, X).n_components - theirs(name, X, None).eigenvalues_.size) <= 1
    asked, removed = ExactKernelPCA.fit(kernel, X, 150), ExactKernelPCA.fit(kernel, X, 150, remove_zero=True)
    assert asked.n_components == 150
    assert removed.n_components == (asked.eigenvalues > 0).sum()


def test_few_of_many_are_found_by_lanczos(monkeypatch: pytest.MonkeyPatch) -> None:
    X = swiss_roll(1100)
    few = ExactKernelPCA.fit(Rbf(1.0), X, 6)
    assert few.negative_share is None
    monkeypatch.setattr(exact, "_few", lambda *_: False)
    dense = ExactKernelPCA.fit(Rbf(1.0), X, 6)
    assert dense.negative_share == 0
    np.testing.assert_allclose(few.eigenvalues, dense.eigenvalues, rtol=1e-10)
    np.testing.assert_allclose(few.scores, dense.scores, atol=1e-7)
    np.testing.assert_array_equal(few.total_variation, dense.total_variation)


def test_lanczos_that_fails_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    X = swiss_roll(120)
    expected = ExactKernelPCA.fit(Rbf(1.0), X, 3)
    monkeypatch.setattr(exact, "_few", lambda *_: True)
    monkeypatch.setattr(exact, "_by_lanczos", lambda *_: None)
    np.testing.assert_array_equal(ExactKernelPCA.fit(Rbf(1.0), X, 3).eigenvalues, expected.eigenvalues)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_the_linear_kernel_is_pca(dtype: str, offset: float) -> None:
    X = (np.random.default_rng(0).standard_normal((80, 5)) * [9, 7, 5, 3, 2] + offset).astype(dtype)
    model = ExactKernelPCA.fit(Linear(), X, 4)
    values, scores = scores_of(X.astype(float) - X.astype(float).mean(axis=0), 4)
    np.testing.assert_allclose(model.eigenvalues, values, rtol=1e-9)
    np.testing.assert_allclose(model.scores, scores, atol=1e-8)
    np.testing.assert_allclose(signed(PCA(4).fit_transform(X.astype(float) - offset)), model.scores, atol=1e-6)
    np.testing.assert_allclose(model.transform(X[:9]), model.scores[:9], atol=1e-8)
    assert model.total_variation == pytest.approx(values.sum() + scores_of(X, 5)[0][4], rel=1e-6)


def test_new_rows_are_centred_by_the_fitted_ones() -> None:
    X = digits(60)
    model = ExactKernelPCA.fit(Rbf(0.1), X, 5)
    np.testing.assert_allclose(model.transform(X), model.scores, atol=1e-12)
    np.testing.assert_allclose(model.transform(X[7:8]), model.scores[7:8], atol=1e-12)
    assert model.transform(np.empty((0, 64))).shape == (0, 5)


def test_negative_eigenvalues_are_dropped_and_told() -> None:
    X = np.random.default_rng(0).standard_normal((60, 3))
    model = ExactKernelPCA.fit(Sigmoid(0.5, -1.0), X)
    K = pairwise_kernels(X, metric="sigmoid", gamma=0.5, coef0=-1.0)
    values = np.linalg.eigvalsh(K - K.mean(0) - K.mean(1)[:, None] + K.mean())
    assert model.negative_share == pytest.approx(-values[values < 0].sum() / np.abs(values).sum(), rel=1e-9)
    assert model.negative_share is not None
    assert model.negative_share > 0.01
    assert (model.eigenvalues > 0).all()
    np.testing.assert_allclose(model.eigenvalues, values[values > 1e-12 * values.max()][::-1], rtol=1e-8, atol=1e-12)


def test_coefficients_are_those_of_the_projection() -> None:
    X = digits(50)
    model = ExactKernelPCA.fit(Rbf(0.1), X)  # all of them: the projection of an image is the image
    C = model.coefficients(model.scores)
    np.testing.assert_allclose(C, np.eye(50), atol=1e-7)


def test_travels_and_is_stored() -> None:
    for kernel in (Rbf(0.1), Linear()):
        model = ExactKernelPCA.fit(kernel, digits(40), 4)
        for copy in (pickle.loads(pickle.dumps(model)), ExactKernelPCA.from_arrays(model.to_arrays(), model.attributes())):
            np.testing.assert_array_equal(copy.transform(digits(9)), model.transform(digits(9)))
            assert copy.negative_share == model.negative_share


def test_memory_is_bounded() -> None:
    X, new = np.random.default_rng(0).standard_normal((1200, 20)), np.random.default_rng(1).standard_normal((20_000, 20))
    for k in (5, None):
        n = 1200 if k else 400
        tracemalloc.start()
        model = ExactKernelPCA.fit(Rbf(0.05), X[:n], k)
        assert tracemalloc.get_traced_memory()[1] <= exact_bytes(n, 20, k)
        tracemalloc.stop()
    tracemalloc.start()
    model = ExactKernelPCA.fit(Rbf(0.05), X[:300], 5)
    tracemalloc.reset_peak()
    model.transform(new)
    assert tracemalloc.get_traced_memory()[1] < 25e6
    tracemalloc.stop()


def test_one_row_and_constant_rows() -> None:
    assert ExactKernelPCA.fit(Rbf(1.0), np.ones((1, 3)), 1).eigenvalues.tolist() == [0.0]
    assert ExactKernelPCA.fit(Rbf(1.0), np.ones((6, 3))).n_components == 0


def test_what_is_refused() -> None:
    X = digits(30)
    for k in (0, 31):
        with pytest.raises(UsageError, match=f"between 1 and the number of rows, 30, not {k}"):
            ExactKernelPCA.fit(Rbf(1.0), X, k)
    model = ExactKernelPCA.fit(Rbf(1.0), X, 3)
    bad = np.tile(X, (400, 1))
    bad[9000, 5] = np.inf
    with pytest.raises(NonFiniteError, match="row 9000, column 5"):
        model.transform(bad)
    X[3, 4] = np.nan
    with pytest.raises(NonFiniteError, match="row 3, column 4"):
        ExactKernelPCA.fit(Rbf(1.0), X, 3)
