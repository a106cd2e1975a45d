"""The leading eigenpairs of a covariance, and what every solver does with them: signs, checks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.errors import DataError
from streampca.models.pca import Floats

ONE_THREAD_LIMIT = 1500  # up to this width more BLAS threads mostly wait for each other


@dataclass(frozen=True)
class Spectrum:
    """The leading eigenpairs of a covariance (divisor n - 1), largest first, and its exact trace."""

    variances: Floats
    vectors: Floats  # one per row
    trace: float


@dataclass(frozen=True)
class Options:
    """What is to be made of the sums."""

    n_components: int | float | str | None = None
    whiten: bool = False
    standardize: bool = False


def check_sum_of_weights(total: float, rows: int) -> None:
    """Refuse weights whose sum leaves nothing to divide by: the divisor of a variance is their sum - 1.

    >>> check_sum_of_weights(1.5, 10)
    """
    if total > 1:
        return
    if total == 0:
        raise DataError("the weights of all rows are zero, but at least 2 rows must count")
    if rows == total:
        raise DataError(f"there are {rows} row(s) of positive weight, but a variance needs at least 2")
    raise DataError(
        f"the weights of the {rows} rows add up to {total:.6g}, but a variance divides by their sum - 1, which must be above 0: weights "
        f"count rows (one of weight 2 is two rows), so multiply all of them by the same number ({rows / total:.6g} makes them 1 on average)"
    )


def fix_signs(components: Floats) -> Floats:
    """Return the components with their entry of largest magnitude positive.

    >>> fix_signs(np.array([[0.6, -0.8], [0.8, 0.6]])).tolist()
    [[-0.6, 0.8], [0.8, 0.6]]
    """
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return components * np.where(signs == 0, 1.0, signs)[:, None]
