"""Factor analysis with scikit-learn's interface, for data of any size and with missing values."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from streampca.engine import Engine
from streampca.errors import UsageError
from streampca.estimators.latent import LatentEstimator, passes_from
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.models.rotation import quartimax, varimax
from streampca.planning import Plan
from streampca.solvers import factor_analysis as solver
from streampca.solvers.spectrum import check_sum_of_weights, fix_signs
from streampca.statistics import Scatter

_ROTATIONS = {"varimax": varimax, "quartimax": quartimax}


class FactorAnalysis(LatentEstimator):
    """Factor analysis by maximum likelihood, of more data than memory, with missing values or without.

    The model is x = W z + mean + e with z ~ N(0, I) and noise of its own variance for each feature. Without missing entries, and where
    the d x d covariance fits the memory, one pass is enough; else each iteration of EM is a pass, ten or so as a rule.
    A fit in one pass keeps its sums: ``partial_fit``, ``merge`` and ``subtract`` read only the rows at hand.

    Parameters
    ----------
    n_components : int, optional
        Number of factors; by default one less than samples or features, whichever are fewer.
    max_iter : int
        The most iterations that are passes over the data.
    tol : float
        The relative gain in log-likelihood at which they end.
    rotation : {None, "varimax", "quartimax"}
        How the factors are turned for reading; the model is the same. By default W^T W / noise_variance is diagonal.
    missing : float, optional
        A number that stands for missing entries, such as -999, beside NaN.
    unobserved : {"error", "drop"}
        What to do about a column without any value: refuse it, or leave it out: it then has no loadings and its mean is NaN.
    warm_start : bool, str or Path
        Where EM starts: at the last fit of this estimator, or at a stored model, instead of at random: fewer iterations when few rows are
        new. It has no effect where the covariance tells all.
    memory : str or int, optional
        Memory budget of the process, such as ``"2GiB"``; a fit that cannot keep it is refused. By default half of what is free.
    random_state : int, optional
        Seed of where EM starts; the answer is the same for the same seed. By default 0.

    Attributes
    ----------
    W_ : ndarray of shape (n_features, n_components)
        Loadings, the largest factor first, each with its entry of largest magnitude positive.
    components_ : ndarray of shape (n_components, n_features)
        Their transpose, as in :class:`sklearn.decomposition.FactorAnalysis`.
    noise_variance_ : ndarray of shape (n_features,)
        Variance of the noise of each feature.
    mean_, loglike_, n_iter_, converged_, n_samples_, n_skipped_, n_components_, n_features_in_, feature_names_in_
        As in :class:`streampca.ProbabilisticPCA`.
    n_passes_, plan_, solver_
        How it was fitted. ``solver_`` is ``"em-missing"`` where entries were missing.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 1)) @ np.ones((1, 4)) + rng.normal(size=(500, 4)) * np.array([0.1, 0.5, 1, 2])
    >>> FactorAnalysis(n_components=1).fit(X).noise_variance_.round(1)
    array([0. , 0.2, 1. , 4. ])
    """

    kind: ClassVar[str] = "fa"
    per_feature_noise: ClassVar[bool] = True
    noise_variance_: Floats

    def __init__(
        self,
        n_components: int | None = None,
        *,
        max_iter: int = 100,
        tol: float = 1e-6,
        rotation: Literal["varimax", "quartimax"] | None = None,
        missing: float | None = None,
        unobserved: Literal["error", "drop"] = "error",
        warm_start: bool | str | os.PathLike[str] = False,
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.max_iter = max_iter
        self.tol = tol
        self.rotation = rotation
        self.missing = missing
        self.unobserved = unobserved
        self.warm_start = warm_start
        self.memory = memory
        self.random_state = random_state

    def _how(self) -> str:
        if self.rotation is not None and self.rotation not in _ROTATIONS:
            raise UsageError(f"rotation must be None, 'varimax' or 'quartimax', not {self.rotation!r}")
        return "auto"

    def _fit_complete(self, engine: Engine, plan: Plan) -> tuple[LatentModel, Scatter | None]:
        r, d = cast("int", plan.n_components), engine.source.info.n_features
        if plan.solver == "em":
            start = self._start(np.ones(d, bool), plan)
            how: dict[str, Any] = {"tol": self.tol, "max_iter": int(self.max_iter), "seed": self._seed}
            return solver.factor_em_by_passes(passes_from(start, engine.run), d, r, start=start, **how), None
        scatter = engine.run("scatter", Scatter(d))
        return self._model_of(scatter, r), scatter

    @property
    def _by_matrix(self) -> str:
        return "profile"

    def _model_of(self, scatter: Scatter, r: int) -> LatentModel:
        n = scatter.count
        check_sum_of_weights(n, scatter.rows)
        # No iteration reads the data, so more digits are to be had.
        return solver.factor_profile(scatter.scatter / n, scatter.mean, n, r, tol=1e-4 * self.tol, max_iter=20 * int(self.max_iter))

    def _finished(self, model: LatentModel) -> LatentModel:
        return model if self.rotation is None else replace(model, W=_turned(model.W, self.rotation))

    def _adopt_components(self, model: LatentModel) -> None:
        self.components_ = model.W.T


def _turned(W: Floats, rotation: str) -> Floats:
    """Return rotated loadings, the largest factor first, with their signs fixed."""
    turned = _ROTATIONS[rotation](W)[0]
    order = np.argsort(-np.einsum("ij,ij->j", turned, turned), kind="stable")
    return fix_signs(turned[:, order].T).T
