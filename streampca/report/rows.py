"""One more pass over the rows of a fitted PCA: what a report tells of them, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from streampca.engine import Engine, Scheduler, choose_scheduler
from streampca.errors import UsageError
from streampca.estimators.base import StreamingTransformer
from streampca.events import Observer
from streampca.models.pca import PCAModel
from streampca.planning import limits_of
from streampca.planning.scores import plan_scores
from streampca.statistics.row_summary import Frame, RowSummary

LEVEL = 0.99  # of ordinary rows, that stay below the limits


def summarize_rows(
    estimator: StreamingTransformer, X: Any, *, scheduler: Scheduler | None = None, observer: Observer | None = None
) -> RowSummary:
    """Return densities, histograms of T2 and SPE, a sample, and the most outlying rows of X under a fitted PCA, in one pass.

    Parameters
    ----------
    estimator : PCA
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
    statistic = RowSummary(frame_of(estimator))
    source = estimator._open(X, reset=False)
    scheduler = scheduler or choose_scheduler()
    limits = limits_of(estimator.memory, scheduler)
    width = len(statistic.sample.scores.T) + 64  # what an update holds per row beside its scores, as columns
    plan = plan_scores(source.info, estimator.n_components_ + width, budget=limits.budget, workers=limits.workers, baseline=limits.baseline)
    engine = Engine(source, plan.partition, scheduler.limited_to(plan.workers), observer or Observer())
    return engine.run("summary", statistic)


def frame_of(estimator: Any) -> Frame:
    """Return the model as seen from a row, with the limits that 99% of normally distributed rows stay below."""
    model = getattr(estimator, "_model", None)
    if not isinstance(model, PCAModel):
        raise UsageError(f"a summary of rows needs a fitted PCA, not {type(estimator).__name__}: T2 and SPE are those of its components")
    t2_limit = _chi2_quantile(max(model.n_components, 1))
    return Frame(model.mean, model.scale, model.components, model.explained_variance, t2_limit, spe_limit(model))


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
