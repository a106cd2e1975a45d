"""PCA with scikit-learn's interface, for data of any size: arrays, Dask arrays, sources and paths."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Ledger, Scheduler, choose_scheduler, in_pass
from streampca.errors import CorruptDataError, DataError, NonFiniteError, UsageError, did_you_mean
from streampca.estimators.base import StreamingTransformer, as_component_count
from streampca.estimators.denoise import check_shrinkage, denoiser_of, write_denoised
from streampca.estimators.inverse import rows_of_scores
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.estimators.to_sklearn import as_sklearn_pca
from streampca.events import Observer
from streampca.memory import format_bytes
from streampca.models.pca import Floats, PCAModel, scores_dtype
from streampca.models.rotation import ROTATIONS
from streampca.planning import Plan, limits_of, plan_pca
from streampca.planning.choice import may_be_dual
from streampca.selection import Selection
from streampca.solvers import covariance, dual, sketch, tsqr
from streampca.solvers.choice import selection_of
from streampca.solvers.spectrum import Options
from streampca.sources.base import Array, Source
from streampca.statistics import RFactor, Scatter
from streampca.statistics.removal import without
from streampca.statistics.scatter import Precision
from streampca.statistics.sketch import Sketch

State = Scatter | RFactor | Sketch
_STATES: dict[str, Any] = {"covariance": Scatter, "tsqr": RFactor, "sketch": Sketch}


class PCA(StreamingTransformer):
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
    n_samples_, n_features_in_, feature_names_in_
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
        model, state = self._solve(engine, plan, options)
        self.solver_ = plan.solver
        self._adopt(model, state)

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
                raise UsageError(_remedy(error, plan)) from None
        return covariance.solve(d, options, engine.run, precision=precision, repeat=self.precision == "auto")

    def _columns(self, engine: Engine, plan: Plan) -> Engine:
        """Return the engine of passes over slabs of columns."""
        turned = engine.source.transposed()
        if turned is None:
            raise UsageError(f"{engine.source.info.description} cannot be read by columns: use another solver")
        return engine.over(turned, plan.partition(turned.info))

    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Fold more rows into the fit, exactly: the result is that of one fit to all rows seen so far.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            More samples.
        y : ignored
        sample_weight : array-like, Dask array, Source, or path, optional
            How often each row counts.
        """
        known: State | None = getattr(self, "_state", None)
        if known is None and self.__sklearn_is_fitted__():
            raise UsageError(
                "this fit was stored without its state (or by solver='dual', which keeps none), so no rows can be added to it: "
                "save with state=True, fit with solver='covariance' or 'tsqr', or fit all rows again"
            )
        _refuse_sketch(known)
        source = self._open(X, reset=known is None, weights=sample_weight)
        part = self.part_of(source)
        self.plan_, self.n_passes_, self.solver_ = part.plan_, 1, part.solver_
        state: Any = part._state
        return self._from_state(state if known is None else _joined(known, state), as_component_count(self.n_components))

    def plan_part(self, source: Source, *, scheduler: Scheduler | None = None) -> Plan:
        """Return what ``part_of`` would do, without reading the source.

        Parameters
        ----------
        source : Source
            The rows.
        scheduler : Scheduler, optional
            Where it would run.
        """
        _check_component_count(as_component_count(self.n_components), source.info.n_features)
        # A pass in float32 is repeated in float64 where the whole spectrum needs it; a batch cannot know that spectrum.
        precision = "float64" if self.precision == "auto" else self.precision
        known = getattr(self, "_state", None)
        solver = "tsqr" if isinstance(known, RFactor) else self.solver if self.solver != "auto" else "covariance"
        if solver in ("sketch", "dual"):
            raise UsageError(f"solver={solver!r} cannot add rows to a fit: use solver='covariance' or 'tsqr'")
        return plan_pca(source.info, None, memory=self.memory, solver=solver, precision=precision, scheduler=scheduler, min_rows=1)

    def part_of(
        self,
        source: Source,
        *,
        plan: Plan | None = None,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        ledger: Ledger | None = None,
    ) -> PCA:
        """Return the sums of some rows, to be merged with this fit or subtracted from it: no model, no matter how few they are.

        Parameters
        ----------
        source : Source
            The rows.
        plan, scheduler, observer, ledger : optional
            As in ``fit_source``.
        """
        scheduler = scheduler or choose_scheduler()
        plan = plan or self.plan_part(source, scheduler=scheduler)
        partition, d = plan.partition(source.info), source.info.n_features
        engine = Engine(source, partition, scheduler.limited_to(plan.workers), observer or Observer(), ledger=ledger)
        empty: State = RFactor(d) if plan.solver == "tsqr" else Scatter(d, cast("Precision", plan.precision))
        part = PCA(**self.get_params())
        part._state, part.plan_, part.n_passes_, part.solver_ = engine.run(plan.solver, empty), plan, 1, plan.solver
        return part

    def merge(self, other: PCA) -> Self:
        """Join the fit of other rows to this one, exactly: the result is that of one fit to the rows of both.

        Parameters
        ----------
        other : PCA
            A fit to other rows with the same columns, by the same solver; left as it is.
        """
        ours, theirs = self._states_with(other)
        return self._from_state(_joined(ours, theirs), as_component_count(self.n_components))

    def subtract(self, other: PCA) -> Self:
        """Take the rows of another fit out of this one: the result is that of a fit to the rows that are left.

        Parameters
        ----------
        other : PCA
            A fit, by ``solver="covariance"`` as this one, to rows that are among those of this one; left as it is.
        """
        ours, theirs = self._states_with(other)
        if not isinstance(ours, Scatter):
            raise UsageError("rows can be taken out of a fit by solver='covariance' only: fit the rows that are left again")
        return self._from_state(without(ours, theirs), as_component_count(self.n_components))

    def _states_with(self, other: PCA) -> tuple[Any, Any]:
        """Return the sums of both fits, which must go together."""
        ours: Any = getattr(self, "_state", None)
        theirs: Any = getattr(other, "_state", None)
        if ours is None or theirs is None:
            raise UsageError("both must be fitted (or saved with state=True and loaded) before they can be merged")
        _refuse_sketch(ours, theirs)
        if type(ours) is not type(theirs):
            raise UsageError(f"cannot merge a fit by {self.solver_!r} with one by {other.solver_!r}: fit both by the same solver")
        if ours.n_features != theirs.n_features:
            raise DataError(f"cannot merge fits of {ours.n_features} and {theirs.n_features} features")
        self._check_same_names(other)
        self.plan_, self.n_passes_ = getattr(self, "plan_", None), 1
        return ours, theirs

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
        denoiser = denoiser_of(self._model, check_shrinkage(self.shrinkage))
        if not is_lazy(X):
            return denoiser(self._checked(X))
        X = X if is_dask_array(X) else as_source(X)
        self._check_columns(X)
        dtype = scores_dtype(np.dtype(X.dtype if is_dask_array(X) else X.info.dtype))
        return map_lazily(denoiser, X, self.n_features_in_, dtype)

    def denoise_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
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
        """
        check_is_fitted(self)
        denoiser = denoiser_of(self._model, check_shrinkage(self.shrinkage))
        source = self._open(X, reset=False)
        limits = limits_of(self.memory, scheduler)
        write_denoised(denoiser, source, path, limits, scheduler or choose_scheduler(), observer or Observer(), overwrite=overwrite)

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
        if not is_lazy(X):
            return self._model.score_samples(self._checked(X))
        X = X if is_dask_array(X) else as_source(X)
        self._check_columns(X)
        return map_lazily(self._model.score_samples, X, None, np.dtype(np.float64))

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
            "accuracy": {"subspace_error": model.subspace_error, "largest_residual": float(model.residuals.max())},
            **({"selection": self.selection_.reason} if hasattr(self, "selection_") else {}),
            "can_be_updated": isinstance(self._state, (Scatter, RFactor)),
        }

    def _stored(self) -> dict[str, Array]:
        arrays = {f"model/{name}": array for name, array in self._model.to_arrays().items()}
        if self._state is not None:
            arrays |= {f"state/{name}": array for name, array in self._state.to_arrays().items()}
        return arrays

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        fitted = PCAModel.from_arrays(model)
        self.n_features_in_ = fitted.n_features
        kind = _STATES.get(self.solver_)
        known = kind.from_arrays(state) if state and kind is not None else None
        if known is not None and (known.n_features, known.centre.rows) != (fitted.n_features, fitted.n_samples):
            raise CorruptDataError(f"the stored sums ({known.centre.rows} x {known.n_features}) are not those of the model")
        self._adopt(fitted, known)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model: one row, or a fit that failed, leaves none."""
        return hasattr(self, "_model")

    def _transform_block(self, block: Array) -> Array:
        return self._model.transform(block)

    @property
    def _n_features_out(self) -> int:
        return self._model.n_components

    def _options(self, n_components: int | float | str | None) -> Options:
        for name in ("whiten", "standardize"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        check_shrinkage(self.shrinkage)
        return Options(n_components, bool(self.whiten), bool(self.standardize))

    def _from_state(self, state: Scatter | RFactor, n_components: int | float | str | None) -> Self:
        """Take over sums; with fewer than two rows there is nothing to tell yet."""
        limit = min(state.rows, state.n_features)
        _check_component_count(n_components, state.n_features)
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
        self._model = model
        self._state = state
        self.components_ = model.components
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_ = model.explained_variance_ratio
        self.singular_values_ = model.singular_values
        self.mean_, self.scale_ = model.mean, model.scale
        self.noise_variance_ = model.noise_variance
        self.n_components_, self.n_samples_ = model.n_components, model.n_samples
        self._adopt_selection(selection_of(model, as_component_count(self.n_components)))
        self.accuracy_ = {"residuals": model.residuals, "subspace_error": model.subspace_error}
        return self

    def _adopt_selection(self, selection: Selection | None) -> None:
        if selection is not None:
            self.selection_ = selection
        elif hasattr(self, "selection_"):
            del self.selection_

    def _check_same_names(self, other: PCA) -> None:
        ours: ArrayLike | None = getattr(self, "feature_names_in_", None)
        theirs: ArrayLike | None = getattr(other, "feature_names_in_", None)
        if ours is not None and theirs is not None and list(ours) != list(theirs):  # type: ignore[arg-type]
            raise DataError("cannot merge fits of columns with different names")


def _remedy(error: sketch.UndecidedError, plan: Plan) -> str:
    """Say how much memory a sketch of more directions would take, in proportion to this one."""
    worst = max(plan.stages, key=lambda stage: stage.peak_memory)
    process, directions = worst.memory["process"], plan.max_rank or plan.rank or 1
    needed = process + (worst.peak_memory - process) * error.directions / directions
    return (
        f"{error}. {error.directions} directions would take a memory of about {format_bytes(int(needed))}: give that, "
        "or ask for a number of components"
    )


def _check_component_count(n_components: int | float | str | None, n_features: int) -> None:
    """Refuse what no number of rows would allow."""
    if isinstance(n_components, str):
        return
    if isinstance(n_components, float):
        if not 0 < n_components < 1:
            raise UsageError(f"n_components={n_components} is not a fraction of variance in (0, 1): write an integer to ask for a number")
    elif n_components is not None and not 1 <= n_components <= n_features:
        raise UsageError(f"n_components={n_components} must be between 1 and n_features={n_features}")


def _joined(first: Any, second: Any) -> Any:
    """Return the sums of both, which are left as they are."""
    total = first.copy()
    with in_pass():
        total.merge(second)
    return total


def _refuse_sketch(*states: State | None) -> None:
    if any(isinstance(state, Sketch) for state in states):
        raise UsageError("a sketch cannot be updated or merged exactly: fit all rows again, or use solver='covariance' or 'tsqr'")
