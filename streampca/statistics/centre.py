"""Count and mean of rows, kept as pivot + offset so that a large mean costs no accuracy.

With a mean of 1e8 the mean itself, as one float64, is off by 1e-8; differences of means between blocks would be no
better. The pivot is a number near the data, the offset what is left: their differences are exact to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from streampca.statistics.base import Array, Floats

_SAMPLED_ROWS = 256


@dataclass
class Centre:
    """Number of rows and their mean, ``pivot + offset``."""

    count: int
    pivot: Floats
    offset: Floats

    @classmethod
    def empty(cls, n_features: int) -> Centre:
        """Return the centre of no rows."""
        return cls(0, np.zeros(n_features), np.zeros(n_features))

    @property
    def mean(self) -> Floats:
        """The mean, rounded to float64."""
        return self.pivot + self.offset

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.pivot.nbytes + self.offset.nbytes

    def join(self, other: Centre) -> Floats:
        """Move to the mean of both parts; return the row that Chan's formula adds to their scatter.

        The joint centred scatter is that of the rows of both parts, each centred on its own mean, and the
        one row ``sqrt(n1 n2 / (n1 + n2)) (m2 - m1)``.
        """
        if other.count == 0:
            return np.zeros_like(self.pivot)
        if self.count == 0:
            self.count = other.count
            self.pivot[:], self.offset[:] = other.pivot, other.offset
            return np.zeros_like(self.pivot)
        total = self.count + other.count
        delta = (other.pivot - self.pivot) + (other.offset - self.offset)
        self.offset += delta * (other.count / total)
        row: Floats = delta * np.sqrt(self.count * (other.count / total))
        self.count = total
        return row

    def to_arrays(self) -> dict[str, Array]:
        """Return the three parts by name."""
        return {"count": np.array(self.count, np.int64), "pivot": self.pivot, "offset": self.offset}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Centre:
        """Return the centre that ``to_arrays`` described."""
        return cls(int(arrays["count"]), arrays["pivot"], arrays["offset"])


def sample_of(block: Array) -> Floats:
    """Return at most 256 rows spread over a block, in C order: the same order of sums, hence bits, for any layout."""
    step = -(-len(block) // _SAMPLED_ROWS)
    return block[::step].astype(np.float64, order="C")


def pivot_of(block: Array) -> Floats:
    """Return a point near the mean of a block: the mean of at most 256 of its rows, rounded to a coarse dyadic grid.

    With a share f of the rows sampled it is within ``sigma / sqrt(f)`` of the block's mean whatever the order of
    the rows. The grid (about one standard deviation) keeps counts, flags and quantised values on short mantissas, so that
    their products in float32 are exact instead of all being rounded the same way. Constant columns get their value.
    """
    sample = sample_of(block)
    first = sample[0].copy()
    sample -= first
    offset = sample.mean(axis=0)
    mean: Floats = first + offset
    sample -= offset
    deviation = np.sqrt(np.einsum("ij,ij->j", sample, sample) / len(sample))
    spread = (deviation > 0) & np.isfinite(deviation)
    exponent = np.frexp(np.where(spread, deviation, 1.0))[1]
    grid = np.ldexp(1.0, exponent - 1)
    rounded = np.rint(mean / grid) * grid
    return np.where(spread & np.isfinite(rounded), rounded, mean)
