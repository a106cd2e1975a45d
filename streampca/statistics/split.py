"""The scatter matrices of the rows that are fitted and of those that are held out, in one pass.

Whether a row is held out depends on its values alone: the same in any block, order, file format and number of workers, and equal rows
stay together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streampca.errors import NonFiniteError
from streampca.statistics import scatter as sums
from streampca.statistics.base import Array, Floats, Statistic, find_nonfinite
from streampca.statistics.scatter import Precision, Scatter

_HELD_OUT = 26  # of 256
_STRIP_BYTES = 2**20


class SplitScatter(Statistic):
    """Two scatters: of about nine tenths of the rows, and of the others.

    >>> split = SplitScatter(1)
    >>> split.update(np.arange(1000.0)[:, None])
    >>> split.kept.count + split.held.count, 50 < split.held.count < 150
    (1000, True)
    """

    def __init__(self, n_features: int, precision: Precision = "float64") -> None:
        self.kept, self.held = Scatter(n_features, precision), Scatter(n_features, precision)

    @property
    def tolerance(self) -> float:  # noqa: D102
        return self.kept.tolerance

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return self.kept.n_features

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features, self.kept.precision)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        held = is_held_out(block)
        try:
            for statistic, rows in ((self.held, held), (self.kept, ~held)):
                statistic.update(block[rows], None if weights is None else weights[rows])
                statistic.release()  # one set of buffers is enough for both
        except NonFiniteError:
            place = find_nonfinite(block)
            if place is None:
                raise
            raise NonFiniteError(float(block[place]), *place) from None

    def merge(self, other: Self) -> None:  # noqa: D102
        self.kept.merge(other.kept)
        self.held.merge(other.held)

    def release(self) -> None:  # noqa: D102
        self.kept.release()
        self.held.release()

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        parts = {"kept": self.kept, "held": self.held}
        return {f"{part}_{name}": array for part, statistic in parts.items() for name, array in statistic.to_arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        split = cls.__new__(cls)
        split.kept, split.held = (
            Scatter.from_arrays({name.removeprefix(part): array for name, array in arrays.items() if name.startswith(part)})
            for part in ("kept_", "held_")
        )
        return split

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.kept.nbytes + self.held.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self.kept.precision, rows, 16)


def is_held_out(block: Array) -> NDArray[np.bool_]:
    """Return which rows are held out: by a hash of their values as float64, whatever their dtype."""
    keys: NDArray[np.uint64] = np.random.default_rng(0).integers(2**63, size=(block.shape[1],), dtype=np.uint64) * 2 + 1
    held = np.empty(len(block), np.bool_)
    height = max(_STRIP_BYTES // (8 * max(block.shape[1], 1)), 1)
    for start in range(0, len(block), height):
        values = block[start : start + height].astype(np.float64) + 0.0  # minus zero is zero
        bits = values.view(np.uint64)
        bits ^= bits >> np.uint64(29)
        bits *= keys
        bits ^= bits >> np.uint64(32)
        held[start : start + height] = (bits.sum(axis=1) * keys[0] >> np.uint64(56)) < _HELD_OUT
    return held


def state_bytes(n_features: int) -> int:
    """Return the bytes of a state, without making one."""
    return 2 * sums.state_bytes(n_features)


def workspace_bytes(n_features: int, precision: Precision, rows: int, itemsize: int) -> int:
    """Return the bytes that updates need beside the state: those of a scatter, and a copy of the block's rows."""
    return sums.workspace_bytes(n_features, precision) + rows * (n_features * itemsize + 2) + 4 * _STRIP_BYTES + 32 * n_features
