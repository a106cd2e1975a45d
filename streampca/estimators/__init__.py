"""The scikit-learn classes, the loading of what they saved, and the plans of what they would do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streampca.errors import DataError
from streampca.estimators.base import StreamingTransformer
from streampca.estimators.factor_analysis import FactorAnalysis
from streampca.estimators.ica import ICA
from streampca.estimators.kernel_pca import KernelPCA
from streampca.estimators.pca import PCA
from streampca.estimators.planned import plan_with_methods, with_time
from streampca.estimators.ppca import ProbabilisticPCA
from streampca.estimators.sparse_pca import SparsePCA
from streampca.planning import Plan
from streampca.storage import stored_kind

__all__ = [
    "ICA",
    "METHODS",
    "PCA",
    "FactorAnalysis",
    "KernelPCA",
    "ProbabilisticPCA",
    "SparsePCA",
    "StreamingTransformer",
    "load",
    "plan",
    "with_time",
]

METHODS: dict[str, type[StreamingTransformer]] = {
    PCA.kind: PCA,
    ProbabilisticPCA.kind: ProbabilisticPCA,
    FactorAnalysis.kind: FactorAnalysis,
    SparsePCA.kind: SparsePCA,
    ICA.kind: ICA,
    KernelPCA.kind: KernelPCA,
}  # by the name in configs and on the command line


def load(path: str | os.PathLike[str]) -> StreamingTransformer:
    """Return the fitted estimator that ``save`` stored, after checking versions, shapes and checksums.

    Parameters
    ----------
    path : str or Path
        A model, such as ``model.zarr``.
    """
    kind = stored_kind(path)
    if kind not in METHODS:
        what = "no such model, or not one of streampca's" if kind is None else f"it holds a {kind!r}"
        raise DataError(f"cannot load {os.fspath(path)}: {what}")
    return METHODS[kind]._load(path)


def plan(
    source: Any,
    method: str = "pca",
    n_components: Any = None,
    memory: str | int | None = None,
    *,
    scores: bool = False,
    dataset: str | None = None,
    samples_axis: int = 0,
    weights: Any = None,
    parameters: Mapping[str, Any] | None = None,
    **more: Any,
) -> Plan:
    """Return what a fit would do, without reading the data.

    Parameters
    ----------
    source : Source, path, glob, array or Dask array
        What ``fit`` would be given.
    method : str
        The method, by its name on the command line, such as ``"pca"``.
    n_components
        As in the estimator.
    memory : str or int, optional
        The budget of the process, such as ``"2GiB"``. By default half of what is free.
    scores : bool
        Whether the scores are to be written as well (one more pass).
    dataset, samples_axis, weights
        As in ``open_source``.
    parameters : mapping, optional
        Parameters of the estimator, for one whose name is taken here: ``{"method": "exact"}``.
    **more
        Any other parameter of the estimator, such as ``solver``.

    Examples
    --------
    >>> import numpy as np
    >>> plan(np.zeros((1000, 10)), n_components=3, memory="1GiB").n_passes
    1
    """
    opening = {"dataset": dataset, "samples_axis": samples_axis, "weights": weights}
    return plan_with_methods(METHODS, source, method, n_components, memory, scores, opening, {**(parameters or {}), **more})
