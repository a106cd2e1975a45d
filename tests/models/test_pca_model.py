from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from streampca.errors import CorruptDataError, NonFiniteError, UsageError
from streampca.models import PCAModel
from streampca.models.pca import STRIP_ROWS, scores_dtype


def model(k: int = 3, d: int = 6, *, whiten: bool = False, standardized: bool = False, noise: float = 0.25) -> PCAModel:
    rng = np.random.default_rng([k, d])
    directions, _ = np.linalg.qr(rng.standard_normal((d, d)))
    variances = np.linspace(5, 1, k)
    return PCAModel(
        components=directions[:, :k].T.copy(),
        mean=rng.standard_normal(d),
        scale=rng.uniform(0.5, 2, d) if standardized else np.ones(d),
        explained_variance=variances,
        explained_variance_ratio=variances / (variances.sum() + (d - k) * noise),
        singular_values=np.sqrt(variances * 99),
        noise_variance=noise if k < d else 0.0,
        total_variance=float(variances.sum() + (d - k) * noise),
        n_samples=100,
        residuals=np.full(k, 1e-9),
        subspace_error=1e-18,
        whiten=whiten,
    )


def rows(n: int = 50, d: int = 6, dtype: str = "float64") -> np.ndarray:
    return (3 * np.random.default_rng(1).standard_normal((n, d))).astype(dtype)


@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_covariance_and_precision_are_inverse(k: int, standardized: bool) -> None:
    fitted = model(k, standardized=standardized)
    np.testing.assert_allclose(fitted.covariance() @ fitted.precision(), np.eye(6), atol=1e-12)
    np.testing.assert_allclose(fitted.covariance(), fitted.covariance().T, atol=1e-14)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("standardized", [False, True])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_the_density_is_that_of_a_normal_distribution(k: int, standardized: bool, whiten: bool) -> None:
    fitted = model(k, standardized=standardized, whiten=whiten)
    wanted = multivariate_normal(fitted.mean, fitted.covariance()).logpdf(rows())
    np.testing.assert_allclose(fitted.score_samples(rows()), wanted, rtol=1e-11)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("standardized", [False, True])
def test_transform_and_its_inverse_are_the_formulas(whiten: bool, standardized: bool) -> None:
    fitted = model(whiten=whiten, standardized=standardized)
    scores = ((rows() - fitted.mean) / fitted.scale) @ fitted.components.T
    deviations = np.sqrt(fitted.explained_variance) if whiten else np.ones(3)
    np.testing.assert_allclose(fitted.transform(rows()), scores / deviations, atol=1e-13)
    back = (scores @ fitted.components) * fitted.scale + fitted.mean
    np.testing.assert_allclose(fitted.inverse_transform(scores / deviations), back, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, STRIP_ROWS - 1, STRIP_ROWS, STRIP_ROWS + 1, 2 * STRIP_ROWS + 5])
def test_strips_do_not_show(n: int) -> None:
    block = rows(n)
    wanted = (block - model().mean) @ model().components.T
    np.testing.assert_allclose(model().transform(block), wanted, atol=1e-12)
    assert model().score_samples(block).shape == (n,)


@pytest.mark.parametrize(("dtype", "wanted"), [("f4", "f4"), ("f8", "f8"), ("f2", "f8"), ("i4", "f8"), ("u8", "f8"), ("?", "f8")])
def test_scores_are_float32_for_float32_only(dtype: str, wanted: str) -> None:
    assert scores_dtype(np.dtype(dtype)) == wanted
    assert model().transform(rows(dtype=dtype)).dtype == wanted
    assert model().inverse_transform(np.ones((4, 3), dtype)).dtype == wanted
    assert model().score_samples(rows(dtype=dtype)).dtype == np.float64


def test_entries_that_are_not_finite_are_refused() -> None:
    block = rows(5000)
    block[4000, 2] = -np.inf
    for method in (model().transform, model().score_samples):
        with pytest.raises(NonFiniteError, match="inf: the first such entry is in row 4000, column 2"):
            method(block)


@pytest.mark.parametrize("changes", [{"noise_variance": 0.0}, {"explained_variance": np.array([5.0, 3.0, 0.0])}], ids=str)
def test_a_singular_model_has_no_density(changes: dict[str, Any]) -> None:
    singular = replace(model(), **changes)
    for method in (lambda: singular.score_samples(rows()), singular.precision):
        with pytest.raises(UsageError, match="fit fewer than 3 components"):
            method()
    assert np.isfinite(singular.covariance()).all()


def test_a_model_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        model().n_samples = 3  # type: ignore[misc]


@pytest.mark.parametrize("whiten", [False, True])
def test_arrays_and_back_are_bit_exact(whiten: bool) -> None:
    fitted = model(whiten=whiten, standardized=True)
    again = PCAModel.from_arrays(fitted.to_arrays())
    for name, array in fitted.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], array, strict=True)
    assert (type(again.n_samples), type(again.whiten), type(again.noise_variance)) == (int, bool, float)
    np.testing.assert_array_equal(again.transform(rows()), fitted.transform(rows()))


WRONG = {
    "mean": np.zeros(5),
    "scale": np.ones((6, 1)),
    "explained_variance": np.ones(2),
    "explained_variance_ratio": np.ones(4),
    "singular_values": np.array(1.0),
    "noise_variance": np.ones(1),
    "n_samples": np.ones((1, 1), int),
    "components": np.zeros((3, 7)),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(CorruptDataError, match="do not fit the others"):
        PCAModel.from_arrays(model().to_arrays() | {name: WRONG[name]})


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["components", "mean", "scale", "explained_variance"])
def test_parts_that_are_not_finite_are_refused(name: str, value: float) -> None:
    arrays = model().to_arrays()
    arrays[name] = np.full_like(arrays[name], value)
    with pytest.raises(CorruptDataError, match=name):
        PCAModel.from_arrays(arrays)


def test_missing_or_foreign_parts_are_refused() -> None:
    arrays = model().to_arrays()
    for name in arrays:
        with pytest.raises(CorruptDataError, match="a model has the arrays"):
            PCAModel.from_arrays({key: array for key, array in arrays.items() if key != name})
    for more in ({"surprise": np.zeros(3)}, {"components": np.zeros(3)}):
        with pytest.raises(CorruptDataError, match="a model has the arrays"):
            PCAModel.from_arrays(arrays | more)
