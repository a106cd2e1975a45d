from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_get_feature_names_out_error,
    check_set_output_transform,
    check_set_output_transform_pandas,
    check_transformer_get_feature_names_out,
    check_transformer_get_feature_names_out_pandas,
    parametrize_with_checks,
)

from streampca import PCA

ESTIMATORS = [PCA(), PCA(n_components=1), PCA(n_components=1, whiten=True, standardize=True)]


# No expected failures. scikit-learn itself skips check_array_api_input unless SCIPY_ARRAY_API=1 is set before it is imported.
@parametrize_with_checks(ESTIMATORS)
def test_all_of_scikit_learns_checks(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        check_dataframe_column_names_consistency,
        check_get_feature_names_out_error,
        check_set_output_transform,
        check_set_output_transform_pandas,
        check_transformer_get_feature_names_out,
        check_transformer_get_feature_names_out_pandas,
    ],
)
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
@pytest.mark.filterwarnings("ignore:X (does not have valid|has) feature names")  # the checks themselves mix frames and arrays
def test_checks_that_parametrize_with_checks_leaves_out(estimator: PCA, check: Any) -> None:
    check("PCA", clone(estimator))


def data(n: int = 60, d: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) @ rng.standard_normal((d, d)) + 3


def test_in_a_pipeline() -> None:
    X = data()
    pipeline = make_pipeline(StandardScaler(), PCA(n_components=2), LinearRegression())
    assert pipeline.fit(X, X[:, 0]).predict(X).shape == (60,)
    scores = Pipeline([("pca", PCA(n_components=2))]).fit_transform(X)
    np.testing.assert_array_equal(scores, PCA(n_components=2).fit(X).transform(X))


def test_clone_takes_the_parameters_only() -> None:
    fitted = PCA(n_components=2, whiten=True, standardize=True, precision="float64", memory="1GiB", random_state=3).fit(data())
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        copy.transform(data())


def test_set_output_pandas_and_names() -> None:
    frame = pd.DataFrame(data(), columns=list("abcde"), index=np.arange(100, 160))
    pca = PCA(n_components=3).set_output(transform="pandas")
    scores = pca.fit_transform(frame)
    assert list(scores.columns) == ["pca0", "pca1", "pca2"] == list(pca.get_feature_names_out())
    assert list(scores.index) == list(frame.index)
    np.testing.assert_array_equal(scores.to_numpy(), PCA(n_components=3).fit(frame.to_numpy()).transform(frame.to_numpy()))


def test_names_of_a_data_frame() -> None:
    frame = pd.DataFrame(data(), columns=list("abcde"))
    pca = PCA().fit(frame)
    assert list(pca.feature_names_in_) == list("abcde")
    with pytest.raises(ValueError, match="feature names should match"):
        pca.transform(frame[list("edcba")])
    with pytest.raises(ValueError, match=r"(?s)feature names should match.*- z"):
        pca.partial_fit(frame.rename(columns={"a": "z"}))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        pca.transform(frame.to_numpy())
    assert not hasattr(pca.fit(frame.to_numpy()), "feature_names_in_")


def test_grid_search_over_the_number_of_components() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 2)) @ (3 * rng.standard_normal((2, 6))) + 0.1 * rng.standard_normal((300, 6))
    search = GridSearchCV(PCA(), {"n_components": [1, 2, 3, 5]}, cv=3).fit(X)
    assert search.best_params_ == {"n_components": 2}
    assert search.best_score_ == pytest.approx(cross_val_score(PCA(n_components=2), X, cv=3).mean())


def test_a_pickled_fit_is_the_same_and_goes_on() -> None:
    X = data()
    pca = PCA(n_components=2).fit(X[:40])
    copy = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(copy.transform(X), pca.transform(X))
    np.testing.assert_array_equal(copy.partial_fit(X[40:]).components_, pca.partial_fit(X[40:]).components_)


def test_a_fit_that_failed_or_has_one_row_is_no_fit() -> None:
    pca = PCA(n_components=9)
    with pytest.raises(ValueError, match="n_components=9"):
        pca.fit(data())
    for each in (pca, PCA().partial_fit(data()[:1])):
        with pytest.raises(NotFittedError):
            each.transform(data())
        with pytest.raises(NotFittedError):
            each.save("nowhere.zarr")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, "n_components=0 must be between 1 and"),
        ({"n_components": -1}, "n_components=-1 must be between 1 and"),
        ({"n_components": 6}, "n_components=6 must be between 1 and"),
        ({"n_components": 1.5}, r"n_components=1.5 is not a fraction of variance in \(0, 1\)"),
        ({"n_components": 0.0}, r"n_components=0.0 is not a fraction"),
        ({"n_components": 1.0}, r"n_components=1.0 is not a fraction"),
        ({"n_components": float("nan")}, "n_components=nan is not a fraction"),
        ({"n_components": True}, "not True"),
        ({"n_components": "ten"}, "not 'ten'"),
        ({"n_components": [2]}, "n_components must be a number or None, not list"),
        ({"solver": "covarianse"}, "unknown solver 'covarianse'.*Did you mean 'covariance'"),
        ({"precision": "float16"}, "precision must be 'auto', 'float32' or 'float64', not 'float16'"),
        ({"whiten": "no"}, "whiten must be true or false, not 'no'"),
        ({"standardize": 2}, "standardize must be true or false, not 2"),
        ({"memory": "lots"}, "cannot read 'lots' as a memory size"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_wrong_parameters_are_refused(method: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(PCA(**params), method)(data())


def test_numpy_numbers_are_numbers() -> None:
    X = data()
    two: Any = np.int64(2)
    assert PCA(n_components=two).fit(X).n_components_ == 2
    for half in (np.float64(0.5), np.float32(0.5)):
        params: dict[str, Any] = {"n_components": half, "whiten": np.True_}
        assert PCA(**params).fit(X).n_components_ == PCA(n_components=0.5).fit(X).n_components_
