"""Fits that follow from sums: more rows are added, fits of other rows joined, rows taken out again, and none is read twice.

A subclass says what one pass accumulates and which model follows from it; the sums are kept, and stored with the model.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

from streampca.engine import Engine, Ledger, Scheduler, choose_scheduler, in_pass
from streampca.errors import CorruptDataError, DataError, UsageError
from streampca.estimators.base import StreamingTransformer
from streampca.events import Observer, default_observer
from streampca.planning import Plan
from streampca.sources.base import Array, Source
from streampca.statistics import Scatter
from streampca.statistics.removal import without


class UpdatableTransformer(StreamingTransformer):
    """An estimator whose model is a function of sums (``_state``), if the way that it was fitted by keeps them."""

    kept_by: ClassVar[str]  # the ways of fitting that keep sums, as they are asked for
    _state: Any
    _left_out: int = 0  # rows that did not count

    @abstractmethod
    def plan_part(self, source: Source, *, scheduler: Scheduler | None = None) -> Plan:
        """Return what ``part_of`` would do, without reading the source.

        Parameters
        ----------
        source : Source
            The rows.
        scheduler : Scheduler, optional
            Where it would run.
        """

    @abstractmethod
    def _accumulate(self, engine: Engine, plan: Plan) -> Any:
        """Return the sums of all rows of the engine's source, in one pass."""

    @abstractmethod
    def _from_state(self, state: Any) -> Self:
        """Take over sums, and the model that follows from them."""

    @property
    def can_be_updated(self) -> bool:
        """Whether rows can be added: the fit has sums, and they add up exactly."""
        return getattr(self, "_state", None) is not None

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
        known = getattr(self, "_state", None)
        if known is None and self.__sklearn_is_fitted__():
            raise UsageError(
                "this fit was stored without its state (or was fitted in a way that keeps none), so no rows can be added to it: "
                f"save with state=True, fit with {self.kept_by}, or fit all rows again"
            )
        self._refuse(known)
        source = self._open(X, reset=known is None, weights=sample_weight)
        if known is None:
            return self._begin(source)
        part = self.part_of(source)
        self.plan_, self.n_passes_, self.solver_ = part.plan_, 1, part.solver_
        self._from_state(joined(known, part._state))
        self._left_out += part._left_out
        return self

    def _begin(self, source: Source) -> Self:
        """Fit to the first rows of several batches."""
        part = self.part_of(source)
        self.plan_, self.n_passes_, self.solver_ = part.plan_, 1, part.solver_
        self._left_out = part._left_out
        return self._from_state(part._state)

    def part_of(
        self,
        source: Source,
        *,
        plan: Plan | None = None,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        ledger: Ledger | None = None,
    ) -> Self:
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
        partition = plan.partition(source.info)
        engine = Engine(source, partition, scheduler.limited_to(plan.workers), observer or default_observer(), ledger=ledger)
        part = self._like()
        part._state, part.plan_, part.n_passes_, part.solver_ = self._accumulate(engine, plan), plan, 1, plan.solver
        part._left_out = source.info.n_rows - part._state.rows
        return part

    def _like(self) -> Self:
        """Return an estimator that sums can be given to."""
        return type(self)(**self.get_params())

    def merge(self, other: Self) -> Self:
        """Join the fit of other rows to this one, exactly: the result is that of one fit to the rows of both.

        Parameters
        ----------
        other : an estimator of the same kind
            A fit to other rows with the same columns, by the same solver; left as it is.
        """
        self._from_state(joined(*self._states_with(other)))
        self._left_out += other._left_out
        return self

    def subtract(self, other: Self) -> Self:
        """Take the rows of another fit out of this one: the result is that of a fit to the rows that are left.

        Parameters
        ----------
        other : an estimator of the same kind
            A fit, from sums of products as this one, to rows that are among those of this one; left as it is.
        """
        ours, theirs = self._states_with(other)
        if not isinstance(ours, Scatter):
            raise UsageError("rows can be taken out of a fit by solver='covariance' only: fit the rows that are left again")
        self._from_state(without(ours, theirs))
        self._left_out -= other._left_out
        return self

    def _states_with(self, other: Self) -> tuple[Any, Any]:
        """Return the sums of both fits, which must go together."""
        if type(self) is not type(other):
            raise UsageError(f"cannot merge a {type(self).__name__} with a {type(other).__name__}")
        ours, theirs = getattr(self, "_state", None), getattr(other, "_state", None)
        if ours is None or theirs is None:
            raise UsageError(f"both must be fitted by {self.kept_by} (or saved with state=True and loaded) before they can be merged")
        self._refuse(ours, theirs)
        if type(ours) is not type(theirs):
            raise UsageError(f"cannot merge a fit by {self.solver_!r} with one by {other.solver_!r}: fit both by the same solver")
        self._check_alike(other)
        if ours.n_features != theirs.n_features:
            raise DataError(f"cannot merge fits of {ours.n_features} and {theirs.n_features} features")
        self._check_same_names(other)
        self.plan_, self.n_passes_ = getattr(self, "plan_", None), 1
        return ours, theirs

    def _refuse(self, *states: Any) -> None:
        """Refuse sums that do not add up exactly."""

    def _check_alike(self, other: Self) -> None:
        """Refuse a fit whose sums are of other things than ours."""

    def _check_same_names(self, other: Self) -> None:
        ours, theirs = getattr(self, "feature_names_in_", None), getattr(other, "feature_names_in_", None)
        if ours is not None and theirs is not None and list(ours) != list(theirs):
            raise DataError("cannot merge fits of columns with different names")

    def _stored_state(self) -> dict[str, Array]:
        """Return the arrays of the sums, as they are stored."""
        state = getattr(self, "_state", None)
        return {} if state is None else {f"state/{name}": array for name, array in state.to_arrays().items()}


def joined(first: Any, second: Any) -> Any:
    """Return the sums of both, which are left as they are."""
    total = first.copy()
    with in_pass():
        total.merge(second)
    return total


def restored(kind: Any, arrays: dict[str, Array], n_features: int, weight: float) -> Any:
    """Return stored sums after checking that they are of so many columns and rows (by weight); None if there are none."""
    if not arrays:
        return None
    state = kind.from_arrays(arrays)
    if (state.n_features, float(state.count)) != (n_features, float(weight)):
        raise CorruptDataError(f"the stored sums ({state.centre.rows} x {state.n_features}) are not those of the model")
    return state
