"""Rows taken out of a scatter matrix again: Chan's formula, backwards.

Only sums of products can be subtracted with little loss: the error is a few units in the last place of the *larger* sums. A triangular
factor would need a downdate, which is not stable, and a sketch has forgotten what to subtract from.
"""

from __future__ import annotations

import numpy as np

from streampca.errors import DataError
from streampca.statistics.centre import Centre
from streampca.statistics.scatter import Scatter

_NEGATIVE = 1e-9  # of the sum of squares of a column: what rounding may leave below zero


def without(total: Scatter, part: Scatter) -> Scatter:
    """Return the scatter of the rows of ``total`` that are not in ``part``; both are left as they are.

    >>> both, one = Scatter(1), Scatter(1)
    >>> both.update(np.array([[1.0], [3.0], [8.0]]))
    >>> one.update(np.array([[8.0]]))
    >>> left = without(both, one)
    >>> left.count, left.mean, left.scatter
    (2, array([2.]), array([[2.]]))
    """
    whole, gone = total.centre, part.centre
    if gone.count >= whole.count or gone.rows >= whole.rows:
        raise DataError(f"{gone.rows} rows cannot be taken from {whole.rows}: some must be left")
    if gone.count == 0:
        return total.copy()
    left = whole.count - gone.count
    delta = (gone.pivot - whole.pivot) + (gone.offset - whole.offset)
    result = total.copy()
    result.centre = Centre(left, whole.pivot.copy(), whole.offset - delta * (gone.count / left), whole.rows - gone.rows)
    sums = result.scatter
    row = delta * np.sqrt(gone.count * (whole.count / left))
    for index in range(len(sums)):  # row by row: no copy of the matrix
        sums[index] -= part.scatter[index] + row[index] * row
    _refuse_negative(sums.diagonal(), total.scatter.diagonal())
    return result


def _refuse_negative(squares: np.ndarray, before: np.ndarray) -> None:
    """Refuse sums of squares below zero: the rows were never in."""
    worst = int(np.argmin(squares + _NEGATIVE * before))
    if squares[worst] < -_NEGATIVE * before[worst]:
        raise DataError(f"the rows to be taken out vary more in column {worst} than all rows of the fit: they are not among them")
