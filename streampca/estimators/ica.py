"""Independent component analysis with scikit-learn's interface, for data of any size: whitened by PCA out of core, then rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler, map_rows
from streampca.errors import UsageError
from streampca.estimators.base import StreamingTransformer
from streampca.estimators.inverse import rows_of_scores
from streampca.estimators.pca import PCA
from streampca.models.ica import ICAModel
from streampca.models.pca import PCAModel
from streampca.planning import Plan, limits_of, with_scores
from streampca.planning.ica import plan_ica
from streampca.solvers import ica
from streampca.sources.base import Array, Source


class ICA(StreamingTransformer):
    """Unmix signals: independent sources of unit variance, of more data than memory.

    The rows are made white by an exact PCA out of core. Then the white scores are rotated by the symmetric FastICA (logcosh), on all
    rows if they fit the memory, else on a sample of them, spread evenly over the data and drawn at random within: one pass more, whatever
    the number of iterations.

    Parameters
    ----------
    n_components : int, float, str or None
        Number of sources, as in :class:`PCA`. None as many as there can be.
    solver : {"auto", "covariance", "tsqr", "sketch", "dual"}
        How the PCA is computed.
    max_rows : int, optional
        Rows to find the rotation from, at most; by default what the memory holds, up to about a million.
    max_iter : int
        Iterations, at most; they read no data.
    tol : float
        The largest 1 - cos(angle) that a source may still turn by.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    random_state : int, optional
        Seed of the first rotation and of the sample.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        What centred rows are multiplied by to get the sources.
    mixing_ : ndarray of shape (n_features, n_components)
        What the sources are multiplied by to get the rows, largest column first, its largest entry positive.
    mean_, whitening_, n_components_, n_samples_, n_features_in_, feature_names_in_
        As in :class:`sklearn.decomposition.FastICA` and :class:`PCA`.
    explained_variance_ratio_ : ndarray
        The part of the variance that each source carries.
    n_rows_used_ : int
        Rows that the rotation was found from.
    n_iter_, n_passes_, plan_, solver_
        How it was fitted.

    Examples
    --------
    >>> import numpy as np
    >>> t = np.linspace(0, 8, 2000)
    >>> signals = np.c_[np.sin(2 * t), np.sign(np.sin(3 * t))]
    >>> ica = ICA().fit(signals @ np.array([[1.0, 2.0], [2.0, 1.0]]))
    >>> ica.mixing_.round(0)
    array([[2., 1.],
           [1., 1.]])
    """

    kind: ClassVar[str] = "ica"
    _model: ICAModel

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        solver: str = "auto",
        max_rows: int | None = None,
        max_iter: int = 200,
        tol: float = 1e-6,
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.max_rows = max_rows
        self.max_iter = max_iter
        self.tol = tol
        self.memory = memory
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> ICA:  # type: ignore[override]  # weights have no meaning here
        """Fit to all rows of X.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows. A path may be a glob, and may name a dataset: ``runs/*.h5::X``.
        y : ignored
        """
        return self.fit_source(self._open(X, reset=True))

    def fit_transform(self, X: Any, y: Any = None) -> Any:  # type: ignore[override]
        """Fit to X and return its sources (lazily, in a further pass, if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Samples in rows.
        y : ignored
        """
        return self.fit(X).transform(X)

    def plan_for(self, source: Source, *, scheduler: Scheduler | None = None, scores: bool = False) -> Plan:
        """Return what a fit to a source would do, without reading it.

        Parameters
        ----------
        source : Source
            The rows.
        scheduler : Scheduler, optional
            Where it would run.
        scores : bool
            Whether the sources are to be written as well (one more pass).
        """
        self._check(source)
        limits = limits_of(self.memory, scheduler)
        plan, _, _ = plan_ica(self._pca().plan_for(source, scheduler=scheduler), source.info, limits, self.max_rows)
        return with_scores(plan, source.info, limits, held=0) if scores else plan

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        self._check(engine.source)
        white = self._pca()
        white._fit_passes(engine, replace(plan, max_passes=plan.max_passes - 1) if plan.max_passes else plan)
        model = white._model
        del white  # its sums
        rows = self._white_rows(engine, plan, model)
        self.solver_ = plan.solver
        self._adopt(ica.model_of(model, rows, self.random_state, int(self.max_iter), float(self.tol)))

    def _white_rows(self, engine: Engine, plan: Plan, model: PCAModel) -> Array:
        """Return the white scores of all rows, or of a sample that the memory holds, in one pass."""
        info, k = engine.source.info, ica.whitenable(model)
        limits = limits_of(self.memory, engine.scheduler)
        _, wanted, scores = plan_ica(replace(plan, n_components=k), info, replace(limits, budget=plan.budget), self.max_rows)
        kept = ica.KeptRows(numbers := ica.sample_rows(info.n_rows, wanted, self.random_state), np.empty((len(numbers), k)))
        white = replace(
            model,
            components=model.components[:k],
            explained_variance=model.explained_variance[:k],
            explained_variance_ratio=model.explained_variance_ratio[:k],
            singular_values=model.singular_values[:k],
            residuals=model.residuals[:k],
        )
        scheduler = engine.scheduler.limited_to(scores.workers)
        map_rows("white-rows", white.transform, kept.write, engine.source, scores.partition, scheduler, engine.observer, anywhere=False)
        engine.passes.append("white-rows")
        return kept.table

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows that sources mix to.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Sources.
        """
        check_is_fitted(self)
        return rows_of_scores(X, self._model)

    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values."""
        ratios = self.explained_variance_ratio_
        return {
            "variance_kept": float(ratios.sum()),
            "explained_variance_ratio": ratios[:20].tolist(),
            "rows_used": self.n_rows_used_,
            "iterations": self.n_iter_,
        }

    def _stored(self) -> dict[str, Array]:
        return {f"model/{name}": array for name, array in self._model.to_arrays().items()}

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        fitted = ICAModel.from_arrays(model)
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

    def _pca(self) -> PCA:
        return PCA(self.n_components, solver=self.solver, whiten=True, memory=self.memory, random_state=self.random_state)

    def _check(self, source: Source) -> None:
        for name, least in (("max_iter", 1), ("max_rows", 2)):
            value = getattr(self, name)
            if name == "max_rows" and value is None:
                continue
            if isinstance(value, (bool, str, float)) or value < least:
                raise UsageError(f"{name} must be an integer of {least} or more, not {value!r}")
        if isinstance(self.tol, (bool, str)) or not 0 <= self.tol < np.inf:
            raise UsageError(f"tol must be a number of at least 0, not {self.tol!r}")
        if source.info.weighted:
            raise UsageError("independent components take no weights of rows: leave them out")

    def _adopt(self, model: ICAModel) -> None:
        """Set the fitted attributes."""
        self._model = model
        self.components_, self.mixing_, self.mean_ = model.unmixing, model.mixing, model.mean
        self.whitening_, self.explained_variance_ratio_ = model.whitening, model.explained_variance_ratio
        self.n_components_, self.n_samples_, self.n_rows_used_ = model.n_components, model.n_samples, model.n_rows_used
        self.n_iter_ = model.n_iter
