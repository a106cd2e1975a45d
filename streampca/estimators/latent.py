"""What probabilistic PCA and factor analysis have in common: missing entries, the choice of the path, sums that rows are added to."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streampca.engine import Engine, Scheduler
from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.estimators.latent_blocks import is_nan
from streampca.estimators.latent_rows import LatentTransformer
from streampca.models.latent import LatentModel
from streampca.planning import Plan, check_shape, limits_of, plan_pca
from streampca.planning.latent import LatentRequest, float_data, holds_missing, plan_latent, plan_missing
from streampca.solvers.likelihood import Parameters, Run
from streampca.solvers.ppca_missing import em_missing
from streampca.sources.base import Array, Source
from streampca.sources.missing_view import Blanked, masked
from streampca.sources.views import Columns
from streampca.statistics import Scatter
from streampca.statistics.observed import ObservedMoments


class LatentEstimator(LatentTransformer):
    """A model x = W z + mean + noise, fitted by maximum likelihood, with missing entries or without."""

    kept_by: ClassVar[str] = "complete rows, and memory for their d x d covariance"
    per_feature_noise: ClassVar[bool]
    n_components: int | None
    max_iter: int
    tol: float
    unobserved: Literal["error", "drop"]
    warm_start: bool | str | os.PathLike[str]

    @abstractmethod
    def _fit_complete(self, engine: Engine, plan: Plan) -> tuple[LatentModel, Scatter | None]:
        """Fit to rows without missing entries, and return what was accumulated if that tells all; raise ``NonFiniteError`` at a NaN."""

    @abstractmethod
    def _model_of(self, scatter: Scatter, r: int) -> LatentModel:
        """Return the model of r components that follows from sums of products."""

    @property
    @abstractmethod
    def _by_matrix(self) -> str:
        """The solver that does so."""

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
        info, n_components = source.info, self._checked_count()
        check_shape(info, n_components)
        r = max(min(info.n_rows, info.n_features) - 1, 1) if n_components is None else n_components
        return LatentRequest(self.kind, r, self._how(), int(self.max_iter), float_data(info))

    def _checked_count(self) -> int | None:
        """Return the number of components that is asked for, after a look at all parameters."""
        max_iter: Any = self.max_iter
        if isinstance(max_iter, bool) or not isinstance(max_iter, (int, np.integer)) or max_iter < 1:
            raise UsageError(f"max_iter must be an integer of 1 or more, not {max_iter!r}")
        if isinstance(self.tol, (bool, str)) or not 0 <= self.tol < 1:
            raise UsageError(f"tol must be between 0 and 1 (a relative gain in log-likelihood), not {self.tol!r}")
        if self.unobserved not in ("error", "drop"):
            raise UsageError(f"unobserved must be 'error' or 'drop', not {self.unobserved!r}")
        if not isinstance(self.warm_start, (bool, np.bool_, str, os.PathLike)):
            raise UsageError(f"warm_start must be true, false, or the path of a stored model, not {self.warm_start!r}")
        n_components = self.n_components
        if n_components is not None and (isinstance(n_components, bool) or not isinstance(n_components, (int, np.integer))):
            raise UsageError(f"n_components must be None or an integer of 1 or more, not {n_components!r}")
        return None if n_components is None else int(n_components)

    def _seen(self, source: Source) -> Source:
        """Return the source with the value that stands for missing entries, if there is one, shown as NaN."""
        seen = source if self.missing is None or is_nan(self.missing) else Blanked(source, self.missing)
        if self.unobserved == "drop":  # so that a plan counts what the choice of columns needs
            return Columns(seen, tuple(range(seen.info.n_features)))
        return seen

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        engine = engine.over(self._seen(engine.source), engine.partition)
        hole: NonFiniteError | None = None
        try:
            model, state = self._fit_complete(engine, plan)
        except NonFiniteError as error:
            if not error.is_nan:
                raise
            hole = error.with_traceback(None)  # which would keep the sums of the pass alive
        solver = plan.solver
        if hole is not None:
            model, state, solver = self._fit_missing(engine, plan, hole), None, "em-missing"
        self._take_over(model, state, solver)

    def _take_over(self, model: LatentModel, state: Scatter | None, solver: str) -> None:
        """Have the model, finished, and what it came from."""
        if not model.converged:
            self._warn(model)
        self.solver_ = solver
        self._adopt(self._finished(model), state)

    def plan_part(self, source: Source, *, scheduler: Scheduler | None = None) -> Plan:
        """Return what ``part_of`` would do, without reading the source."""
        self._how()
        info = self._seen(source).info
        tall = replace(info, n_rows=max(info.n_rows, info.n_features))  # other rows may make up for what is lacking
        check_shape(tall, self._checked_count(), 1)
        how: dict[str, Any] = {"solver": "covariance", "precision": "float64", "scheduler": scheduler, "min_rows": 1}
        return replace(plan_pca(info, None, memory=self.memory, **how), method=self.kind, solver=self._by_matrix)

    def _accumulate(self, engine: Engine, plan: Plan) -> Scatter:
        engine = engine.over(self._seen(engine.source), engine.partition)
        try:
            return engine.run("scatter", Scatter(engine.source.info.n_features))
        except NonFiniteError as error:
            if not error.is_nan:
                raise
            raise DataError(
                f"row {error.row}, column {error.column} is missing, and only complete rows can be added to a fit or taken from it: "
                "fit all rows again, with warm_start to save iterations"
            ) from None

    def _from_state(self, state: Scatter) -> Self:
        """Take over sums; with fewer than two rows there is nothing to tell yet."""
        self._state = state
        if state.rows < 2:
            return self
        wanted, limit = self._checked_count(), min(state.rows, state.n_features)
        r = max(limit - 1, 1) if wanted is None else min(wanted, limit)
        self._take_over(self._model_of(state, r), state, self._by_matrix)
        return self

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
            return self._em_missing(engine, plan, moments, self._start(observed, plan), names)
        kept = {name: array[observed] for name, array in moments.to_arrays().items()}
        narrow = Columns(source, tuple(np.flatnonzero(observed).tolist()))
        few = ObservedMoments.from_arrays(kept)
        model = self._em_missing(engine.over(narrow, engine.partition), plan, few, self._start(observed, plan), None)
        return _widened(model, observed)

    def _start(self, columns: Array, plan: Plan) -> Parameters | None:
        """Return where EM starts, as far as some columns go: at the last fit, or a stored one, if that is asked for."""
        if self.warm_start is True:
            last: LatentModel | None = getattr(self, "_model", None)
        else:
            last = type(self)._load(cast("str", self.warm_start))._model if self.warm_start else None
        if last is None:
            return None
        r = min(cast("int", plan.n_components), int(columns.sum()))
        if (last.n_features, last.n_components) != (len(columns), r):
            raise UsageError(
                f"warm_start: the model to start from has {last.n_components} components of {last.n_features} features, but {r} of "
                f"{len(columns)} are to be fitted: ask for as many, or start afresh"
            )
        start = Parameters(last.W[columns], last.mean[columns], last.noise if last.isotropic else np.asarray(last.noise)[columns])
        return start if np.isfinite(start.mean).all() else None  # a column that had no values then has some now

    def _em_missing(
        self, engine: Engine, plan: Plan, moments: ObservedMoments, start: Parameters | None, names: tuple[str, ...] | None
    ) -> LatentModel:
        n_features = moments.n_features
        r = min(cast("int", plan.n_components), n_features)
        return em_missing(
            passes_from(start, engine.run),
            n_features,
            r,
            start=start,
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


def passes_from(start: Parameters | None, run: Run) -> Run:
    """Return what makes passes, named after where they start: a run that goes on must not take those of another start for its own."""
    if start is None:
        return run
    mark = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in start)).hexdigest()[:8]
    return lambda name, statistic: run(f"{name}-from-{mark}", statistic)


def _widened(model: LatentModel, observed: Array) -> LatentModel:
    """Return the model with the columns that have no values: no loadings, a mean of NaN, the mean noise."""
    W, mean = np.zeros((len(observed), model.n_components)), np.full(len(observed), np.nan)
    W[observed], mean[observed] = model.W, model.mean
    noise = model.noise
    if not model.isotropic:
        noise = np.full(len(observed), float(np.mean(model.noise)))
        noise[observed] = model.noise
    return replace(model, W=W, mean=mean, noise=noise)
