"""Which inputs are lazy (paths, stored arrays, sources, Dask arrays), and how they are opened; the rest goes to scikit-learn's checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.sources import is_stored, open_array, open_source
from streampca.sources.base import Array, Source


def is_dask_array(X: Any) -> bool:
    """Return whether X is a Dask array, without importing Dask."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "map_blocks")


def is_lazy(X: Any) -> bool:
    """Return whether X is read block by block rather than held in memory."""
    return is_stored(X) or is_dask_array(X)


def as_source(X: Any) -> Source:
    """Return a source for any lazy input."""
    return X if isinstance(X, Source) else open_source(X)


def map_lazily(function: Callable[[Array], Array], X: Any, n_columns: int | None, dtype: np.dtype[Any]) -> Any:
    """Return a Dask array of a function of blocks of rows: ``n_columns`` columns, or 1-D if None."""
    array = X if is_dask_array(X) else open_array(X)
    array = array.rechunk({1: -1})
    if n_columns is None:
        return array.map_blocks(function, dtype=dtype, drop_axis=1, meta=np.empty(0, dtype))
    return array.map_blocks(function, dtype=dtype, chunks=(array.chunks[0], (n_columns,)), meta=np.empty((0, 0), dtype))
