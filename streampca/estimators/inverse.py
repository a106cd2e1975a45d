"""From scores back to rows: the checks and the laziness that all estimators with an inverse share."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from streampca.errors import DataError
from streampca.estimators.lazy import is_dask_array, is_lazy, map_lazily, unlabelled
from streampca.models.pca import scores_dtype
from streampca.sources import open_array
from streampca.sources.base import Array


class Invertible(Protocol):
    """A model whose scores stand for rows."""

    @property
    def n_components(self) -> int:
        """Number of columns of the scores."""

    @property
    def n_features(self) -> int:
        """Number of columns of the rows."""

    def inverse_transform(self, scores: Array) -> Array:
        """Return the rows of scores."""


def rows_of_scores(X: Any, model: Invertible) -> Any:
    """Return the rows that scores stand for, lazily if they are lazy."""
    X = unlabelled(X)
    scores = (X if is_dask_array(X) else open_array(X)) if is_lazy(X) else np.asarray(X)
    if scores.ndim != 2 or scores.shape[1] != model.n_components:
        raise DataError(f"scores of shape {scores.shape} do not have the {model.n_components} columns of this model")
    if is_lazy(X):
        return map_lazily(model.inverse_transform, scores, model.n_features, scores_dtype(scores.dtype))
    return model.inverse_transform(scores)
