"""Which of the arrays in a file is meant: the one that is named, or the only table there is.

Pure functions on names, shapes and dtypes, shared by the readers of formats that hold several arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streampca.errors import DataError, SourceNotFoundError, did_you_mean
from streampca.sources.base import FLATTEN

_LISTED = 20


@dataclass(frozen=True)
class Candidate:
    """An array in a file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    numeric: bool

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}"


def only_table(candidates: Sequence[Candidate], where: str) -> str:
    """Return the name of the only 2-D numeric array, or say what there is to choose from.

    >>> only_table([Candidate("X", (9, 3), "float32", True), Candidate("t", (9,), "float64", True)], "a.h5")
    'X'
    """
    numeric = [each for each in candidates if each.numeric]
    tables, deeper = [each for each in numeric if len(each.shape) == 2], [each for each in numeric if len(each.shape) > 2]
    if len(tables) == 1:
        larger = [each for each in deeper if math.prod(each.shape) > math.prod(tables[0].shape)]
        if larger:  # the table may be but the bounds of a coordinate
            raise DataError(
                f"{where} holds {tables[0]}, and larger arrays that are no tables: {listing(larger)}. Name what is meant: path::name"
            )
        return tables[0].name
    if tables:
        raise DataError(f"{where} holds {len(tables)} 2-D numeric datasets: {listing(tables)}. Name one: dataset='...' or path::name")
    others = f"it has {listing(candidates)}" if candidates else "it has no dataset at all"
    more = f": {FLATTEN}" if deeper else ""
    raise DataError(f"{where} holds no 2-D numeric dataset: {others}. A table of samples x features is needed{more}")


def no_such_dataset(name: str, candidates: Sequence[Candidate], where: str) -> SourceNotFoundError:
    """Return the error for a dataset that is not there, naming the nearest one that is."""
    near = nearest(name.strip("/"), [each.name.strip("/") for each in candidates])
    has = f" It has {listing(candidates)}." if candidates else " It has no dataset at all."
    return SourceNotFoundError(f"there is no dataset {name!r} in {where}.{near}{has}")


def nearest(name: str, known: Sequence[str]) -> str:
    """Return ``" Did you mean 'x'?"``, comparing whole paths first and last components next.

    >>> nearest("X", ["raw/X", "raw/Y"])
    " Did you mean 'raw/X'?"
    """
    whole = did_you_mean(name, known)
    if whole:
        return whole
    last = {path.rpartition("/")[2]: path for path in known}
    suggestion = did_you_mean(name.rpartition("/")[2], last)
    return f" Did you mean {last[suggestion[15:-2]]!r}?" if suggestion else ""


def listing(candidates: Iterable[Candidate]) -> str:
    """Return the candidates as text, the first twenty of them."""
    names = [str(each) for each in candidates]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
