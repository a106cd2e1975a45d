"""PCA with scikit-learn's interface, for data of any size: arrays, Dask arrays, sources and paths."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler, choose_scheduler
from streampca.errors import NonFiniteError, UsageError, did_you_mean
from streampca.estimators.base import as_component_count
from streampca.estimators.denoise import check_shrinkage, denoiser_of
from streampca.estimators.inverse import rows_of_scores
from streampca.estimators.planned import check_component_count, more_directions
from streampca.estimators.rows import mapped, write_rows
from streampca.estimators.to_sklearn import as_sklearn_pca
from streampca.estimators.updatable import UpdatableTransformer, restored
from streampca.events import Observer
from streampca.models.pca import Floats, PCAModel
from streampca.models.rotation import ROTATIONS
from streampca.planning import Plan, limits_of, plan_pca
from streampca.planning.choice import may_be_dual
from streampca.selection import Selection
from streampca.sinks import Unfinished
from streampca.solvers import covariance, dual, sketch, tsqr
from streampca.solvers.choice import selection_of
from streampca.solvers.spectrum import Options
from streampca.sources.base import Array, Source
from streampca.sources.skipping import of_complete_rows, without_nan
from streampca.statistics import RFactor, Scatter
from streampca.statistics.scatter import Precision
from streampca.statistics.sketch import Sketch

State = Scatter | RFactor | Sketch
_STATES: dict[str, Any] = {"covariance": Scatter, "tsqr": RFactor, "sketch": Sketch}


class PCA(UpdatableTransformer):
    """Principal component analysis, exact and in one pass, of more data than memory.

    Parameters
    ----------
    n_components : int, float, str or None
        Number of components; a fraction in (0, 1) keeps the fewest that explain more than this part of the variance; None keeps all.
        ``"mle"``, ``"bic"``, ``"aic"``, ``"gaic"``, ``"elbow"``, ``"gavish-donoho"`` and ``"parallel"`` choose the number from the
        spectrum of the same pass, as :func:`streampca.select_components` does; at least one is kept.
    solver : {"auto", "covariance", "tsqr", "sketch", "dual"}
        How it is computed: from the covariance (one pass, exact), by a QR that never squares the data (one pass, for tiny components), by
        a sketch and a few passes (wide data), from the products of few long rows (exact). ``"auto"`` leaves it to the planner.
    whiten : bool
        Scale the scores to unit variance.
    standardize : bool
        Divide each column by its standard deviation first.
    precision : {"auto", "float64", "float32"}
        Precision of the products. Sums are always float64.
    shrinkage : {None, "hard", "soft", "optimal"}
        How ``denoise`` and ``denoise_to`` shrink the singular values: to take white noise away as well as can be (``"optimal"``), by the
        optimal hard threshold, or by as much as noise alone would have. Scores are left as they are.
    nan : {"error", "skip"}
        What to do about rows with a NaN: refuse them, or leave them out of the fit; their scores are then NaN.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    tol : float
        For the sketch: the error of the subspace (1 - MEV, the mean squared sine to the exact components) at which it stops.
    random_state : int, optional
        Seed of directions without variance, where more components are asked for than the data has.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, noise_variance_, n_components_
        As in :class:`sklearn.decomposition.PCA`.
    scale_ : ndarray
        What each column is divided by: ones unless ``standardize``.
    n_samples_, n_skipped_, n_features_in_, feature_names_in_
        What was fitted.
    n_passes_, plan_, solver_
        How it was fitted.
    selection_ : Selection
        How a fraction or a criterion chose the number of components: its curve and its reason. Absent if a number was asked for.
    accuracy_ : dict
        ``residuals``, |S v - l v| / l of each component, and ``subspace_error``, the estimated 1 - MEV.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-1, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> pca = PCA(n_components=2).fit(X)
    >>> pca.explained_variance_ratio_.round(4)
    array([0.9924, 0.0076])
    >>> pca.transform(X[:1]).round(2)
    array([[-1.38, -0.29]])
    """

    kind: ClassVar[str] = "pca"
    kept_by: ClassVar[str] = "solver='covariance' or 'tsqr'"
    _model: PCAModel
    _state: State | None

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        solver: str = "auto",
        whiten: bool = False,
        standardize: bool = False,
        precision: Literal["auto", "float32", "float64"] = "auto",
        tol: float = 1e-3,
        shrinkage: str | None = None,
        nan: str = "error",
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.whiten = whiten
        self.standardize = standardize
        self.precision = precision
        self.tol = tol
        self.shrinkage = shrinkage
        self.nan = nan
        self.memory = memory
        self.random_state = random_state

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
        source = without_nan(source, self.nan)
        turned = source.transposed() if may_be_dual(source.info, self.solver) else None
        return plan_pca(
            source.info,
            as_component_count(self.n_components),
            memory=self.memory,
            solver=self.solver,
            precision=self.precision,
            standardize=bool(self.standardize),
            tol=self.tol,
            turned=None if turned is None else turned.info,
            scheduler=scheduler,
            scores=scores,
        )

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        options = self._options(as_component_count(self.n_components))
        source = without_nan(engine.source, self.nan)
        model, state = self._solve(engine.over(source, engine.partition), plan, options)
        self.solver_ = plan.solver
        self._adopt(model, state)
        self._left_out = source.info.n_rows - model.n_samples

    @property
    def n_skipped_(self) -> int:
        """Rows that did not count: with a NaN, if they are skipped, or of weight 0."""
        return self._left_out

    def _solve(self, engine: Engine, plan: Plan, options: Options) -> tuple[PCAModel, State | None]:
        """Run the solver of the plan."""
        d, precision, sums = plan.n_features, cast("Precision", plan.precision), cast("Precision", plan.sums)
        if plan.solver == "tsqr":
            return tsqr.solve(d, options, engine.run)
        if plan.solver == "dual":
            try:
                return dual.solve(plan.n_rows, options, self._columns(engine, plan), precision, self.random_state), None
            except NonFiniteError as error:  # its rows are the features
                raise error.transposed(engine.source.info.feature_names) from None
        if plan.solver == "sketch":
            most = plan.max_passes or plan.n_passes
            effort = sketch.Effort(plan.rank or 1, precision, sums, self.tol, most - options.standardize, self.random_state, plan.max_rank)
            try:
                return sketch.solve(d, options, engine.run, effort)
            except sketch.UndecidedError as error:
                raise UsageError(more_directions(error, plan)) from None
        return covariance.solve(d, options, engine.run, precision=precision, repeat=self.precision == "auto")

    def _columns(self, engine: Engine, plan: Plan) -> Engine:
        """Return the engine of passes over slabs of columns."""
        turned = engine.source.transposed()
        if turned is None:
            raise UsageError(f"{engine.source.info.description} cannot be read by columns: use another solver")
        return engine.over(turned, plan.partition(turned.info))

    def plan_part(self, source: Source, *, scheduler: Scheduler | None = None) -> Plan:
        """Return what ``part_of`` would do, without reading the source."""
        check_component_count(as_component_count(self.n_components), source.info.n_features)
        # A pass in float32 is repeated in float64 where the whole spectrum needs it; a batch cannot know that spectrum.
        precision = "float64" if self.precision == "auto" else self.precision
        known = getattr(self, "_state", None)
        solver = "tsqr" if isinstance(known, RFactor) else self.solver if self.solver != "auto" else "covariance"
        if solver in ("sketch", "dual"):
            raise UsageError(f"solver={solver!r} cannot add rows to a fit: use solver='covariance' or 'tsqr'")
        return plan_pca(source.info, None, memory=self.memory, solver=solver, precision=precision, scheduler=scheduler, min_rows=1)

    def _accumulate(self, engine: Engine, plan: Plan) -> State:
        d = engine.source.info.n_features
        empty: State = RFactor(d) if plan.solver == "tsqr" else Scatter(d, cast("Precision", plan.precision))
        return engine.over(without_nan(engine.source, self.nan), engine.partition).run(plan.solver, empty)

    @property
    def can_be_updated(self) -> bool:
        """Whether rows can be added: the fit has sums, and they add up exactly."""
        return isinstance(getattr(self, "_state", None), (Scatter, RFactor))

    def _refuse(self, *states: State | None) -> None:
        if any(isinstance(state, Sketch) for state in states):
            raise UsageError("a sketch cannot be updated or merged exactly: fit all rows again, or use solver='covariance' or 'tsqr'")

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows that scores stand for.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores.
        """
        check_is_fitted(self)
        return rows_of_scores(X, self._model)

    def denoise(self, X: Any) -> Any:
        """Return rows without what is noise: their components, shrunk as ``shrinkage`` says (lazily if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        """
        check_is_fitted(self)
        return mapped(self, denoiser_of(self._model, check_shrinkage(self.shrinkage)), X, self.n_features_in_)

    def denoise_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """Stream the denoised rows of X to a ``.zarr``, ``.h5`` or ``.npy`` file, which appears when it is complete.

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
        denoiser = denoiser_of(self._model, check_shrinkage(self.shrinkage))
        source = self._open(X, reset=False)
        scheduler = scheduler or choose_scheduler()
        limits, k = limits_of(self.memory, scheduler), self.n_components_
        write_rows(
            "denoised", denoiser, source, path, limits, scheduler, observer, overwrite=overwrite, unfinished=unfinished, n_components=k
        )

    def rotate(self, kind: str = "varimax") -> tuple[Floats, Floats]:
        """Return the loadings (d x k: components times standard deviations), rotated to a simple structure, and the rotation.

        Parameters
        ----------
        kind : {"varimax", "quartimax", "promax"}
            Orthogonal, or oblique for ``"promax"``; see :mod:`streampca.models.rotation`. The fit is left as it is.
        """
        check_is_fitted(self)
        if kind not in ROTATIONS:
            raise UsageError(f"unknown rotation {kind!r}: choose one of {', '.join(ROTATIONS)}.{did_you_mean(kind, ROTATIONS)}")
        return ROTATIONS[kind](self.components_.T * np.sqrt(self.explained_variance_))

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of each row under the probabilistic model of the components (lazily if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        """
        check_is_fitted(self)
        return mapped(self, self._model.score_samples, X, None, np.dtype(np.float64))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of the rows.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        y : ignored
        """
        mean = self.score_samples(X).mean()
        return float(mean.compute() if hasattr(mean, "compute") else mean)

    def get_covariance(self) -> Array:
        """Return the d x d covariance of the model."""
        check_is_fitted(self)
        return self._model.covariance()

    def get_precision(self) -> Array:
        """Return the inverse of the model's covariance."""
        check_is_fitted(self)
        return self._model.precision()

    def to_sklearn(self) -> Any:
        """Return a fitted ``sklearn.decomposition.PCA`` with the same components, which gives the same scores."""
        check_is_fitted(self)
        return as_sklearn_pca(self)

    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values."""
        model = self._model
        return {
            "variance_kept": float(self.explained_variance_ratio_.sum()),
            "explained_variance_ratio": self.explained_variance_ratio_[:20].tolist(),
            "noise_variance": float(self.noise_variance_),
            "standardized": bool(self.standardize),
            "whitened": bool(self.whiten),
            **({"rows_skipped": self.n_skipped_} if self.nan == "skip" else {}),
            "accuracy": {"subspace_error": model.subspace_error, "largest_residual": float(model.residuals.max())},
            **({"selection": self.selection_.reason} if hasattr(self, "selection_") else {}),
            "can_be_updated": self.can_be_updated,
        }

    def _stored(self) -> dict[str, Array]:
        return {f"model/{name}": array for name, array in self._model.to_arrays().items()} | self._stored_state()

    def _attributes(self) -> dict[str, Any]:
        return {"n_skipped": self._left_out}

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        self._left_out = int(attributes.get("n_skipped", 0))
        fitted = PCAModel.from_arrays(model)
        self.n_features_in_ = fitted.n_features
        weight = fitted.n_samples if fitted.weight is None else fitted.weight
        known = restored(_STATES[self.solver_], state, fitted.n_features, weight) if self.solver_ in _STATES else None
        self._adopt(fitted, known)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model: one row, or a fit that failed, leaves none."""
        return hasattr(self, "_model")

    def _transform_block(self, block: Array) -> Array:
        transform = self._model.transform
        return of_complete_rows(transform, block) if self.nan == "skip" else transform(block)

    @property
    def _n_features_out(self) -> int:
        return self._model.n_components

    def _options(self, n_components: int | float | str | None) -> Options:
        for name in ("whiten", "standardize"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        check_shrinkage(self.shrinkage)
        return Options(n_components, bool(self.whiten), bool(self.standardize))

    def _from_state(self, state: Scatter | RFactor) -> Self:
        """Take over sums; with fewer than two rows there is nothing to tell yet."""
        n_components = as_component_count(self.n_components)
        limit = min(state.rows, state.n_features)
        check_component_count(n_components, state.n_features)
        if isinstance(n_components, int):
            n_components = min(n_components, limit)
        self._state: State | None = state
        if state.rows < (state.n_features if n_components == "mle" else 2):
            return self
        options = self._options(n_components)
        model = tsqr.model_of(state, options) if isinstance(state, RFactor) else covariance.model_of(state, options)
        return self._adopt(model, state)

    def _adopt(self, model: PCAModel, state: State | None) -> Self:
        """Set the fitted attributes."""
        self._model, self._state = model, state
        self.components_, self.singular_values_ = model.components, model.singular_values
        self.explained_variance_, self.explained_variance_ratio_ = model.explained_variance, model.explained_variance_ratio
        self.mean_, self.scale_ = model.mean, model.scale
        self.noise_variance_ = model.noise_variance
        self.n_components_, self.n_samples_ = model.n_components, model.n_samples
        self.__dict__.pop("selection_", None)
        selection = selection_of(model, as_component_count(self.n_components))
        if selection is not None:
            self.selection_: Selection = selection
        self.accuracy_ = {"residuals": model.residuals, "subspace_error": model.subspace_error}
        return self
