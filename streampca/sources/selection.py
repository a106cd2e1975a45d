"""What the user may write for rows and columns: slices, pairs, ``"10:20"``, indices, names."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from streampca.errors import UsageError, did_you_mean

RowsLike = slice | str | Sequence[int | None]
ColumnsLike = slice | str | Iterable[int | str]
_SLICE = re.compile(r"\s*(-?\d*)\s*:\s*(-?\d*)\s*(?::\s*(-?\d*)\s*)?")


def row_slice(rows: RowsLike) -> slice:
    """Return the slice that is meant.

    >>> row_slice("10:20"), row_slice((5, None)), row_slice("::3")
    (slice(10, 20, None), slice(5, None, None), slice(None, None, 3))
    """
    if isinstance(rows, slice):
        return rows
    if isinstance(rows, str):
        parsed = _text_slice(rows)
        if parsed is None:
            raise UsageError(f"cannot read rows={rows!r}: write for example '1000:2000' or '::10'")
        return parsed
    parts = tuple(rows)
    if len(parts) not in (2, 3) or not all(part is None or isinstance(part, (int, np.integer)) for part in parts):
        raise UsageError(f"cannot read rows={rows!r}: give a slice, (start, stop) or (start, stop, step)")
    return slice(*(None if part is None else int(part) for part in parts))


def column_indices(columns: ColumnsLike, n_features: int, names: tuple[str, ...] | None) -> tuple[int, ...]:
    """Return the indices of the columns that are meant; negative ones count from the end.

    >>> column_indices(["b", -1, 0], 4, ("a", "b", "c", "d"))
    (1, 3, 0)
    >>> column_indices("1:3", 4, None)
    (1, 2)
    """
    if isinstance(columns, str):
        columns = _text_columns(columns, names)
    if isinstance(columns, slice):
        return tuple(range(n_features)[columns])
    chosen = list(columns)
    if chosen and all(isinstance(each, (bool, np.bool_)) for each in chosen):
        return _masked(chosen, n_features)
    known = {name: index for index, name in reversed(list(enumerate(names or ())))}
    return tuple(_index(each, n_features, known) for each in chosen)


def _index(column: int | str, n_features: int, known: dict[str, int]) -> int:
    if isinstance(column, str):
        if column in known:
            return known[column]
        if not known:
            raise UsageError(f"there is no column {column!r}: the data has no feature names, so choose columns by number")
        raise UsageError(f"there is no column {column!r}.{did_you_mean(column, known)}")
    try:
        index = operator.index(column)
    except TypeError:
        raise UsageError(f"a column is chosen by its number or name, not by {column!r}") from None
    if not -n_features <= index < n_features:
        raise UsageError(f"there is no column {index}: the {n_features} columns are numbered 0 to {n_features - 1}")
    return index % n_features


def _masked(mask: list[Any], n_features: int) -> tuple[int, ...]:
    if len(mask) != n_features:
        raise UsageError(f"a mask of columns needs {n_features} entries, not {len(mask)}")
    return tuple(index for index, chosen in enumerate(mask) if chosen)


def _text_slice(text: str) -> slice | None:
    match = _SLICE.fullmatch(text)
    return slice(*(int(part) if part else None for part in match.groups())) if match else None


def _text_columns(text: str, names: tuple[str, ...] | None) -> slice | list[int | str]:
    """Return ``"2:5"`` as a slice, and ``"a, b, 7"`` as a list; a whole text that is a name is that column."""
    if names and text in names:
        return [text]
    parsed = _text_slice(text)
    if parsed is not None:
        return parsed
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return [int(part) if re.fullmatch(r"-?\d+", part) and part not in (names or ()) else part for part in parts]
