"""scikit-learn's checks of ProbabilisticPCA and FactorAnalysis."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_get_feature_names_out_error,
    check_set_output_transform,
    check_set_output_transform_pandas,
    check_transformer_get_feature_names_out,
    check_transformer_get_feature_names_out_pandas,
    parametrize_with_checks,
)

from streampca import FactorAnalysis, ProbabilisticPCA

ESTIMATORS = [
    ProbabilisticPCA(n_components=1),
    ProbabilisticPCA(n_components=1, method="em"),
    ProbabilisticPCA(n_components=1, method="closed-form"),
    FactorAnalysis(n_components=1),
    FactorAnalysis(n_components=1, rotation="varimax"),
]


def expected_failures(estimator: Any) -> dict[str, str]:
    """Rows with NaN can be transformed even by a model that was fitted to complete rows only."""
    refuses = getattr(estimator, "method", "auto") == "closed-form"
    return {"check_estimators_nan_inf": "NaN is a missing entry in transform"} if refuses else {}


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
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
def test_checks_that_parametrize_with_checks_leaves_out(estimator: Any, check: Any) -> None:
    check(type(estimator).__name__, clone(estimator))
