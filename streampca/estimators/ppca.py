"""Probabilistic PCA with scikit-learn's interface, for data of any size and with missing values."""

from __future__ import annotations

import os
from typing import ClassVar, Literal, cast

import numpy as np

from streampca.engine import Engine
from streampca.errors import UsageError, did_you_mean
from streampca.estimators.latent import LatentEstimator
from streampca.models.latent import LatentModel
from streampca.planning import Plan
from streampca.planning.covariance import Request, kept_vectors
from streampca.planning.latent import REFINE
from streampca.planning.sketch import sketch_precision
from streampca.solvers import likelihood, ppca
from streampca.solvers.covariance import eigenpairs
from streampca.solvers.finish import orthonormal_rows
from streampca.solvers.sketch import first_basis
from streampca.solvers.spectrum import check_sum_of_weights
from streampca.statistics import Scatter
from streampca.statistics.sketch import Sketch

_METHODS = ("auto", "closed-form", "em")
_SMALLEST = 1e-20  # of the largest squared length of a column of W: a smaller one is rounding, without a direction


class ProbabilisticPCA(LatentEstimator):
    """Probabilistic PCA by maximum likelihood, of more data than memory, with missing values or without.

    The model is x = W z + mean + e with z ~ N(0, I) and e ~ N(0, noise_variance I) (Tipping & Bishop 1999). Without missing entries the
    maximum is found in one pass where the d x d covariance fits the memory, and in about four where it does not. With missing entries
    (NaN) it takes one pass per iteration of EM, and is the maximum for the entries that are observed.
    A one-pass fit to complete rows keeps its sums: ``partial_fit``, ``merge`` and ``subtract`` are exact and read only the rows at hand.

    Parameters
    ----------
    n_components : int, optional
        Number of components; by default one less than samples or features, whichever are fewer.
    method : {"auto", "closed-form", "em"}
        From the eigenvectors of the covariance, or by iterations that never lower the likelihood; they agree. Data with missing
        entries is always fitted by EM, and is an error with ``"closed-form"``. Where the covariance does not fit the memory, both
        maximise the likelihood within a subspace that every pass widens.
    max_iter : int
        The most iterations, which are passes over the data if entries are missing or the covariance does not fit.
    tol : float
        The relative gain in log-likelihood at which iterations end. Where the covariance does not fit, the fourth pass also brings
        W W^T to about this relative error, unless neighbouring variances are too close.
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
        Loadings: orthogonal columns, the largest first, with the entry of largest magnitude positive.
    mean_, noise_variance_
        The other parameters of the model. Variances have the divisor n of maximum likelihood.
    components_, explained_variance_ : ndarray
        The directions of W, orthonormal rows, and the model's variances along them (divisor n).
    loglike_ : ndarray
        Total log-likelihood of the observed entries, after each iteration.
    n_iter_, converged_
        How many iterations were made, and whether they were enough.
    n_samples_, n_skipped_
        Rows (or the sum of their weights) that were fitted, and rows without any entry, which were not.
    n_features_in_, feature_names_in_, n_components_, n_passes_, plan_, solver_
        What was fitted and how. ``solver_`` is ``"em-missing"`` where entries were missing.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-1, -1.2], [-2, -1.8], [-3, np.nan], [1, 1.1], [2, 2.1], [3, 2.9]])
    >>> model = ProbabilisticPCA(n_components=1).fit(X)
    >>> model.impute(X)[2].round(1)
    array([-3. , -2.9])
    """

    kind: ClassVar[str] = "ppca"
    per_feature_noise: ClassVar[bool] = False
    noise_variance_: float

    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: Literal["auto", "closed-form", "em"] = "auto",
        max_iter: int = 100,
        tol: float = 1e-6,
        missing: float | None = None,
        unobserved: Literal["error", "drop"] = "error",
        warm_start: bool | str | os.PathLike[str] = False,
        memory: str | int | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.method = method
        self.max_iter = max_iter
        self.tol = tol
        self.missing = missing
        self.unobserved = unobserved
        self.warm_start = warm_start
        self.memory = memory
        self.random_state = random_state

    def _how(self) -> str:
        if self.method not in _METHODS:
            raise UsageError(f"unknown method {self.method!r}: choose one of {', '.join(_METHODS)}.{did_you_mean(self.method, _METHODS)}")
        return self.method

    def _fit_complete(self, engine: Engine, plan: Plan) -> tuple[LatentModel, Scatter | None]:
        r = cast("int", plan.n_components)
        if plan.solver == "subspace":
            return self._by_passes(engine, plan.rank or r, r), None
        scatter = engine.run("scatter", Scatter(engine.source.info.n_features))
        return self._model_of(scatter, r), scatter

    @property
    def _by_matrix(self) -> str:
        return "em" if self.method == "em" else "closed-form"

    def _model_of(self, scatter: Scatter, r: int) -> LatentModel:
        n, d = scatter.count, scatter.n_features
        check_sum_of_weights(n, scatter.rows)
        if self.method == "em":
            # No iteration reads the data, so all digits are to be had.
            multiply = likelihood.by_matrix(scatter.scatter / n, scatter.mean, n)
            most, tol = int(self.max_iter), min(self.tol, 1e-3) ** 2
            return ppca.subspace(multiply, d, r, tol=tol, max_iter=most, refine=most, seed=self._seed)
        spectrum = eigenpairs(scatter, np.ones(d), kept_vectors(d, r))
        share = (n - 1) / n  # from the divisor n - 1 to n
        return ppca.closed_form_model(share * spectrum.variances, spectrum.vectors, share * spectrum.trace, r, scatter.mean, n)

    def _by_passes(self, engine: Engine, rank: int, r: int) -> LatentModel:
        """Return the model of data whose covariance does not fit: a sketch, then products with ever better bases."""
        info = engine.source.info
        sketch = engine.run("sketch", Sketch(info.n_features, rank, sketch_precision(info, Request(r))))
        check_sum_of_weights(float(sketch.count), sketch.centre.rows)
        start, pivot = first_basis(sketch).astype(np.float64), sketch.mean
        del sketch
        refine = min(REFINE, int(self.max_iter))
        passes = likelihood.Passes(engine.run, pivot)
        return ppca.subspace(
            passes, info.n_features, r, start=start, tol=self.tol, max_iter=int(self.max_iter), refine=refine, seed=self._seed
        )

    def _adopt_components(self, model: LatentModel) -> None:
        squares = np.einsum("ij,ij->j", model.W, model.W)
        real = squares > _SMALLEST * squares.max(initial=0.0)
        self.components_ = orthonormal_rows((model.W[:, real] / np.sqrt(squares[real])).T, model.n_components)
        self.explained_variance_ = squares + model.noise
