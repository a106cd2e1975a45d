"""The statistic: what one pass accumulates. NumPy only; a sum of rows that can be split and merged at will.

Laws (tests/statistics/conformance.py): a fresh statistic is the identity of merge; any split into blocks and any
merge tree agree within ``tolerance``; ``from_arrays(to_arrays())`` is bit-exact; ``nbytes`` and
``workspace`` bound the real memory; no update changes its input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError, NonFiniteError

Array = NDArray[Any]
Floats = NDArray[np.float64]


class Statistic(ABC):
    """Sufficient statistics of rows, accumulated by ``update`` and joined by ``merge``."""

    allows_nan: ClassVar[bool] = False  # NaN is a missing entry, not an error

    @property
    @abstractmethod
    def tolerance(self) -> float:
        """Relative difference, at most, between any two orders of the same rows."""

    @abstractmethod
    def blueprint(self) -> Callable[[], Self]:
        """Return a small, picklable maker of empty statistics of the same kind and size."""

    def fresh(self) -> Self:
        """Return an empty statistic of the same kind and size."""
        return self.blueprint()()

    @abstractmethod
    def update(self, block: Array, weights: Floats | None = None) -> None:
        """Fold in the rows of a block, which is left as it is.

        A row of weight 2 counts as two rows, a row of weight 0 as none. Weights are at least 0 and finite: a source has checked them.
        """

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Fold in what another statistic has accumulated, which is left as it is."""

    @abstractmethod
    def to_arrays(self) -> dict[str, Array]:
        """Return everything that was accumulated, as named arrays (views where possible)."""

    @classmethod
    @abstractmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Return the statistic that ``to_arrays`` described."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the accumulated state, empty or not."""

    @abstractmethod
    def workspace(self, rows: int) -> int:
        """Bytes that updating with a block of so many rows needs beside the state and the block."""

    def release(self) -> None:
        """Drop the buffers that only updates need, as the state waits to be merged; a later update makes them again."""

    def copy(self) -> Self:
        """Return an independent copy of the accumulated state."""
        return self.from_arrays({name: array.copy() for name, array in self.to_arrays().items()})

    def __reduce__(self) -> tuple[Callable[..., Statistic], tuple[dict[str, Array]]]:
        """Travel between processes as arrays only, without buffers."""
        return type(self).from_arrays, (self.to_arrays(),)


def find_nonfinite(block: Array, *, allow_nan: bool = False) -> tuple[int, int] | None:
    """Return row and column of the first entry that is infinite (or NaN, unless it is allowed), if there is one."""
    if block.dtype.kind != "f" or np.isfinite(block).all():
        return None
    bad = np.isinf(block) if allow_nan else ~np.isfinite(block)
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    return row, int(np.argmax(bad[row]))


def refuse_nonfinite(block: Array) -> None:
    """Raise for the first NaN or infinite entry of a block whose sums are not finite."""
    place = find_nonfinite(block)
    if place is not None:
        raise NonFiniteError(float(block[place]), *place)
    raise DataError("the values are so large that their sums overflow float64: rescale the data")
