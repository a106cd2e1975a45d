"""What a report tells of the rows: gathered while their scores are written, or in one more pass, in bounded memory."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from streampca.engine import Engine, Scheduler, choose_scheduler
from streampca.errors import UsageError
from streampca.estimators import PCA
from streampca.estimators.base import StreamingTransformer
from streampca.events import Observer
from streampca.models.ica import ICAModel
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.planning import limits_of
from streampca.planning.scores import plan_scores
from streampca.sources.base import Source
from streampca.sources.views import Rows
from streampca.statistics.gathered import Gathered
from streampca.statistics.row_summary import Frame, RowSummary
from streampca.statistics.score_density import ScoreDensity

LEVEL = 0.99  # of ordinary rows, that stay below the limits
KERNEL_ROWS = 100_000  # at most, about: scores of a kernel cost as much as its fit


@overload
def summarize_rows(estimator: PCA, X: Any, *, scheduler: Scheduler | None = ..., observer: Observer | None = ...) -> RowSummary: ...
@overload
def summarize_rows(
    estimator: StreamingTransformer, X: Any, *, scheduler: Scheduler | None = ..., observer: Observer | None = ...
) -> ScoreDensity: ...
def summarize_rows(
    estimator: StreamingTransformer, X: Any, *, scheduler: Scheduler | None = None, observer: Observer | None = None
) -> ScoreDensity:
    """Return what a report tells of the rows of X under a fitted model, in one pass.

    Of a PCA: the density of the first two scores, histograms of T2 and SPE, a sample, and the most outlying rows. Of an ICA the density
    alone, and of a KernelPCA that of about 100,000 rows, evenly spread.

    Parameters
    ----------
    estimator : PCA, KernelPCA or ICA
        A fitted estimator.
    X : array-like, Dask array, Source, or path
        The rows: those of the fit, or others with the same columns.
    scheduler, observer : optional
        Where to run, and whom to tell; by default as in ``fit``, and nobody.

    Examples
    --------
    >>> import numpy as np
    >>> from streampca import PCA
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> X[17] += 50
    >>> summarize_rows(PCA(2).fit(X[:10]), X).outlying.row[0]
    np.int64(17)
    """
    statistic = empty_summary(estimator)
    if statistic is None:
        raise UsageError(f"a summary of rows needs a fitted PCA, KernelPCA or ICA, not {type(estimator).__name__}")
    source = _enough(estimator, estimator._open(X, reset=False))
    scheduler = scheduler or choose_scheduler()
    limits = limits_of(estimator.memory, scheduler)
    baseline = limits.baseline + estimator._transform_bytes(limits.workers) + Gathered(statistic).memory(limits.workers)
    plan = plan_scores(source.info, estimator._n_features_out, budget=limits.budget, workers=limits.workers, baseline=baseline)
    engine = Engine(source, plan.partition, scheduler.limited_to(plan.workers), observer or Observer())
    return engine.run("summary", statistic)


def empty_summary(estimator: Any) -> ScoreDensity | None:
    """Return an empty summary of rows under a fitted model, or None if there is nothing to tell of them."""
    model = getattr(estimator, "_model", None)
    if isinstance(model, PCAModel):
        return RowSummary(frame_of(estimator))
    if isinstance(model, (KernelModel, ICAModel)):
        return ScoreDensity(model.transform, _deviations(model))
    return None


def _deviations(model: KernelModel | ICAModel) -> NDArray[np.float64]:
    """Return the standard deviations of the first two scores; 0 where there is none."""
    if isinstance(model, ICAModel) or model.whiten:
        found = np.ones(model.n_components)
    else:
        found = np.sqrt(np.maximum(model.eigenvalues, 0.0) / max(model.weight - 1, 1.0))
    return np.pad(found[:2], (0, max(2 - len(found), 0)))


def _enough(estimator: Any, source: Source) -> Source:
    """Return the rows, or of a kernel some of them."""
    n = source.info.n_rows
    few = isinstance(estimator._model, KernelModel) and n >= 2 * KERNEL_ROWS
    return Rows(source, 0, n, n // KERNEL_ROWS) if few else source


def frame_of(estimator: Any) -> Frame:
    """Return the model as seen from a row, with the limits that 99% of normally distributed rows stay below."""
    model = getattr(estimator, "_model", None)
    if not isinstance(model, PCAModel):
        raise UsageError(f"a summary of rows needs a fitted PCA, not {type(estimator).__name__}: T2 and SPE are those of its components")
    t2_limit = _chi2_quantile(max(model.n_components, 1))
    whitening = model._whitening if model.whiten else None
    return Frame(model.mean, model.scale, model.components, model.explained_variance, t2_limit, spe_limit(model), whitening)


def spe_limit(model: PCAModel) -> float:
    """Return the limit of SPE by Box's approximation: g chi2(h), with the mean and variance of a sum of squares of the tail's variances.

    What is not known of the tail but its sum is taken as equal in all directions.
    """
    tail = _tail_variances(model)
    first, second = tail.sum(), np.square(tail).sum()
    if first <= 1e-14 * model.total_variance or second == 0:
        return float("inf")
    return float(second / first * _chi2_quantile(first**2 / second))


def _tail_variances(model: PCAModel) -> NDArray[np.float64]:
    k, known = model.n_components, model.explained_variance if model.spectrum is None else model.spectrum
    rank = min(model.n_samples - 1, model.n_features)
    rest = max(model.total_variance - float(known.sum()), 0.0)
    unknown = max(rank - len(known), 0)
    return np.concatenate([np.maximum(known[k:rank], 0.0), np.full(unknown, rest / max(unknown, 1))])


def _chi2_quantile(degrees: float) -> float:
    return float(2 * gammaincinv(degrees / 2, LEVEL))
