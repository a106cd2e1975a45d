"""What all estimators share: checks of inputs, streaming transforms to files, saving and loading."""

from __future__ import annotations

import os
from abc import ABCMeta, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from streampca.engine import Engine, Ledger, Scheduler, Written, choose_scheduler, map_rows
from streampca.engine.threads import Threads
from streampca.errors import CorruptDataError, DataError, MemoryBudgetError, UsageError
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.events import Observer, default_observer
from streampca.models.pca import scores_dtype
from streampca.planning import Plan, check_criterion, limits_of
from streampca.planning.scores import ScoresPlan, plan_scores
from streampca.sinks import Unfinished, open_sink
from streampca.sources import open_source
from streampca.sources.base import Array, Source, SourceInfo
from streampca.sources.labelled import is_labelled, with_labels
from streampca.statistics.gathered import Gathered
from streampca.storage import read_arrays, write_arrays

VERSION = 2  # of what is stored


class StreamingTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, metaclass=ABCMeta):
    """A scikit-learn transformer that also takes paths, sources and Dask arrays, and streams them."""

    kind: ClassVar[str]  # the name under which fitted models are stored
    memory: str | int | None
    n_features_in_: int
    n_samples_: int
    n_components_: int
    n_passes_: int
    solver_: str
    plan_: Plan | None
    inputs_: list[dict[str, Any]]  # what a job has read: files, fingerprints, rows

    @abstractmethod
    def plan_for(self, source: Source, *, scheduler: Scheduler | None = None, scores: bool = False) -> Plan:
        """Return what a fit to a source would do, without reading it; ``scores``: and a pass that writes the scores."""

    @abstractmethod
    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        """Make the passes of a plan, and set the fitted attributes."""

    @abstractmethod
    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values, for people and ``--json``."""

    def fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit to all rows of X.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows. A path may be a glob, and may name a dataset: ``runs/*.h5::X``. A DataArray of xarray has its
            samples along ``sample`` or ``time``, else along its first dimension.
        y : ignored
        sample_weight : array-like, Dask array, Source, or path, optional
            How often each row counts, a number of at least 0; ``"::w"`` names a dataset in the file of X.
        """
        return self.fit_source(self._open(X, reset=True, weights=sample_weight))

    def fit_source(
        self,
        source: Source,
        *,
        plan: Plan | None = None,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        ledger: Ledger | None = None,
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
            Whom to tell of progress; by default Python's logger ``streampca``, if it is on.
        ledger : Ledger, optional
            What keeps the sums of passes, so that an interrupted fit can go on.
        """
        self._adopt_columns(source.info)
        scheduler = scheduler or choose_scheduler()
        plan = plan or self.plan_for(source, scheduler=scheduler)
        observer = observer or default_observer()
        engine = Engine(source, plan.partition(source.info), scheduler.limited_to(plan.workers), observer, ledger=ledger)
        self._fit_passes(engine, plan)
        self.inputs_ = []
        self.plan_, self.n_passes_ = plan, len(engine.passes)
        return self

    def fit_transform(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Any:
        """Fit to X and return its scores (lazily, in a further pass, if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        y : ignored
        sample_weight : array-like, Dask array, Source, or path, optional
            How often each row counts.
        """
        return self.fit(X, sample_weight=sample_weight).transform(X)

    @abstractmethod
    def _transform_block(self, block: Array) -> Array:
        """Return the scores of a block of rows."""

    def _transform_bytes(self, workers: int) -> int:
        """Return what transforms hold beside rows, scores and a basis."""
        return 0

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
        ndarray of shape (n_samples, n_components), or a lazy Dask array of that shape if X is lazy; of a DataArray, a DataArray
        """
        check_is_fitted(self)
        if is_labelled(X):
            return self._transform_labelled(X)
        if not is_lazy(X):
            return self._transform_block(self._checked(X))
        X = X if is_dask_array(X) else as_source(X)
        self._check_columns(X)
        dtype = scores_dtype(np.dtype(X.dtype if is_dask_array(X) else X.info.dtype))
        return map_lazily(self._transform_block, X, self._n_features_out, dtype)

    def _transform_labelled(self, X: Any) -> Any:
        source = self._open(X, reset=False)
        lazy = X.chunks is not None
        scores = self.transform(source) if lazy else self._transform_block(source.read(slice(None)))
        return with_labels(scores, X, self.get_feature_names_out())

    def transform_to(
        self,
        X: Any,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        unfinished: Unfinished | None = None,
        gathered: Gathered[Any] | None = None,
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
        unfinished : Unfinished, optional
            Where to keep what is written if the run is interrupted, to go on with later.
        gathered : Gathered, optional
            What takes in every block beside its scores, where they are computed in this process and the memory allows it.
        """
        check_is_fitted(self)
        source = self._open(X, reset=False)
        info, k = source.info, self._n_features_out
        scheduler = scheduler or choose_scheduler()
        plan, gathered = self._plan_transform(info, scheduler, gathered)
        scheduler = scheduler.limited_to(plan.workers)
        names = list(self.get_feature_names_out())
        sink = open_sink(
            path,
            info.n_rows,
            k,
            scores_dtype(info.dtype),
            chunk_rows=plan.partition.block_rows,
            feature_names=names,
            overwrite=overwrite,
            unfinished=unfinished,
        )
        observer = observer or default_observer()
        with sink as out:
            written = None if unfinished is None else Written(unfinished.ranges, unfinished.wrote)
            compute, write = self._transform_block, out.write
            if gathered is not None and not (written and written.ranges):  # of rows that are written already nothing would be known
                compute, write = _gathering(compute, write, gathered)
            map_rows("scores", compute, write, source, plan.partition, scheduler, observer, anywhere=out.parallel, written=written)

    def _plan_transform(
        self, info: SourceInfo, scheduler: Scheduler, gathered: Gathered[Any] | None
    ) -> tuple[ScoresPlan, Gathered[Any] | None]:
        """Return the plan of a transform, and what can be gathered in it: nothing on a cluster, with weights, or if the budget is tight."""
        limits = limits_of(self.memory, scheduler)
        baseline = limits.baseline + self._transform_bytes(limits.workers)
        plan = partial(plan_scores, info, self._n_features_out, budget=limits.budget, workers=limits.workers)
        if gathered is not None and isinstance(scheduler, Threads) and not info.weighted:
            with suppress(MemoryBudgetError):
                return plan(baseline=baseline + gathered.memory(limits.workers)), gathered
        return plan(baseline=baseline), None

    def _open(self, X: Any, *, reset: bool, weights: Any = None) -> Source:
        """Return X as a source; ``reset`` takes over its width and names, else they must be those of the fit."""
        if not is_lazy(X):
            checked = self._checked(X, reset=reset)
            return open_source(checked, feature_names=getattr(self, "feature_names_in_", None), weights=weights)
        source = as_source(X) if weights is None else open_source(X, weights=weights)
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
    def _stored(self) -> dict[str, Array]:
        """Return the arrays of the fit: those of the model as ``model/...``, of the state, if there is one, as ``state/...``."""

    def _attributes(self) -> dict[str, Any]:
        """Return what is stored of the fit beside arrays, as plain values."""
        return {}

    @abstractmethod
    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        """Set the fitted attributes from what was stored."""

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
        arrays = {name: array for name, array in self._stored().items() if state or not name.startswith("state/")}
        names = getattr(self, "feature_names_in_", None)
        plain = (str, int, float, bool, np.generic, type(None))
        attributes = {
            "params": {key: value for key, value in self.get_params().items() if isinstance(value, plain)},
            "solver": self.solver_,
            "n_passes": self.n_passes_,
            "feature_names": None if names is None else [str(name) for name in names],
            "inputs": getattr(self, "inputs_", []),
            **self._attributes(),
        }
        write_arrays(path, arrays, attributes, kind=self.kind, version=VERSION, overwrite=overwrite, name="model")

    @classmethod
    def _load(cls, path: str | os.PathLike[str]) -> Self:
        arrays, attributes, _ = read_arrays(path, kind=cls.kind, max_version=VERSION)
        try:
            return cls._restored(arrays, attributes)
        except (KeyError, TypeError, AttributeError, IndexError) as error:  # well stored, but not by save()
            raise CorruptDataError(f"{os.fspath(path)} does not hold what a {cls.__name__} needs: {error!r}") from error

    @classmethod
    def _restored(cls, arrays: dict[str, Array], attributes: dict[str, Any]) -> Self:
        parts: dict[str, dict[str, Array]] = {"model": {}, "state": {}}
        for name, array in arrays.items():
            group, _, key = name.partition("/")
            parts[group][key] = array
        known = set(cls._get_param_names())
        fitted = cls(**{key: value for key, value in attributes["params"].items() if key in known})
        if attributes["feature_names"] is not None:
            fitted.feature_names_in_ = np.array(attributes["feature_names"], dtype=object)
        fitted.solver_, fitted.n_passes_, fitted.plan_ = attributes["solver"], attributes["n_passes"], None
        fitted.inputs_ = list(attributes.get("inputs", []))
        fitted._restore(parts["model"], parts["state"], attributes)
        return fitted


def as_component_count(n_components: Any) -> int | float | str | None:
    """Return the number of components as a Python number, or the name of a criterion, or refuse it."""
    if n_components is None:
        return None
    if isinstance(n_components, str):
        check_criterion(n_components)
        return str(n_components)
    if isinstance(n_components, bool):
        raise UsageError(f"n_components must be None, an integer of 1 or more, or a fraction of variance in (0, 1), not {n_components!r}")
    if isinstance(n_components, np.generic):
        n_components = n_components.item()
    if not isinstance(n_components, (int, float)):
        raise UsageError(f"n_components must be a number or None, not {type(n_components).__name__}")
    return n_components


def _gathering(transform: Callable[[Array], Array], write: Callable[[int, Array], None], gathered: Gathered[Any]) -> tuple[Any, Any]:
    """Return what computes and writes scores, and shows each block and its scores to somebody else as well."""

    def compute(block: Array) -> tuple[Array, Array]:
        return block, transform(block)

    def write_both(start: int, both: tuple[Array, Array]) -> None:
        block, scores = both
        write(start, scores)
        gathered.add(start, block, scores)

    return compute, write_both
