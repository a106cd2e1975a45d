"""Kernel PCA as a scikit-learn class: exact for few rows, by landmarks or random features in one pass for any number."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast, get_args

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Engine, Scheduler
from streampca.errors import NonFiniteError, UsageError, did_you_mean
from streampca.estimators.base import as_component_count
from streampca.estimators.inverse import rows_of_scores
from streampca.estimators.updatable import UpdatableTransformer, restored
from streampca.kernels import FeatureMap, FourierMap, Kernel, make_kernel, sample_rows
from streampca.kernels.landmarks import Method, Sample, sample_size
from streampca.models.kernel import INVERSES, Inverse, KernelModel
from streampca.models.kernel_basis import Basis
from streampca.planning import Plan, limits_of, plan_pca
from streampca.planning import check_shape as check_table
from streampca.planning.kernel import ERROR_ROWS, KernelRequest, plan_kernel, transform_bytes
from streampca.solvers import kernel_pca as solver
from streampca.solvers.covariance import Run
from streampca.sources import open_source
from streampca.sources.base import Array, Source, SourceInfo
from streampca.sources.mapped import Mapped
from streampca.statistics import Scatter

METHODS = ("auto", "nystrom", "fourier", "exact")


class KernelPCA(UpdatableTransformer):
    """PCA in the feature space of a kernel, of more rows than memory.

    ``method="exact"`` makes the kernel matrix of all rows, and is scikit-learn's ``KernelPCA``. Beyond some thousand rows the kernel is
    replaced by products of a few features, whose covariance takes one pass over the data: by ``"nystrom"``, the kernel of a row with
    landmarks, or by ``"fourier"``, random features. ``approximation_error_`` tells what that leaves out.
    Such a fit keeps its sums: ``partial_fit``, ``merge`` and ``subtract`` map more rows with the landmarks or features of the first fit.

    Parameters
    ----------
    n_components : int, float, str or None
        Number of components, which may be larger than that of the columns; or as in :class:`PCA` a share of the variance, or a criterion.
        None: all with eigenvalues above zero, at most as many as there are landmarks or random features (rows, for the exact method).
    kernel : {"linear", "rbf", "laplacian", "polynomial", "sigmoid", "cosine"} or callable
        A name, or a function of two blocks of rows that returns the matrix of their kernel values (not for random features; it cannot be
        stored).
    gamma : float, "scale", "median" or None
        None is 1 / n_features; ``"scale"`` is 1 / (n_features * variance), ``"median"`` has the median distance of two rows, both
        from a sample.
    degree, coef0 : float
        Of the polynomial and sigmoid kernels.
    method : {"auto", "nystrom", "fourier", "exact"}
        ``"auto"``: exact up to 2,000 rows, if the kernel matrix fits the memory, rows have no weights, and no number of landmarks or random
        features is given; else Nystrom (random features if their number is given).
    n_landmarks : int, optional
        Rows that stand for all. By default 8 sqrt(n_samples), but from 500 to 2,000, and 4 for each component; fewer if the memory asks
        for it.
    landmarks : {"auto", "pivoted", "uniform", "kmeans++", "leverage"}, str or Path
        How they are chosen of a sample of the rows: see ``streampca.kernels.choose_landmarks``. Or a stored kernel PCA by features: its
        kernel, and its landmarks or random features, are taken as they are, so that the fits of several places can be merged.
    n_random_features : int, optional
        An even number; by default as ``n_landmarks``.
    orthogonal : bool, optional
        Orthogonal random frequencies: by default for rbf, where they have the smaller error.
    fit_inverse_transform : bool
        Learn the way back from scores to rows, by kernel ridge regression on at most 2,000 rows.
    alpha : float or "auto"
        Ridge of that regression; ``"auto"`` has the smallest leave-one-out error.
    whiten : bool
        Scale scores to unit variance.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    random_state : int, optional
        Seed of the sample, the landmarks and the random features. None is 0: the same data gives the same bits.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components,)
        Of the centred kernel matrix, largest first, as scikit-learn has them.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        The part of the variance in feature space.
    approximation_error_ : dict
        ``"frobenius"``: the error of the kernel matrix, relative, on pairs of sampled rows; ``"uncaptured_trace"``: the share of its trace
        that is left out (with random features 0 by construction).
    landmarks_ : ndarray of shape (n_landmarks, n_features) or None
        All rows for the exact method, None for random features.
    gamma_ : float or None
        As a number, if the kernel has one.
    negative_share_ : float
        How much of the spectrum was negative, and dropped: for kernels that are not positive semi-definite.
    method_, n_components_, n_samples_, n_features_in_, feature_names_in_, n_passes_, plan_, solver_
        How it was fitted; ``method_`` is ``solver_``.

    Examples
    --------
    >>> import numpy as np
    >>> angles = np.linspace(0, 2 * np.pi, 40)
    >>> ring = np.c_[np.cos(angles), np.sin(angles)]
    >>> scores = KernelPCA(1, gamma=2).fit_transform(np.vstack([ring, 0.2 * ring]))[:, 0]
    >>> bool((scores[:40] * scores[40:] < 0).all())  # the sign of one component tells the rings apart
    True
    """

    kind: ClassVar[str] = "kpca"
    kept_by: ClassVar[str] = "method='nystrom' or 'fourier'"
    _model: KernelModel
    _state: Scatter | None
    _basis: Basis | None = None

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        kernel: str | Callable[[Array, Array], Array] = "rbf",
        gamma: float | str | None = None,
        degree: float = 3,
        coef0: float = 1,
        method: str = "auto",
        n_landmarks: int | None = None,
        landmarks: str | os.PathLike[str] = "auto",
        n_random_features: int | None = None,
        orthogonal: bool | None = None,
        fit_inverse_transform: bool = False,
        alpha: float | str = "auto",
        whiten: bool = False,
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.method = method
        self.n_landmarks = n_landmarks
        self.landmarks = landmarks
        self.n_random_features = n_random_features
        self.orthogonal = orthogonal
        self.fit_inverse_transform = fit_inverse_transform
        self.alpha = alpha
        self.whiten = whiten
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
        self._check()
        limits = limits_of(self.memory, scheduler)
        return plan_kernel(source.info, self._request(source.info, scores), limits)

    def _request(self, info: SourceInfo, scores: bool) -> KernelRequest:
        k = as_component_count(self.n_components)
        if isinstance(k, int) and k < 1:
            raise UsageError(f"n_components={k} must be 1 or more")
        check_table(info, None if isinstance(k, int) else k)
        shared = self._shared()
        if shared is not None:
            features: Any = shared._fixed.features
            count = features.n_landmarks if shared.solver_ == "nystrom" else features.n_features_out
            return KernelRequest(features.kernel, k, cast("Any", shared.solver_), count, bool(self.fit_inverse_transform), scores)
        gamma: Any = 1.0 if isinstance(self.gamma, str) else self.gamma
        make_kernel(self.kernel, n_features=info.n_features, gamma=cast("Any", self.gamma), sample=np.ones((2, info.n_features)))
        kernel = make_kernel(self.kernel, n_features=info.n_features, gamma=gamma, degree=self.degree, coef0=self.coef0)
        method: Any = "fourier" if self.method == "auto" and self.n_random_features is not None else self.method
        count = self.n_random_features if method == "fourier" else self.n_landmarks
        if method == "fourier":
            FourierMap.draw(kernel, 1, 2 if count is None else count, 0, orthogonal=self.orthogonal)  # says what does not go together
        if method == "exact" and info.weighted:
            raise UsageError("method='exact' takes no weights of rows: use method='nystrom'")
        return KernelRequest(kernel, k, method, None if count is None else int(count), bool(self.fit_inverse_transform), scores)

    def _fit_passes(self, engine: Engine, plan: Plan) -> None:
        self._check()
        k: Any = as_component_count(self.n_components)
        if plan.solver == "exact":
            model, rows = self._exactly(engine, k)
            state = basis = None
        else:
            model, state, basis, rows = self._by_features(engine, plan, k)
        self._take_over(model, rows, state, basis, plan.solver)

    def _take_over(self, model: KernelModel, rows: Array, state: Scatter | None, basis: Basis | None, how: str) -> None:
        """Have the model, finished, and what it came from."""
        if self.fit_inverse_transform:
            model = solver.with_preimage(model, rows, cast("Any", self.alpha))
        model = replace(model, whiten=bool(self.whiten))
        self.solver_ = how
        self._warn(model)
        self._adopt(model, state, basis)

    def _exactly(self, engine: Engine, k: Any) -> tuple[KernelModel, Array]:
        info = engine.source.info
        rows = engine.collect("rows", _as_floats, info.n_features)
        try:
            return solver.exactly(self._kernel(rows), rows, k), rows
        except NonFiniteError as error:
            raise error.at(0, info.feature_names) from None

    def _shared(self) -> Self | None:
        """Return the stored fit whose features are to be taken, if one is named instead of a way to choose landmarks."""
        return None if self.landmarks in get_args(Method) else type(self)._load(self.landmarks)

    def _with_features_of(self, basis: Basis, engine: Engine, k: Any) -> tuple[KernelModel, Scatter, Basis, Array]:
        """Fit with the features of another fit; passes are named after them, so that none of other features is gone on with."""
        mark = basis.streamed.digest[:8]

        def over(mapped: FeatureMap) -> tuple[Run, SourceInfo]:
            view = Mapped(engine.source, mapped)
            run = engine.over(view, engine.partition).run
            return lambda name, statistic: run(f"{name}-of-{mark}", statistic), view.info

        model, sums = solver.by_features(basis.features, over, k, basis.held)
        rows = basis.held if basis.sample is None else basis.sample
        return model, sums, replace(basis, sample=rows if self.fit_inverse_transform else None), rows

    def _by_features(self, engine: Engine, plan: Plan, k: Any) -> tuple[KernelModel, Scatter, Basis, Array]:
        shared = self._shared()
        if shared is not None:
            return self._with_features_of(shared._fixed, engine, k)
        source, count = engine.source, cast("int", plan.rank)
        n = source.info.n_rows
        sample = sample_rows(source, min(sample_size(count, n) + ERROR_ROWS, n), self._seed)
        source.release()
        engine.passes.append("landmarks" if plan.solver == "nystrom" else "sample")
        kernel = self._kernel(sample.rows)
        features, held = self._features(source, kernel, sample, plan.solver, count)
        if plan.solver == "nystrom" and self.n_landmarks is not None and self.n_landmarks > n:
            warnings.warn(f"n_landmarks={self.n_landmarks:,} is more than the {n:,} rows: all of them are landmarks", stacklevel=2)

        def over(mapped: FeatureMap) -> tuple[Run, SourceInfo]:
            view = Mapped(source, mapped)
            return engine.over(view, engine.partition).run, view.info

        model, sums = solver.by_features(features, over, k, held)
        kept = solver.preimage_rows(sample.rows).copy() if self.fit_inverse_transform else None
        return model, sums, Basis(features, held, kept), sample.rows

    # --- more rows ---------------------------------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any = None, *, sample_weight: Any = None) -> Self:
        """Fold more rows into a fit by landmarks or random features: its features stay those of the first rows, the rest is exact.

        The result is that of one fit to all rows seen so far with the landmarks (or random features, and the gamma) of the first call,
        so these rows should be many, and like those that come. ``approximation_error_["frobenius"]`` is measured on them.
        Several places have the same features if one of them fits, and the others make their sums with its ``part_of``, to be merged.
        After an exact fit by ``method="auto"`` all rows of that fit are landmarks.

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            More samples; in the first call at least as many as components.
        y : ignored
        sample_weight : array-like, Dask array, Source, or path, optional
            How often each row counts.
        """
        if self.method == "auto" and getattr(self, "method_", "") == "exact":
            self._keep_all_landmarks()
        return super().partial_fit(X, y, sample_weight=sample_weight)

    def _keep_all_landmarks(self) -> None:
        """Go on from an exact fit: by landmarks, which are all rows so far, and so as exact as before."""
        rows = np.asarray(self._model.landmarks)
        few = rows[:: -(-len(rows) // ERROR_ROWS)]
        self._basis = Basis(solver.nystrom_map(self._model.kernel, rows), few, rows if self.fit_inverse_transform else None)
        self.solver_ = "nystrom"
        self._state = self.part_of(open_source(rows))._state

    def _begin(self, source: Source) -> Self:
        self._check()
        request = self._request(source.info, scores=False)
        if request.method == "exact":
            raise UsageError(f"method='exact' keeps no sums, so no rows could be added: fit with {self.kept_by}")
        if request.method == "auto":
            request = replace(request, method="nystrom")
        return self.fit_source(source, plan=plan_kernel(source.info, request, limits_of(self.memory)))

    def plan_part(self, source: Source, *, scheduler: Scheduler | None = None) -> Plan:
        """Return what ``part_of`` would do, without reading the source."""
        info = Mapped(source, self._fixed.streamed).info
        how: dict[str, Any] = {"solver": "covariance", "precision": "float64", "scheduler": scheduler, "min_rows": 1}
        plan = plan_pca(info, None, memory=self.memory, **how)
        return replace(plan, method=self.kind, solver=self.solver_, n_features=source.info.n_features, rank=info.n_features)

    @property
    def _fixed(self) -> Basis:
        if self._basis is None:
            raise UsageError(f"this fit has no landmarks or random features to map rows with: fit with {self.kept_by}")
        return self._basis

    def _like(self) -> Self:
        part = super()._like()
        part._basis = self._basis
        return part

    def _accumulate(self, engine: Engine, plan: Plan) -> Scatter:
        streamed = self._fixed.streamed
        return engine.over(Mapped(engine.source, streamed), engine.partition).run("scatter", Scatter(streamed.n_features_out))

    def _from_state(self, state: Scatter) -> Self:
        basis, k = self._fixed, as_component_count(self.n_components)
        model = solver.model_of_sums(basis.features, state, k, basis.held)
        self._take_over(model, basis.held if basis.sample is None else basis.sample, state, basis, self.solver_)
        return self

    def _check_alike(self, other: Self) -> None:
        if self._fixed.streamed.digest != other._fixed.streamed.digest:
            raise UsageError(
                "the two fits have different landmarks, random features or kernels, so their sums do not add up: make the sums of the "
                "other rows with part_of of one of the fits, or fit all rows again"
            )

    def _features(self, source: Source, kernel: Kernel, sample: Sample, method: str, count: int) -> tuple[Any, Array]:
        """Return the feature map, and rows to measure its error on."""
        if method == "fourier":
            origin = sample.rows.mean(axis=0, dtype=np.float64)
            made = FourierMap.draw(kernel, source.info.n_features, count, self._seed, origin=origin, orthogonal=self.orthogonal)
            return made, sample.rows[:: -(-len(sample.rows) // ERROR_ROWS)].copy()
        chosen, held = solver.landmarks_of(source, kernel, sample, count, cast("Method", self.landmarks), self._seed)
        return solver.nystrom_map(kernel, chosen.points), held

    def _kernel(self, sample: Array) -> Kernel:
        gamma: Any = self.gamma
        return make_kernel(self.kernel, n_features=sample.shape[1], gamma=gamma, degree=self.degree, coef0=self.coef0, sample=sample)

    def inverse_transform(self, X: Any, *, method: str = "ridge") -> Any:
        """Return rows that scores stand for: pre-images (lazily if X is lazy).

        Parameters
        ----------
        X : array-like, Dask array, Source, or path
            Scores.
        method : {"ridge", "fixed-point"}
            By the regression of ``fit_inverse_transform``; or, for the rbf kernel with landmarks or the exact method, the row whose image
            is nearest, from there (or from the mean of the landmarks that weigh most).
        """
        check_is_fitted(self)
        if method not in INVERSES:
            raise UsageError(
                f"method must be one of {', '.join(map(repr, INVERSES))}, not {method!r}.{did_you_mean(str(method), INVERSES)}"
            )
        return rows_of_scores(X, _Inverse(self._model, method))

    def summary(self) -> dict[str, Any]:
        """Return the facts of the fit as plain values."""
        ratios, model = self.explained_variance_ratio_, self._model
        count = len(model.matrix)
        return {
            "variance_kept": float(ratios.sum()),
            "explained_variance_ratio": ratios[:20].tolist(),
            "eigenvalues": self.eigenvalues_[:20].tolist(),
            "kernel": model.kernel.name,
            "gamma": self.gamma_,
            "kernel_features": {"exact": None, "nystrom": f"{count:,} landmarks", "fourier": f"{count:,} random features"}[self.method_],
            "frobenius_error": model.frobenius_error,
            "uncaptured_trace": model.uncaptured_trace,
            "negative_share": model.negative_share,
            "whitened": model.whiten,
            "can_be_updated": self.can_be_updated,
        }

    def _stored(self) -> dict[str, Array]:
        arrays = {f"model/{name}": array for name, array in self._model.to_arrays().items()} | self._stored_state()
        if self._basis is not None and self._state is not None:
            arrays |= {f"state/{name}": array for name, array in self._basis.to_arrays().items()}
        return arrays

    def _attributes(self) -> dict[str, Any]:
        return {"kernel_model": self._model.attributes()}

    def _restore(self, model: dict[str, Array], state: dict[str, Array], attributes: dict[str, Any]) -> None:
        fitted = KernelModel.from_arrays(model, attributes["kernel_model"])
        if not state:
            self._adopt(fitted, None, None)
            return
        basis = Basis.from_arrays(state, fitted)
        sums = {name: array for name, array in state.items() if not name.startswith("basis_")}
        self._adopt(fitted, restored(Scatter, sums, basis.streamed.n_features_out, fitted.weight), basis)

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there is a model."""
        return hasattr(self, "_model")

    def _transform_block(self, block: Array) -> Array:
        return self._model.transform(block)

    def _transform_bytes(self, workers: int) -> int:
        return transform_bytes(self._model.features, self._model.n_components, workers)

    @property
    def _n_features_out(self) -> int:
        return self._model.n_components

    @property
    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    def _check(self) -> None:
        for name, known in (("method", METHODS), ("landmarks", get_args(Method))):
            value = getattr(self, name)
            if value not in known and not (name == "landmarks" and isinstance(value, str | os.PathLike) and Path(value).exists()):
                raise UsageError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}.{did_you_mean(str(value), known)}")
        for name in ("n_landmarks", "n_random_features", "random_state"):
            value, least = getattr(self, name), 0 if name == "random_state" else 1
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least):
                raise UsageError(f"{name} must be None or an integer of {least} or more, not {value!r}")
        for name in ("whiten", "fit_inverse_transform"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise UsageError(f"{name} must be true or false, not {getattr(self, name)!r}")
        alpha: Any = self.alpha
        if alpha != "auto" and (isinstance(alpha, bool | str) or not 0 < alpha < np.inf):
            raise UsageError(f"alpha must be a positive number or 'auto', not {alpha!r}")

    def _warn(self, model: KernelModel) -> None:
        if not model.kernel.definite and model.negative_share > 0:
            warnings.warn(
                f"the {model.kernel.name} kernel is not positive semi-definite on this data: {model.negative_share:.2%} of its spectrum is "
                "negative, and is left out",
                stacklevel=2,
            )

    def _adopt(self, model: KernelModel, state: Scatter | None, basis: Basis | None) -> None:
        """Set the fitted attributes."""
        self._model, self._state, self._basis = model, state, basis
        self.eigenvalues_, self.explained_variance_ratio_ = model.eigenvalues, model.explained_variance_ratio
        self.approximation_error_ = {"frobenius": model.frobenius_error, "uncaptured_trace": model.uncaptured_trace}
        self.landmarks_, self.negative_share_ = model.landmarks, model.negative_share
        self.gamma_: float | None = getattr(model.kernel, "gamma", None)
        self.n_components_, self.n_samples_, self.n_features_in_ = model.n_components, model.n_samples, model.n_features
        self.method_ = self.solver_


class _Inverse:
    """A model with one of its ways back."""

    def __init__(self, model: KernelModel, method: Inverse) -> None:
        self.n_components, self.n_features = model.n_components, model.n_features
        self.inverse_transform = partial(model.inverse_transform, method=method)


def _as_floats(block: Array) -> Array:
    return block.astype(np.float64)
