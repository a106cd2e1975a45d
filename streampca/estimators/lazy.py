"""Which inputs are lazy (paths, stored arrays, sources, Dask and labelled arrays), how they are opened; the rest scikit-learn checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.sources import is_stored, open_array, open_source
from streampca.sources.base import Array, Source
from streampca.sources.labelled import is_labelled, rows_and_names


def is_dask_array(X: Any) -> bool:
    """Return whether X is a Dask array, without importing Dask."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "map_blocks")


def is_lazy(X: Any) -> bool:
    """Return whether X is opened as a source: read block by block, or with labels that scikit-learn does not know."""
    return is_stored(X) or is_dask_array(X) or is_labelled(X)


def as_source(X: Any) -> Source:
    """Return a source for any lazy input."""
    return X if isinstance(X, Source) else open_source(X)


def unlabelled(X: Any) -> Any:
    """Return the array of a DataArray, anything else as it is."""
    return rows_and_names(X)[0] if is_labelled(X) else X


def map_lazily(function: Callable[[Array], Array], X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    """Return a Dask array of a function of blocks of rows: ``n_columns`` columns, or 1-D if None."""
    array = X if is_dask_array(X) else open_array(X)
    array = array.rechunk({1: -1})
    if n_columns is None:
        return array.map_blocks(function, dtype=dtype, drop_axis=1, meta=np.empty(0, dtype))
    return array.map_blocks(function, dtype=dtype, chunks=(array.chunks[0], (n_columns,)), meta=np.empty((0, 0), dtype))
