"""Feature names: under which keys files keep them, and how they become text.

Pure functions; the readers look in the places that their format has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NAME_KEYS = ("feature_names", "features", "columns", "column_names", "var_names")


def sibling_keys(dataset: str) -> tuple[str, ...]:
    """Return the names of arrays beside ``dataset`` that may hold its feature names.

    >>> sibling_keys("X")[-2:]
    ('X_columns', 'X_feature_names')
    """
    return (*NAME_KEYS, f"{dataset}_columns", f"{dataset}_feature_names")


def as_names(values: Any, n_features: int) -> tuple[str, ...] | None:
    """Return ``values`` as names if they are ``n_features`` strings, else None.

    >>> as_names([b"a", b"b"], 2), as_names(["a", "b"], 3), as_names([1, 2], 2)
    (('a', 'b'), None, None)
    """
    if isinstance(values, (str, bytes)):
        return None
    array = np.asarray(values, dtype=object)
    if array.shape != (n_features,) or not all(isinstance(value, (str, bytes)) for value in array):
        return None
    return tuple(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in array)
