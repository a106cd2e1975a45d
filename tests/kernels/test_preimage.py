from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from sklearn.decomposition import KernelPCA
from sklearn.kernel_ridge import KernelRidge

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.kernels.exact import ExactKernelPCA
from streampca.kernels.functions import Polynomial, Rbf
from streampca.kernels.nystrom import NystromMap
from streampca.kernels.preimage import RidgePreimage, fixed_point, ridge_bytes
from tests.kernels.cases import circles, digits


def noisy_digits(noise: float = 0.25) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Noisy rows to fit, clean rows, and the same with noise."""
    rng = np.random.default_rng(0)
    X = digits(1100)
    rng.shuffle(X)
    fitted, clean = X[:800], X[800:]
    return fitted + noise * rng.standard_normal(fitted.shape), clean, clean + noise * rng.standard_normal(clean.shape)


def mse(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean((found - wanted) ** 2))


@pytest.mark.parametrize("alpha", [1.0, 0.1, 0.005])
@pytest.mark.parametrize(("gamma", "k"), [(0.03, 16), (0.03, 32), (0.1, 16), (0.1, 32)])
def test_denoising_is_at_least_as_good_as_scikit_learns(gamma: float, k: int, alpha: float) -> None:
    fitted, clean, noisy = noisy_digits()
    theirs = KernelPCA(k, kernel="rbf", gamma=gamma, fit_inverse_transform=True, alpha=alpha, random_state=0).fit(fitted)
    reference = mse(theirs.inverse_transform(theirs.transform(noisy)), clean)
    model = ExactKernelPCA.fit(Rbf(gamma), fitted, k)
    scores = model.transform(noisy)
    same = RidgePreimage.fit(model.scores, fitted, alpha, Rbf(gamma))
    assert mse(same.inverse_transform(scores), clean) <= reference * 1.001
    found = fixed_point(model.coefficients(scores), model.rows, gamma, same.inverse_transform(scores))
    if alpha == 1.0:  # scikit-learn's default; the best alpha is known only with the clean rows
        assert mse(found, clean) < reference
    assert mse(found, clean) < 0.5 * mse(noisy, clean)


def test_landmarks_denoise_as_well() -> None:
    fitted, clean, noisy = noisy_digits()
    gamma, k = 0.05, 16
    nystrom = NystromMap.fit(Rbf(gamma), fitted[:300])
    F = nystrom.transform(fitted)
    mean = F.mean(axis=0)
    V = np.linalg.svd(F - mean, full_matrices=False)[2][:k]
    to_scores = nystrom.projected(V, mean)
    sample = fitted[:400]
    ridge = RidgePreimage.fit(to_scores.transform(sample), sample)
    scores = to_scores.transform(noisy)
    back = ridge.inverse_transform(scores)
    theirs = KernelPCA(k, kernel="rbf", gamma=gamma, fit_inverse_transform=True).fit(fitted)
    reference = mse(theirs.inverse_transform(theirs.transform(noisy)), clean)
    assert mse(back, clean) <= reference
    found = fixed_point(nystrom.coefficients(mean + scores @ V), nystrom.columns.landmarks, gamma, back)
    assert mse(found, clean) <= reference


def test_ridge_is_scikit_learns_kernel_ridge() -> None:
    X = digits(150)
    scores = ExactKernelPCA.fit(Rbf(0.1), X, 8).scores
    ours = RidgePreimage.fit(scores, X, 0.05, Rbf(2.0))
    theirs = KernelRidge(alpha=0.05, kernel="rbf", gamma=2.0).fit(scores, X - X.mean(axis=0))
    np.testing.assert_allclose(ours.inverse_transform(scores[:20]), theirs.predict(scores[:20]) + X.mean(axis=0), atol=1e-10)


def test_alpha_has_the_smallest_leave_one_out_error() -> None:
    X = circles(40)
    scores = ExactKernelPCA.fit(Rbf(2.0), X, 3).scores

    def leave_one_out(alpha: float) -> float:
        errors = 0.0
        for i in range(40):
            others = np.arange(40) != i
            model = KernelRidge(alpha=alpha, kernel="rbf", gamma=1.0).fit(scores[others], (X - X.mean(axis=0))[others])
            errors += float(np.square(model.predict(scores[i : i + 1]) - (X - X.mean(axis=0))[i]).sum())
        return errors

    chosen = RidgePreimage.fit(scores, X, kernel=Rbf(1.0)).alpha
    assert all(leave_one_out(chosen) <= leave_one_out(chosen * factor) * (1 + 1e-9) for factor in (10**-0.5, 10**0.5))


def test_images_of_points_come_back() -> None:
    X = circles(80) + 1e4
    model = ExactKernelPCA.fit(Rbf(2.0), X)
    start = X + 0.05 * np.random.default_rng(0).standard_normal(X.shape)
    found = fixed_point(model.coefficients(model.scores), X, 2.0, start, max_iter=1000)
    np.testing.assert_allclose(found, X, atol=2e-4)


def test_the_fixed_point_is_nearest_in_feature_space() -> None:
    fitted, _, noisy = noisy_digits()
    gamma = 0.05
    model = ExactKernelPCA.fit(Rbf(gamma), fitted, 16)
    C = model.coefficients(model.transform(noisy))
    found = fixed_point(C, model.rows, gamma, noisy)

    def likeness(Z: np.ndarray) -> np.ndarray:
        """<phi(z), sum c phi(x)>: the larger, the nearer."""
        return (C * Rbf(gamma).evaluate(Z, model.rows)).sum(axis=1)

    rng = np.random.default_rng(0)
    best = likeness(found)
    assert (best >= likeness(noisy) - 1e-12).all()
    for _ in range(5):
        assert (best >= likeness(found + 0.02 * rng.standard_normal(found.shape)) - 1e-7).all()


def test_weights_that_cancel_leave_a_row_where_it_is() -> None:
    points = np.array([[0.0], [1.0]])
    start = np.array([[0.5], [0.3]])
    np.testing.assert_array_equal(fixed_point(np.array([[1.0, -1.0], [-1.0, -2.0]]), points, 1.0, start), start)
    far = fixed_point(np.array([[1.0, 1.0]]), points, 1.0, np.array([[1e9]]))
    assert far.tolist() == [[1e9]]


def test_stored_and_bounded() -> None:
    X = digits(300)
    scores = ExactKernelPCA.fit(Rbf(0.1), X, 8).scores
    tracemalloc.start()
    one = RidgePreimage.fit(scores, X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= ridge_bytes(300, 64, 8)
    copy = RidgePreimage.from_arrays(one.to_arrays(), one.attributes())
    np.testing.assert_array_equal(copy.inverse_transform(scores), one.inverse_transform(scores))
    large = np.repeat(scores, 30, axis=0)
    tracemalloc.start()
    rows = one.inverse_transform(large)
    assert tracemalloc.get_traced_memory()[1] - rows.nbytes < 6e6
    tracemalloc.stop()


def test_constant_scores_give_the_mean() -> None:
    X = digits(10)
    np.testing.assert_allclose(RidgePreimage.fit(np.zeros((10, 2)), X).inverse_transform(np.zeros((1, 2)))[0], X.mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(RidgePreimage.fit(np.ones((1, 2)), X[:1]).inverse_transform(np.ones((1, 2))), X[:1])


def test_what_is_refused() -> None:
    X = digits(10)
    with pytest.raises(UsageError, match="not 9 and 10"):
        RidgePreimage.fit(X[:9], X)
    for alpha in (0.0, -1.0, np.nan):
        with pytest.raises(UsageError, match="alpha must be a positive number or 'auto'"):
            RidgePreimage.fit(X, X, alpha)
    ridge = RidgePreimage.fit(X, X, 1.0, Polynomial(0.1))
    with pytest.raises(DataError, match="64 columns"):
        ridge.inverse_transform(X[:, :3])
    X[4, 1] = np.nan
    with pytest.raises(NonFiniteError, match="row 4, column 1"):
        ridge.inverse_transform(X)
