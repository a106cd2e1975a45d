"""A fitted PCA as scikit-learn's own, for code that asks for that class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.decomposition import PCA as SklearnPCA  # noqa: N811 - ours has the same name

from streampca.errors import UsageError


def as_sklearn_pca(fitted: Any) -> SklearnPCA:
    """Return a fitted ``sklearn.decomposition.PCA`` with the same components, which gives the same scores.

    Parameters
    ----------
    fitted : streampca.PCA
        A fit without ``standardize``, which scikit-learn's PCA does not know.

    Examples
    --------
    >>> import streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(30, 4))
    >>> model = sp.PCA(2).fit(X)
    >>> bool(np.allclose(as_sklearn_pca(model).transform(X), model.transform(X)))
    True
    """
    if (fitted.scale_ != 1).any():
        raise UsageError(
            "scikit-learn's PCA does not divide columns by their standard deviation: fit without standardize, "
            "or put a StandardScaler with mean_ and scale_ of this model before a PCA without it"
        )
    plain = SklearnPCA(n_components=fitted.n_components_, whiten=bool(fitted.whiten), svd_solver="full")
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        setattr(plain, name, np.array(getattr(fitted, name)))
    plain.noise_variance_ = float(fitted.noise_variance_)
    plain.n_components_, plain.n_samples_, plain.n_features_in_ = fitted.n_components_, fitted.n_samples_, fitted.n_features_in_
    if hasattr(fitted, "feature_names_in_"):
        plain.feature_names_in_ = fitted.feature_names_in_.copy()
    plain._fit_svd_solver = "full"
    return plain
