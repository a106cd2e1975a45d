"""What probabilistic PCA and factor analysis have in common: missing entries, the choice of the path, all that follows from the model."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler, choose_scheduler, map_rows
from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.estimators.base import StreamingTransformer
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.events import Observer
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats, scores_dtype
from streampca.planning import Plan, check_shape, limits_of
from streampca.planning.latent import LatentRequest, float_data, holds_missing, plan_latent, plan_missing, transform_bytes
from streampca.planning.scores import plan_scores
from streampca.sinks import open_sink
from streampca.solvers import ppca
from streampca.sources import open_array
from streampca.sources.base import Array, Source
from streampca.sources.missing_view import Blanked, Masked, blanked, float_dtype, masked
from streampca.sources.views import Columns
from streampca.statistics.missing import ObservedMoments


class LatentEstimator(StreamingTransformer):
    """A model x = W z + mean + noise, fitted by maximum likelihood, with missing entries or without."""

    per_feature_noise: ClassVar[bool]
    _model: LatentModel
    noise_variance_: Any
    n_components: int | None
    max_iter: int
    tol: float
    missing: float | None
    unobserved: Literal["error", "drop"]
    random_state: int | None

    # ----------------------------------------------------------------------------------------------------- the fit

    @abstractmethod
    def _fit_complete(self, engine: Engine, plan: Plan) -> LatentModel:
        """Fit to rows without missing entries; raise ``NonFiniteError`` at the first NaN."""

    def _how(self) -> str:
        """Return which way is asked for: auto, closed-form or em."""
        return "auto"

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None, mask: Any = None) -> Self:
        """Fit to all rows of X.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows; NaN is a missing entry. A path may be a glob, and may name a dataset: ``runs/*.h5::X``.
        y : ignored
        sample_weight : array-like, Dask array, Source, or path, optional
            How often each row counts, a number of at least 0; ``"::w"`` names a dataset in the file of X.
        mask : array-like, Dask array, Source, or path, optional
            A table of the shape of X, true where an entry is missing. ``streampca.masked`` makes one source of both, for other methods.
        """
        source = self._open(X, reset=True, weights=sample_weight)
        return self.fit_source(source if mask is None else masked(source, mask))

    def plan_for(self, source: Source, *, scheduler: Scheduler | None = None, scores: bool = False) -> Plan:
        """Return what a fit to a source would do, without reading it.

        Parameters
        ----------
        source : Source
            The rows.
        scheduler : Scheduler, optional
            Where it would run.
        scores : bool
            Whether the scores are to be written as well (one more pass).
        """
        seen = self._seen(source)
        return plan_latent(seen.info, self._request(seen), limits_of(self.memory, scheduler), scores=scores)

    def _request(self, source: Source) -> LatentRequest:
        """Return what is asked for, or say what is wrong with it."""
        max_iter: Any = self.max_iter
        if isinstance(max_iter, bool) or not isinstance(max_iter, (int, np.integer)) or max_iter < 1:
            raise UsageError(f"max_iter must be an integer of 1 or more, not {max_iter!r}")
        if isinstance(self.tol, (bool, str)) or not 0 <= self.tol < 1:
            raise UsageError(f"tol must be between 0 and 1 (a relative gain in log-likelihood), not {self.tol!r}")
        if self.unobserved not in ("error", "drop"):
            raise UsageError(f"unobserved must be 'error' or 'drop', not {self.unobserved!r}")
        info, n_components = source.info, self.n_components
        if n_components is not None and (isinstance(n_components, bool) or not isinstance(n_components, (int, np.integer))):
            raise UsageError(f"n_components must be None or an integer of 1 or more, not {n_components!r}")
        check_shape(info, None if n_components is None else int(n_components))
        r = max(min(info.n_rows, info.n_features) - 1, 1) if n_components is None else int(n_components)
        return LatentRequest(self.kind, r, self._how(), int(self.max_iter), float_data(info))

    def _seen(self, source: Source) -> Source:
        """Return the source with the value that stands for missing entries, if there is one, shown as NaN."""
        seen = source if self.missing is None or _is_nan(self.missing) else Blanked(source, self.missing)
        if self.unobserved == "drop":  # so that a plan counts what the choice of columns needs
            return Columns(seen, tuple(range(seen.info.n_features)))
        return seen

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        engine = engine.over(self._seen(engine.source), engine.partition)
        hole: NonFiniteError | None = None
        try:
            model = self._fit_complete(engine, plan)
        except NonFiniteError as error:
            if not error.is_nan:
                raise
            hole = error.with_traceback(None)  # which would keep the sums of the pass alive
        self.solver_ = plan.solver
        if hole is not None:
            model = self._fit_missing(engine, plan, hole)
            self.solver_ = "em-missing"
        if not model.converged:
            self._warn(model)
        self._adopt(self._finished(model))

    def _finished(self, model: LatentModel) -> LatentModel:
        """Return what is made of the model once it is fitted."""
        return model

    def _fit_missing(self, engine: Engine, plan: Plan, hole: NonFiniteError) -> LatentModel:
        """Fit by EM, one pass per iteration; ``hole`` is the first missing entry."""
        if self._how() == "closed-form":
            place = f"row {hole.row}, column {hole.column}" + (f" ({hole.name!r})" if hole.name else "")
            raise DataError(f"method='closed-form' needs complete rows, but {place} is NaN: use method='em' or 'auto'")
        source = engine.source
        if not holds_missing(plan):  # this refuses the budget, and says what it would take
            again = plan_missing(source.info, self._request(source), limits_of(self.memory, engine.scheduler))
            engine = engine.over(source, again.partition(source.info))
        d, names = source.info.n_features, source.info.feature_names
        moments = engine.run("moments", ObservedMoments(d))
        observed = moments.counts > 0
        if observed.all() or self.unobserved == "error" or not observed.any():
            return self._em_missing(engine, d, plan, moments, names)
        kept = {name: array[observed] for name, array in moments.to_arrays().items()}
        narrow = Columns(source, tuple(np.flatnonzero(observed).tolist()))
        model = self._em_missing(engine.over(narrow, engine.partition), len(kept["counts"]), plan, ObservedMoments.from_arrays(kept), None)
        return _widened(model, observed)

    def _em_missing(
        self, engine: Engine, n_features: int, plan: Plan, moments: ObservedMoments, names: tuple[str, ...] | None
    ) -> LatentModel:
        return ppca.em_missing(
            engine.run,
            n_features,
            min(cast("int", plan.n_components), n_features),
            per_feature_noise=self.per_feature_noise,
            tol=self.tol,
            max_iter=int(self.max_iter),
            seed=self._seed,
            names=names,
            moments=moments,
        )

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else self.random_state

    def _warn(self, model: LatentModel) -> None:
        warnings.warn(
            f"after {model.n_iter} iterations (max_iter={self.max_iter}) the log-likelihood still gains more than tol={self.tol:g} of "
            "itself in one: allow more iterations, or a larger tol",
            ConvergenceWarning,
            stacklevel=2,
        )

    @abstractmethod
    def _adopt_components(self, model: LatentModel) -> None:
        """Set the fitted attributes that only one of the two kinds has."""

    def _adopt(self, model: LatentModel) -> None:
        """Set the fitted attributes."""
        self._model = model
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
        means = self._mapped(partial(_means, self._fitted, self.missing), X, self._n_features_out)
        if not is_lazy(X):
            return means, _covariances(self._fitted, self.missing, self._checked(X))
        rows, r = self._lazy(X), self._n_features_out
        function = partial(_covariances, self._fitted, self.missing)
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
        function = partial(_filled, self._fitted, self.missing)
        filled = self._mapped(function, X, self.n_features_in_)
        if not return_variance:
            return filled
        return filled, self._mapped(partial(_variances, self._fitted, self.missing), X, self.n_features_in_, np.dtype(np.float64))

    def impute_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
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
        """
        check_is_fitted(self)
        source = self._open(X, reset=False)
        info, d = source.info, self.n_features_in_
        scheduler = scheduler or choose_scheduler()
        limits = limits_of(self.memory, scheduler)
        baseline = limits.baseline + self._transform_bytes(limits.workers)
        plan = plan_scores(info, d, budget=limits.budget, workers=limits.workers, baseline=baseline)
        names = None if info.feature_names is None else list(info.feature_names)
        rows = plan.partition.block_rows
        sink = open_sink(path, info.n_rows, d, scores_dtype(info.dtype), chunk_rows=rows, feature_names=names, overwrite=overwrite)
        function = partial(_filled, self._fitted, self.missing)
        with sink as out:
            work = function, out.write, source, plan.partition, scheduler.limited_to(plan.workers), observer or Observer()
            map_rows("imputed", *work, anywhere=out.parallel)

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
        return self._mapped(partial(_log_likelihoods, self._fitted, self.missing), X, None, np.dtype(np.float64))

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
        return _means(self._fitted, self.missing, block)

    def _transform_bytes(self, workers: int) -> int:
        return transform_bytes(self.n_features_in_, self._n_features_out, workers)

    @property
    def _n_features_out(self) -> int:
        return self._fitted.n_components

    def _stored(self) -> dict[str, Array]:
        return {f"model/{name}": array for name, array in self._fitted.to_arrays().items()}

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        self._adopt(LatentModel.from_arrays(model))

    def _lazy(self, X: Any) -> Any:
        """Return a lazy input as a Dask array of whole rows, after checking its columns."""
        rows: Any = X if is_dask_array(X) else as_source(X)
        self._check_columns(rows)
        return (rows if is_dask_array(X) else open_array(rows)).rechunk({1: -1})

    def _mapped(self, function: Callable[[Array], Array], X: Any, n_columns: int | None, dtype: np.dtype[Any] | None = None) -> Any:
        """Return a function of blocks of rows, lazily if X is lazy; by default of the dtype of scores."""
        check_is_fitted(self)
        if not is_lazy(X):
            return function(self._checked(X))
        rows = self._lazy(X)
        return map_lazily(function, rows, n_columns, scores_dtype(np.dtype(rows.dtype)) if dtype is None else dtype)

    def _from_scores(self, function: Callable[[Array], Array], X: Any) -> Any:
        scores = (X if is_dask_array(X) else open_array(X)) if is_lazy(X) else np.asarray(X)
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise DataError(f"scores of shape {scores.shape} do not have the {self.n_components_} columns of this model")
        return map_lazily(function, scores, self.n_features_in_, scores_dtype(scores.dtype)) if is_lazy(X) else function(scores)


# What is computed of a block of rows: functions of a model and its marker of missing entries, so that a cluster gets no more than these.


def _with_nan(block: Array, missing: float | None) -> Array:
    return block if missing is None or _is_nan(missing) else blanked(block, missing)


def _means(model: LatentModel, missing: float | None, block: Array) -> Array:
    return model.transform(_with_nan(block, missing)).astype(scores_dtype(block.dtype), copy=False)


def _covariances(model: LatentModel, missing: float | None, block: Array) -> Floats:
    covariances = model.posterior(_with_nan(block, missing))[1]
    return np.broadcast_to(covariances, (len(block), model.n_components, model.n_components))


def _filled(model: LatentModel, missing: float | None, block: Array) -> Array:
    rows = _with_nan(block, missing)
    return model.impute(rows.astype(float_dtype(rows.dtype), copy=False)).astype(scores_dtype(block.dtype), copy=False)


def _variances(model: LatentModel, missing: float | None, block: Array) -> Floats:
    return model.impute(_with_nan(block, missing), return_variance=True)[1]


def _log_likelihoods(model: LatentModel, missing: float | None, block: Array) -> Floats:
    return model.score_samples(_with_nan(block, missing))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _number(value: Any) -> float:
    return float(value.compute() if hasattr(value, "compute") else value)


def _widened(model: LatentModel, observed: Array) -> LatentModel:
    """Return the model with the columns that have no values: no loadings, a mean of NaN, the mean noise."""
    W, mean = np.zeros((len(observed), model.n_components)), np.full(len(observed), np.nan)
    W[observed], mean[observed] = model.W, model.mean
    noise = model.noise
    if not model.isotropic:
        noise = np.full(len(observed), float(np.mean(model.noise)))
        noise[observed] = model.noise
    return replace(model, W=W, mean=mean, noise=noise)


__all__ = ["LatentEstimator", "Masked", "masked"]
