"""What is computed of a block of rows by a model with latent variables: functions of the model and its marker of missing entries.

A cluster gets no more than these.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streampca.models.latent import LatentModel
from streampca.models.pca import Floats, scores_dtype
from streampca.sources.base import Array
from streampca.sources.missing_view import blanked, float_dtype


def is_nan(value: Any) -> bool:
    """Return whether a marker of missing entries is NaN itself."""
    return isinstance(value, float) and value != value


def means(model: LatentModel, missing: float | None, block: Array) -> Array:
    """Return the posterior means of the rows."""
    return model.transform(_with_nan(block, missing)).astype(scores_dtype(block.dtype), copy=False)


def covariances(model: LatentModel, missing: float | None, block: Array) -> Floats:
    """Return the posterior covariance of each row."""
    found = model.posterior(_with_nan(block, missing))[1]
    return np.broadcast_to(found, (len(block), model.n_components, model.n_components))


def filled(model: LatentModel, missing: float | None, block: Array) -> Array:
    """Return the rows with their missing entries filled."""
    rows = _with_nan(block, missing)
    return model.impute(rows.astype(float_dtype(rows.dtype), copy=False)).astype(scores_dtype(block.dtype), copy=False)


def variances(model: LatentModel, missing: float | None, block: Array) -> Floats:
    """Return the variance of each missing entry, 0 for the others."""
    return model.impute(_with_nan(block, missing), return_variance=True)[1]


def log_likelihoods(model: LatentModel, missing: float | None, block: Array) -> Floats:
    """Return the log-likelihood of each row."""
    return model.score_samples(_with_nan(block, missing))


def _with_nan(block: Array, missing: float | None) -> Array:
    return block if missing is None or is_nan(missing) else blanked(block, missing)
