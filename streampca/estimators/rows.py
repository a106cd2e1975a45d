"""Functions of rows, block by block: of an array at once, of a lazy input lazily, or streamed to a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streampca.engine import Scheduler, Written, map_rows
from streampca.estimators.base import StreamingTransformer
from streampca.estimators.lazy import as_source, is_dask_array, is_lazy, map_lazily
from streampca.events import Observer, default_observer
from streampca.models.pca import scores_dtype
from streampca.planning import Limits
from streampca.planning.scores import plan_scores
from streampca.sinks import Unfinished, open_sink
from streampca.sources.base import Array, Source

Function = Callable[[Array], Array]


def mapped(estimator: StreamingTransformer, function: Function, X: Any, n_columns: int | None, dtype: np.dtype[Any] | None = None) -> Any:
    """Return a function of the rows of X, whose columns must be those of the fit: lazily if X is lazy.

    It gives ``n_columns`` columns (a vector if None) of a dtype, by default that of scores.
    """
    check_is_fitted(estimator)
    if not is_lazy(X):
        return function(estimator._checked(X))
    rows: Any = X if is_dask_array(X) else as_source(X)
    estimator._check_columns(rows)
    given = np.dtype(rows.dtype if is_dask_array(rows) else rows.info.dtype)
    return map_lazily(function, rows, n_columns, scores_dtype(given) if dtype is None else dtype)


def write_rows(
    name: str,
    function: Function,
    source: Source,
    path: str | os.PathLike[str],
    limits: Limits,
    scheduler: Scheduler,
    observer: Observer | None,
    *,
    overwrite: bool,
    unfinished: Unfinished | None,
    n_components: int | None = None,
) -> None:
    """Stream a function of rows that gives rows of the same columns to a file, which appears when it is complete.

    ``n_components`` is the width of what the function makes on its way; ``unfinished`` is where the file grows, to go on after a kill.
    """
    info = source.info
    plan = plan_scores(
        info, info.n_features, budget=limits.budget, workers=limits.workers, baseline=limits.baseline, n_components=n_components
    )
    sink = open_sink(
        path,
        info.n_rows,
        info.n_features,
        scores_dtype(info.dtype),
        chunk_rows=plan.partition.block_rows,
        feature_names=None if info.feature_names is None else list(info.feature_names),
        overwrite=overwrite,
        unfinished=unfinished,
    )
    with sink as out:
        written = None if unfinished is None else Written(unfinished.ranges, unfinished.wrote)
        work = function, out.write, source, plan.partition, scheduler.limited_to(plan.workers), observer or default_observer()
        map_rows(name, *work, anywhere=out.parallel, written=written)
