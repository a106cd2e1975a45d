"""What all estimators share: checks of inputs, streaming transforms to files, saving and loading."""

from __future__ import annotations

import os
from abc import ABCMeta, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.engine import Scheduler, choose_scheduler, map_rows
from streampca.errors import DataError, UsageError
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.events import Observer
from streampca.models.pca import scores_dtype
from streampca.planning import budget_of, process_baseline
from streampca.planning.scores import plan_scores
from streampca.sinks import open_sink
from streampca.sources import open_source
from streampca.sources.base import Array, Source, SourceInfo


class StreamingTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, metaclass=ABCMeta):
    """A scikit-learn transformer that also takes paths, sources and Dask arrays, and streams them."""

    kind: ClassVar[str]  # the name under which fitted models are stored
    memory: str | int | None
    n_features_in_: int

    @abstractmethod
    def _transform_block(self, block: Array) -> Array:
        """Return the scores of a block of rows."""

    @property
    @abstractmethod
    def _n_features_out(self) -> int:
        """Number of columns of the scores."""

    def transform(self, X: Any) -> Any:
        """Return the scores of X.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Rows to project.

        Returns
        -------
        ndarray of shape (n_samples, n_components), or a lazy Dask array of that shape if X is lazy
        """
        check_is_fitted(self)
        if not is_lazy(X):
            return self._transform_block(self._checked(X))
        X = X if is_dask_array(X) else as_source(X)
        self._check_columns(X)
        dtype = scores_dtype(np.dtype(X.dtype if is_dask_array(X) else X.info.dtype))
        return map_lazily(self._transform_block, X, self._n_features_out, dtype)

    def transform_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
    ) -> None:
        """Stream the scores of X to a ``.zarr``, ``.h5`` or ``.npy`` file, which appears when it is complete.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Rows to project.
        path : str or Path
            Where to write; the suffix chooses the format.
        overwrite : bool
            Replace an existing output.
        scheduler, observer : optional
            Where to run, and whom to tell; by default as in ``fit``, and nobody.
        """
        check_is_fitted(self)
        source = self._open(X, reset=False)
        info, k = source.info, self._n_features_out
        scheduler = scheduler or choose_scheduler()
        plan = plan_scores(info, k, budget=budget_of(self.memory, scheduler), workers=scheduler.workers, baseline=process_baseline())
        scheduler = scheduler.limited_to(plan.workers)
        names = list(self.get_feature_names_out())
        sink = open_sink(
            path, info.n_rows, k, scores_dtype(info.dtype), chunk_rows=plan.partition.block_rows, feature_names=names, overwrite=overwrite
        )
        with sink as out:
            map_rows(
                "scores", self._transform_block, out.write, source, plan.partition, scheduler, observer or Observer(), anywhere=out.parallel
            )

    def _open(self, X: Any, *, reset: bool) -> Source:
        """Return X as a source; ``reset`` takes over its width and names, else they must be those of the fit."""
        if not is_lazy(X):
            return open_source(self._checked(X, reset=reset), feature_names=getattr(self, "feature_names_in_", None))
        source = as_source(X)
        if reset:
            self._adopt_columns(source.info)
        else:
            self._check_columns(source)
        return source

    def _checked(self, X: Any, *, reset: bool = False) -> Array:
        """Check an array in memory as scikit-learn does, but keep its dtype and leave NaN to the statistics."""
        checked: Array = validate_data(self, X, reset=reset, dtype="numeric", ensure_all_finite=False)
        return checked

    def _adopt_columns(self, info: SourceInfo) -> None:
        self.n_features_in_ = info.n_features
        if info.feature_names is not None:
            self.feature_names_in_ = np.array(info.feature_names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _check_columns(self, X: Any) -> None:
        width = X.shape[1] if is_dask_array(X) else X.info.n_features
        if width != self.n_features_in_:
            raise DataError(f"X has {width} features, but {type(self).__name__} is expecting {self.n_features_in_} features as input")
        names = None if is_dask_array(X) else X.info.feature_names
        fitted = getattr(self, "feature_names_in_", None)
        if names is None or fitted is None:
            return
        for index, (theirs, ours) in enumerate(zip(names, fitted, strict=True)):
            if theirs != ours:
                raise DataError(f"column {index} of {X.info.description} is {theirs!r}, but {ours!r} was there when the model was fitted")

    @abstractmethod
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Store the fitted model."""

    @classmethod
    @abstractmethod
    def _load(cls, path: str | os.PathLike[str]) -> Self:
        """Return a stored model."""


def as_component_count(n_components: Any) -> int | float | None:
    """Return the number of components as a Python number, or refuse it."""
    if n_components is None or isinstance(n_components, (bool, str)):
        if n_components is None:
            return None
        raise UsageError(f"n_components must be None, an integer of 1 or more, or a fraction of variance in (0, 1), not {n_components!r}")
    if isinstance(n_components, np.generic):
        n_components = n_components.item()
    if not isinstance(n_components, (int, float)):
        raise UsageError(f"n_components must be a number or None, not {type(n_components).__name__}")
    return n_components
