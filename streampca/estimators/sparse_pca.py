"""Sparse PCA with scikit-learn's interface, for data of any size: components of few columns, from one pass."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler
from streampca.errors import UsageError
from streampca.estimators.base import StreamingTransformer, as_component_count
from streampca.estimators.inverse import rows_of_scores
from streampca.models.sparse import SparseModel
from streampca.planning import Plan, check_shape, limits_of, with_scores
from streampca.planning.sparse import directions_for, plan_sparse
from streampca.solvers import sketch, sparse_pca, sparse_wide
from streampca.solvers.sparse_pca import Effort, Penalty
from streampca.solvers.spectrum import Options
from streampca.sources.base import Array, Source
from streampca.statistics.scatter import Precision


class SparsePCA(StreamingTransformer):
    """Principal components of few columns each, from one pass over more data than memory.

    The scores of the PCA are regressed on the columns with an elastic net, and rotated to match, in turn (Zou, Hastie and Tibshirani,
    2006): each component b minimises (a - b)^T S (a - b) + ridge |b|^2 + alpha |b|_1, with the covariance S and an orthonormal A. All
    of it needs only S. Entries that are not needed are exactly zero. Where S does not fit the memory, its leading directions, from two
    passes, and the mean of its other variances stand for it.

    Parameters
    ----------
    n_components : int or None
        Number of components; None as many as there can be.
    alpha : float
        The price of an entry, in units of the mean variance of a column: neither the number of rows nor the unit of the data matters. With
        0 the components are those of PCA.
    ridge : float
        The price of its square, in the same units: the more, the more columns that say the same share an entry.
    n_nonzero : int, optional
        Number of columns in each component, instead of ``alpha``: where the path of solutions would take in one more.
    standardize : bool
        Divide each column by its standard deviation first.
    max_iter : int
        Iterations, at most; each is one regression and one rotation, and reads no data.
    tol : float
        The change of the components (of unit length) at which they stop.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    random_state : int, optional
        Taken as other estimators take it. Nothing that shows is random here.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Of unit length, the entry of largest magnitude positive; not orthogonal in general.
    explained_variance_, explained_variance_ratio_ : ndarray
        Adjusted: what each component explains beyond those before it.
    mean_, scale_, n_components_, n_samples_, n_features_in_, feature_names_in_
        As in :class:`PCA`.
    n_iter_, n_passes_, plan_, solver_
        How it was fitted.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 1)) @ np.array([[1.0, 1.0, 0.0, 0.0]]) + 0.1 * rng.standard_normal((200, 4))
    >>> SparsePCA(n_components=1).fit(X).components_.round(1).tolist()
    [[0.7, 0.7, 0.0, 0.0]]
    """

    kind: ClassVar[str] = "spca"
    _model: SparseModel

    def __init__(
        self,
        n_components: int | None = None,
        *,
        alpha: float = 1.0,
        ridge: float = 1.0,
        n_nonzero: int | None = None,
        standardize: bool = False,
        max_iter: int = 500,
        tol: float = 1e-5,
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.alpha = alpha
        self.ridge = ridge
        self.n_nonzero = n_nonzero
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
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
        k = self._count()
        self._penalty(source.info.n_features)
        self._effort()
        check_shape(source.info, k)
        limits = limits_of(self.memory, scheduler)
        plan = plan_sparse(source.info, k, limits, standardize=bool(self.standardize))
        return with_scores(plan, source.info, limits, held=0) if scores else plan

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        penalty, effort = self._penalty(plan.n_features), self._effort()
        precision, standardize = cast("Precision", plan.precision), bool(self.standardize)
        self.solver_ = plan.solver
        if plan.solver == "sketch":
            self._adopt(self._from_directions(engine, plan, penalty, effort))
            return
        model = sparse_pca.solve(plan.n_features, self._count(), penalty, effort, engine.run, precision=precision, standardize=standardize)
        self._adopt(model)

    def _from_directions(self, engine: Engine, plan: Plan, penalty: Penalty, effort: Effort) -> SparseModel:
        """Return the model of a table too wide for its covariance."""
        k = cast("int", plan.n_components)
        options = Options(min(directions_for(k), plan.n_rows, plan.n_features), standardize=bool(self.standardize))
        precision, sums = cast("Precision", plan.precision), cast("Precision", plan.sums)
        # One product after the sketch: the leading directions are good then, and the others only stand for what is beside them.
        search = sketch.Effort(plan.rank or 1, precision, sums, tol=1.0, seed=self.random_state)
        pca, _ = sketch.solve(plan.n_features, options, engine.run, search)
        return sparse_wide.model_of(pca, k, penalty, effort)

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows that scores stand for.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores.
        """
        check_is_fitted(self)
        return rows_of_scores(X, self._model)

    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values."""
        return {
            "variance_kept": float(self.explained_variance_ratio_.sum()),
            "explained_variance_ratio": self.explained_variance_ratio_[:20].tolist(),
            "nonzeros": np.count_nonzero(self.components_, axis=1)[:20].tolist(),
            "iterations": self.n_iter_,
            "standardized": bool(self.standardize),
        }

    def _stored(self) -> dict[str, Array]:
        return {f"model/{name}": array for name, array in self._model.to_arrays().items()}

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        fitted = SparseModel.from_arrays(model)
        self.n_features_in_ = fitted.n_features
        self._adopt(fitted)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model."""
        return hasattr(self, "_model")

    def _transform_block(self, block: Array) -> Array:
        return self._model.transform(block)

    @property
    def _n_features_out(self) -> int:
        return self._model.n_components

    def _count(self) -> int | None:
        k = as_component_count(self.n_components)
        if k is not None and not isinstance(k, int):
            raise UsageError(f"n_components must be an integer of 1 or more, or None, for sparse components, not {k!r}")
        return k

    def _penalty(self, n_features: int) -> Penalty:
        for name in ("alpha", "ridge"):
            value = getattr(self, name)
            if isinstance(value, (bool, str)) or not 0 <= value < np.inf:
                raise UsageError(f"{name} must be a number of at least 0, not {value!r}")
        count = self.n_nonzero
        if count is not None and (isinstance(count, (bool, str, float)) or not 1 <= count <= n_features):
            raise UsageError(f"n_nonzero={count!r} must be an integer between 1 and n_features={n_features}, or None")
        return Penalty(float(self.alpha), float(self.ridge), None if count is None else int(count))

    def _effort(self) -> Effort:
        if isinstance(self.max_iter, (bool, str, float)) or self.max_iter < 1:
            raise UsageError(f"max_iter must be an integer of 1 or more, not {self.max_iter!r}")
        if isinstance(self.tol, (bool, str)) or not 0 <= self.tol < np.inf:
            raise UsageError(f"tol must be a number of at least 0, not {self.tol!r}")
        if not isinstance(self.standardize, (bool, np.bool_)):
            raise UsageError(f"standardize must be true or false, not {self.standardize!r}")
        return Effort(int(self.max_iter), float(self.tol))

    def _adopt(self, model: SparseModel) -> None:
        """Set the fitted attributes."""
        self._model = model
        self.components_, self.mean_, self.scale_ = model.components, model.mean, model.scale
        self.explained_variance_ = model.explained_variance
        self.explained_variance_ratio_ = model.explained_variance_ratio
        self.n_components_, self.n_samples_, self.n_iter_ = model.n_components, model.n_samples, model.n_iter
