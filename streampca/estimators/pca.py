"""PCA with scikit-learn's interface, for data of any size: arrays, Dask arrays, sources and paths."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler, choose_scheduler
from streampca.errors import CorruptDataError, DataError, UsageError
from streampca.estimators.base import StreamingTransformer, as_component_count
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.events import Observer
from streampca.models.pca import PCAModel, scores_dtype
from streampca.planning import Plan, plan_pca
from streampca.solvers.covariance import Options, model_of, solve
from streampca.sources import open_array
from streampca.sources.base import Array, Source
from streampca.statistics import Scatter
from streampca.storage import read_arrays, write_arrays

_VERSION = 1


class PCA(StreamingTransformer):
    """Principal component analysis, exact and in one pass, of more data than memory.

    Parameters
    ----------
    n_components : int, float or None
        Number of components; a fraction in (0, 1) keeps the fewest that explain more than this part of the variance; None keeps all.
    solver : {"auto", "covariance"}
        How it is computed; ``"auto"`` leaves it to the planner.
    whiten : bool
        Scale the scores to unit variance.
    standardize : bool
        Divide each column by its standard deviation first.
    precision : {"auto", "float64", "float32"}
        Precision of the products. Sums are always float64.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    random_state : int, optional
        Not used by the exact solver.

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
    _state: Scatter | None

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        solver: str = "auto",
        whiten: bool = False,
        standardize: bool = False,
        precision: Literal["auto", "float32", "float64"] = "auto",
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.whiten = whiten
        self.standardize = standardize
        self.precision = precision
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to all rows of X.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows. A path may be a glob, and may name a dataset: ``runs/*.h5::X``.
        y : ignored
        """
        return self.fit_source(self._open(X, reset=True))

    def fit_source(
        self, source: Source, *, plan: Plan | None = None, scheduler: Scheduler | None = None, observer: Observer | None = None
    ) -> Self:
        """Fit to all rows of a source, on a given scheduler, telling an observer.

        Parameters
        ----------
        source : Source
            The rows.
        plan : Plan, optional
            The plan, if it has been made already.
        scheduler : Scheduler, optional
            Where to run; by default the active Dask client, else local threads.
        observer : Observer, optional
            Whom to tell of progress.
        """
        self._adopt_columns(source.info)
        n_components = as_component_count(self.n_components)
        scheduler = scheduler or choose_scheduler()
        plan = plan or self._plan(source, n_components, scheduler)
        scheduler = scheduler.limited_to(plan.workers)
        engine = Engine(source, plan.partition(source.info), scheduler, observer or Observer())
        precision: Any = plan.precision
        model, state = solve(
            source.info.n_features, self._options(n_components), engine.run, precision=precision, repeat=self.precision == "auto"
        )
        return self._adopt(model, state, plan, len(engine.passes))

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit to X and return its scores (lazily, in a second pass, if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        y : ignored
        """
        return self.fit(X).transform(X)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fold more rows into the fit, exactly: the result is that of one fit to all rows seen so far.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            More samples.
        y : ignored
        """
        known: Scatter | None = getattr(self, "_state", None)
        if known is None and self.__sklearn_is_fitted__():
            raise UsageError(
                "this fit was stored without its state, so no rows can be added to it: save with state=True, or fit all rows again"
            )
        source = self._open(X, reset=known is None)
        n_components = as_component_count(self.n_components)
        _check_component_count(n_components, source.info.n_features)
        scheduler = choose_scheduler()
        # A pass in float32 is repeated in float64 where the whole spectrum needs it; a batch cannot know that spectrum.
        precision = "float64" if self.precision == "auto" else self.precision
        plan = plan_pca(source.info, None, memory=self.memory, solver=self.solver, precision=precision, scheduler=scheduler, min_rows=1)
        scheduler = scheduler.limited_to(plan.workers)
        state = Engine(source, plan.partition(source.info), scheduler).run("scatter", Scatter(source.info.n_features, plan.precision))  # type: ignore[arg-type]
        if known is not None:
            total = known.copy()
            total.merge(state)
            state = total
        return self._from_state(state, n_components, plan)

    def merge(self, other: PCA) -> Self:
        """Join the fit of other rows to this one, exactly: the result is that of one fit to the rows of both.

        Parameters
        ----------
        other : PCA
            A fit to other rows with the same columns; left as it is.
        """
        states = [getattr(each, "_state", None) for each in (self, other)]
        if states[0] is None or states[1] is None:
            raise UsageError("both must be fitted (or saved with state=True and loaded) before they can be merged")
        if states[0].n_features != states[1].n_features:
            raise DataError(f"cannot merge fits of {states[0].n_features} and {states[1].n_features} features")
        self._check_same_names(other)
        total = states[0].copy()
        total.merge(states[1])
        return self._from_state(total, as_component_count(self.n_components), getattr(self, "plan_", None))

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows that scores stand for.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores.
        """
        check_is_fitted(self)
        scores = (X if is_dask_array(X) else open_array(X)) if is_lazy(X) else np.asarray(X)
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise DataError(f"scores of shape {scores.shape} do not have the {self.n_components_} columns of this model")
        if is_lazy(X):
            return map_lazily(self._model.inverse_transform, scores, self.n_features_in_, scores_dtype(scores.dtype))
        return self._model.inverse_transform(scores)

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

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, state: bool = True) -> None:
        """Store the fit as a Zarr group with checksums; ``streampca.load`` reads it.

        Parameters
        ----------
        path : str or Path
            Where to write, for example ``model.zarr``.
        overwrite : bool
            Replace an existing model.
        state : bool
            Store the sums too, so that the loaded fit can be merged and updated.
        """
        check_is_fitted(self)
        arrays = {f"model/{name}": array for name, array in self._model.to_arrays().items()}
        if state and self._state is not None:
            arrays |= {f"state/{name}": array for name, array in self._state.to_arrays().items()}
        names = getattr(self, "feature_names_in_", None)
        attributes = {
            "params": {
                key: value for key, value in self.get_params().items() if isinstance(value, (str, int, float, bool, np.generic, type(None)))
            },
            "solver": self.solver_,
            "n_passes": self.n_passes_,
            "feature_names": None if names is None else [str(name) for name in names],
        }
        write_arrays(path, arrays, attributes, kind=self.kind, version=_VERSION, overwrite=overwrite)

    @classmethod
    def _load(cls, path: str | os.PathLike[str]) -> Self:
        arrays, attributes, _ = read_arrays(path, kind=cls.kind, max_version=_VERSION)
        try:
            return cls._restored(arrays, attributes)
        except (KeyError, TypeError, AttributeError, IndexError) as error:  # well stored, but not by save()
            raise CorruptDataError(f"{os.fspath(path)} does not hold what a PCA needs: {error!r}") from error

    @classmethod
    def _restored(cls, arrays: dict[str, Array], attributes: dict[str, Any]) -> Self:
        parts: dict[str, dict[str, Array]] = {"model": {}, "state": {}}
        for name, array in arrays.items():
            group, _, key = name.partition("/")
            parts[group][key] = array
        model = PCAModel.from_arrays(parts["model"])
        pca = cls(**{key: value for key, value in attributes["params"].items() if key in cls().get_params()})
        pca.n_features_in_ = model.n_features
        if attributes["feature_names"] is not None:
            pca.feature_names_in_ = np.array(attributes["feature_names"], dtype=object)
        state = Scatter.from_arrays(parts["state"]) if parts["state"] else None
        if state is not None and (state.n_features, state.count) != (model.n_features, model.n_samples):
            raise CorruptDataError(f"the stored sums ({state.count} x {state.n_features}) are not those of the model")
        pca.solver_ = attributes["solver"]
        return pca._adopt(model, state, None, attributes["n_passes"])

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model: one row, or a fit that failed, leaves none."""
        return hasattr(self, "_model")

    def _transform_block(self, block: Array) -> Array:
        return self._model.transform(block)

    @property
    def _n_features_out(self) -> int:
        return self._model.n_components

    def _options(self, n_components: int | float | None) -> Options:
        for name in ("whiten", "standardize"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        return Options(n_components, bool(self.whiten), bool(self.standardize))

    def _plan(self, source: Source, n_components: int | float | None, scheduler: Scheduler) -> Plan:
        return plan_pca(source.info, n_components, memory=self.memory, solver=self.solver, precision=self.precision, scheduler=scheduler)

    def _from_state(self, state: Scatter, n_components: int | float | None, plan: Plan | None) -> Self:
        """Take over sums; with fewer than two rows there is nothing to tell yet."""
        limit = min(state.count, state.n_features)
        _check_component_count(n_components, state.n_features)
        if isinstance(n_components, int):
            n_components = min(n_components, limit)
        self._state: Scatter | None = state
        if state.count < 2:
            return self
        return self._adopt(model_of(state, self._options(n_components)), state, plan, 1)

    def _adopt(self, model: PCAModel, state: Scatter | None, plan: Plan | None, n_passes: int) -> Self:
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
        self.plan_, self.n_passes_ = plan, n_passes
        self.solver_ = plan.solver if plan else getattr(self, "solver_", "covariance")
        return self

    def _check_same_names(self, other: PCA) -> None:
        ours: ArrayLike | None = getattr(self, "feature_names_in_", None)
        theirs: ArrayLike | None = getattr(other, "feature_names_in_", None)
        if ours is not None and theirs is not None and list(ours) != list(theirs):  # type: ignore[arg-type]
            raise DataError("cannot merge fits of columns with different names")


def _check_component_count(n_components: int | float | None, n_features: int) -> None:
    """Refuse what no number of rows would allow."""
    if isinstance(n_components, float):
        if not 0 < n_components < 1:
            raise UsageError(f"n_components={n_components} is not a fraction of variance in (0, 1): write an integer to ask for a number")
    elif n_components is not None and not 1 <= n_components <= n_features:
        raise UsageError(f"n_components={n_components} must be between 1 and n_features={n_features}")
