"""What follows from a fitted model with latent variables: posteriors, imputation, likelihoods, criteria, lazily for lazy rows."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Scheduler, choose_scheduler
from streampca.errors import DataError
from streampca.estimators import latent_blocks as blocks
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.estimators.rows import mapped, write_rows
from streampca.estimators.updatable import UpdatableTransformer, restored
from streampca.events import Observer
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats, scores_dtype
from streampca.planning import limits_of
from streampca.planning.latent import transform_bytes
from streampca.sinks import Unfinished
from streampca.sources import open_array
from streampca.sources.base import Array
from streampca.statistics import Scatter


class LatentTransformer(UpdatableTransformer):
    """A fitted model x = W z + mean + noise, however it was fitted."""

    _model: LatentModel
    _state: Scatter | None
    noise_variance_: Any
    missing: float | None
    random_state: int | None

    @abstractmethod
    def _adopt_components(self, model: LatentModel) -> None:
        """Set the fitted attributes that only one of the two kinds has."""

    def _adopt(self, model: LatentModel, state: Scatter | None) -> None:
        """Set the fitted attributes."""
        self._model, self._state = model, state
        self.W_, self.mean_, self.noise_variance_ = model.W, model.mean, model.noise
        self.loglike_, self.n_iter_, self.converged_ = model.loglike, max(model.n_iter, 1), model.converged
        self.n_samples_, self.n_skipped_ = cast("int", model.n_samples), model.n_skipped
        self.n_components_, self.n_features_in_ = model.n_components, model.n_features
        self._adopt_components(model)

    # ----------------------------------------------------------------------------------------------- rows and scores

    def posterior(self, X: Any) -> tuple[Any, Any]:
        """Return mean and covariance of z given the observed entries of each row (lazily if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.

        Returns
        -------
        means : (n_samples, n_components), covariances : (n_samples, n_components, n_components)
            Rows without missing entries all have the same covariance.
        """
        means = mapped(self, partial(blocks.means, self._fitted, self.missing), X, self._n_features_out)
        if not is_lazy(X):
            return means, blocks.covariances(self._fitted, self.missing, self._checked(X))
        rows, r = self._lazy(X), self._n_features_out
        function = partial(blocks.covariances, self._fitted, self.missing)
        chunks = (rows.chunks[0], (r,), (r,))
        return means, rows.map_blocks(function, dtype=np.float64, chunks=chunks, new_axis=2, meta=np.empty((0, 0, 0)))

    def inverse_transform(self, X: Any) -> Any:
        """Return the mean of rows given scores, ``W z + mean`` (lazily if X is lazy).

        From the posterior means of ``transform`` it gives rows that are drawn towards the mean, as the noise has it;
        ``reconstruct`` undoes that.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores.
        """
        return self._from_scores(self._fitted.inverse_transform, X)

    def reconstruct(self, X: Any) -> Any:
        """Return the rows nearest to those whose ``transform`` is given: ``W (W^T W)^-1 M z + mean`` (lazily if X is lazy).

        With probabilistic PCA it is the orthogonal projection of complete rows; with factor analysis distances are weighted by the
        inverse noise.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores, as ``transform`` gives them.
        """
        return self._from_scores(self._fitted.reconstruct, X)

    def impute(self, X: Any, *, return_variance: bool = False) -> Any:
        """Return the rows with each missing entry replaced by its mean given the observed ones (lazily if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        return_variance : bool
            Return also the variance of each missing entry (0 where an entry is observed).
        """
        function = partial(blocks.filled, self._fitted, self.missing)
        filled = mapped(self, function, X, self.n_features_in_)
        if not return_variance:
            return filled
        return filled, mapped(self, partial(blocks.variances, self._fitted, self.missing), X, self.n_features_in_, np.dtype(np.float64))

    def impute_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """Stream the rows, with missing entries filled, to a ``.zarr``, ``.h5`` or ``.npy`` file, which appears when it is complete.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        path : str or Path
            Where to write; the suffix chooses the format.
        overwrite : bool
            Replace an existing output.
        scheduler, observer : optional
            Where to run, and whom to tell; by default as in ``fit``, and nobody.
        unfinished : Unfinished, optional
            Where to keep what is written if the run is interrupted, to go on with later.
        """
        check_is_fitted(self)
        source = self._open(X, reset=False)
        scheduler = scheduler or choose_scheduler()
        limits = limits_of(self.memory, scheduler)
        limits = replace(limits, baseline=limits.baseline + self._transform_bytes(limits.workers))
        function = partial(blocks.filled, self._fitted, self.missing)
        write_rows("imputed", function, source, path, limits, scheduler, observer, overwrite=overwrite, unfinished=unfinished)

    def sample(self, n_samples: int = 1, *, random_state: int | None = None) -> Floats:
        """Return random rows of the model.

        Parameters
        ----------
        n_samples : int
            How many.
        random_state : int, optional
            A seed; by default that of the estimator, if it has one.
        """
        return self._fitted.sample(n_samples, self.random_state if random_state is None else random_state)

    # -------------------------------------------------------------------------------------------------- likelihoods

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of the observed entries of each row (lazily if X is lazy); 0 where there are none.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        """
        return mapped(self, partial(blocks.log_likelihoods, self._fitted, self.missing), X, None, np.dtype(np.float64))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        y : ignored
        """
        return _number(self.score_samples(X).mean())

    def bic(self, X: Any = None) -> float:
        """Return the Bayesian information criterion (smaller is better): of the rows of the fit, or of others.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path, optional
            Samples in rows.
        """
        if X is None:
            return self._fitted.bic()
        likelihoods = self.score_samples(X)
        return self._fitted.bic(_number(likelihoods.sum()), len(likelihoods))

    def aic(self, X: Any = None) -> float:
        """Return Akaike's information criterion (smaller is better): of the rows of the fit, or of others.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path, optional
            Samples in rows.
        """
        return self._fitted.aic() if X is None else self._fitted.aic(_number(self.score_samples(X).sum()))

    def get_covariance(self) -> Floats:
        """Return the d x d covariance of the model."""
        return self._fitted.covariance()

    def get_precision(self) -> Floats:
        """Return the inverse of the model's covariance."""
        return self._fitted.precision()

    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values."""
        model = self._fitted
        shares = np.einsum("ij,ij->j", model.W, model.W)
        shares = shares / max(float(shares.sum() + model.noise_variances.sum()), np.finfo(float).tiny)
        return {
            "variance_kept": float(shares.sum()),
            "explained_variance_ratio": shares[:20].tolist(),
            "noise_variance": float(model.noise_variances.mean()),
            "log_likelihood": float(model.loglike[-1]),
            "iterations": int(model.n_iter),
            "converged": bool(model.converged),
            "missing_entries": self.solver_ == "em-missing",
            "rows_without_entries": model.n_skipped,
            "can_be_updated": self.can_be_updated,
        }

    # ------------------------------------------------------------------------------------------------------- inside

    @property
    def _fitted(self) -> LatentModel:
        check_is_fitted(self)
        return self._model

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model."""
        return hasattr(self, "_model")

    def __sklearn_tags__(self) -> Tags:
        """Return scikit-learn's tags: NaN is allowed (but by ``method="closed-form"`` only after the fit)."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = getattr(self, "method", "auto") != "closed-form"
        return tags

    def _transform_block(self, block: Array) -> Array:
        return blocks.means(self._fitted, self.missing, block)

    def _transform_bytes(self, workers: int) -> int:
        return transform_bytes(self.n_features_in_, self._n_features_out, workers)

    @property
    def _n_features_out(self) -> int:
        return self._fitted.n_components

    def _stored(self) -> dict[str, Array]:
        return {f"model/{name}": array for name, array in self._fitted.to_arrays().items()} | self._stored_state()

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        fitted = LatentModel.from_arrays(model)
        self._adopt(fitted, restored(Scatter, state, fitted.n_features, fitted.n_samples))

    def _lazy(self, X: Any) -> Any:
        """Return a lazy input as a Dask array of whole rows, after checking its columns."""
        rows: Any = X if is_dask_array(X) else as_source(X)
        self._check_columns(rows)
        return (rows if is_dask_array(X) else open_array(rows)).rechunk({1: -1})

    def _from_scores(self, function: Callable[[Array], Array], X: Any) -> Any:
        scores = (X if is_dask_array(X) else open_array(X)) if is_lazy(X) else np.asarray(X)
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise DataError(f"scores of shape {scores.shape} do not have the {self.n_components_} columns of this model")
        return map_lazily(function, scores, self.n_features_in_, scores_dtype(scores.dtype)) if is_lazy(X) else function(scores)


def _number(value: Any) -> float:
    return float(value.compute() if hasattr(value, "compute") else value)
