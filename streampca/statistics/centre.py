"""Count (or sum of weights) and mean of rows, kept as pivot + offset so that a large mean costs no accuracy.

With a mean of 1e8 the mean itself, as one float64, is off by 1e-8; differences of means between blocks would be no
better. The pivot is a number near the data, the offset what is left: their differences are exact to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DataError
from streampca.statistics.base import Array, Floats

_SAMPLED_ROWS = 64
_STRIP_ROWS = 256  # shifted at once to find a weighted mean
_FAR = 64.0  # standard deviations from zero: farther, float32 keeps too little of the odd fraction beside the mean
_NEAR = 4.0  # standard deviations from the mean
_MANY_REPEATS = 0.875  # of the rows of a sample
_ODD = 0.0381966  # of the standard deviation: small, and a fraction of no likely grid


@dataclass
class Centre:
    """Sum of the weights of rows (1 each without weights) and their mean, ``pivot + offset``."""

    count: float
    pivot: Floats
    offset: Floats
    rows: int = -1  # of positive weight; as many as the count if not given

    def __post_init__(self) -> None:
        if self.rows < 0:
            self.rows = int(self.count)

    @classmethod
    def empty(cls, n_features: int) -> Centre:
        """Return the centre of no rows."""
        return cls(0, np.zeros(n_features), np.zeros(n_features))

    @property
    def total(self) -> int | float:
        """The count, as an integer where every row counts once."""
        return self.rows if self.count == self.rows else self.count

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
            self.count, self.rows = other.count, other.rows
            self.pivot[:], self.offset[:] = other.pivot, other.offset
            return np.zeros_like(self.pivot)
        total = self.count + other.count
        delta = (other.pivot - self.pivot) + (other.offset - self.offset)
        self.offset += delta * (other.count / total)
        row: Floats = delta * np.sqrt(self.count * (other.count / total))
        self.count = total
        self.rows += other.rows
        return row

    def to_arrays(self) -> dict[str, Array]:
        """Return the parts by name."""
        return {
            "count": np.array(self.count, np.float64),
            "rows": np.array(self.rows, np.int64),
            "pivot": self.pivot,
            "offset": self.offset,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Centre:
        """Return the centre that ``to_arrays`` described."""
        count = float(arrays["count"])
        return cls(count, arrays["pivot"], arrays["offset"], int(arrays.get("rows", count)))


def sample_of(block: Array) -> Floats:
    """Return at most 64 rows spread over a block, in C order: the same order of sums, hence bits, for any layout."""
    step = -(-len(block) // _SAMPLED_ROWS)
    return block[::step].astype(np.float64, order="C")


def pivot_of(block: Array) -> Floats:
    """Return a point near the mean of a block: the mean of at most 64 of its rows; the value itself of a constant column.

    With a share f of the rows sampled it is within ``sigma / sqrt(f)`` of the block's mean whatever the order of the rows.
    """
    return _mean_and_deviations(sample_of(block))[0]


def weighted_centre(block: Array, weights: Floats) -> Centre:
    """Return the centre of rows that count by their weights, its pivot their mean; not finite if an entry is not.

    Weights may leave but a few rows of many, so no sample is near their mean: all rows are added up, shifted by the heaviest.
    """
    count = check_sum(weights)
    heaviest = block[np.argmax(weights)].astype(np.float64)
    sums = np.zeros(block.shape[1])
    for start in range(0, len(block), _STRIP_ROWS):
        strip = slice(start, start + _STRIP_ROWS)
        sums += weights[strip] @ np.subtract(block[strip], heaviest, dtype=np.float64, order="C")
    return Centre(count, heaviest + (sums / count if count else sums), np.zeros_like(sums), int(np.count_nonzero(weights)))


def check_sum(weights: Floats) -> float:
    """Return the sum of weights, or refuse one that overflows."""
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not np.isfinite(total):
        raise DataError("the weights are so large that their sum overflows float64: divide them all by the same number")
    return total


def subtract(rows: Array, point: Floats, out: Array) -> None:
    """Put rows less a point into ``out``: in its precision where it holds the rows exactly, else in float64, rounded at the end."""
    dtype = out.dtype if np.can_cast(rows.dtype, out.dtype) else np.dtype(np.float64)
    np.subtract(rows, point.astype(dtype), out=out, dtype=dtype, casting="same_kind")


class Shift(NamedTuple):
    """What is subtracted from float32 rows, in two steps: a point near the mean, and a small rest that float32 could not add to it."""

    pivot: NDArray[np.float32]
    rest: NDArray[np.float32]

    @property
    def exact(self) -> Floats:
        """The sum of both."""
        return self.pivot.astype(np.float64) + self.rest


def float32_shift(block: Array, common: Floats | None = None) -> Shift:
    """Return a shift under which float32 products of a block are exact, or rounded at random.

    Counts, flags and quantised values lie on a grid. If eight bits hold them (about the mean, rounded to a power of two near the
    standard deviation), their products are exact. If not, products of grid points are rounded with a bias (squares are 0 or
    1 modulo 4: sums were off by 2e-6); a shift off any grid, by an odd fraction of the standard deviation, takes the bias away.
    Where most rows have one ``common`` value, not far from the mean, it is the shift: its products are then exactly zero.
    """
    sample = sample_of(block)
    mean, deviations = _mean_and_deviations(sample.copy())
    spread = (deviations > 0) & np.isfinite(deviations)
    step = np.ldexp(1.0, np.frexp(np.where(spread, deviations, 1.0))[1] - 1)
    rounded = np.where(spread, np.rint(mean / step) * step, mean)
    sample -= rounded
    fine = spread & _needs_more_bits(sample) | ~np.isfinite(rounded)
    rest = np.where(fine & spread, _ODD * deviations, 0.0)
    far = np.abs(mean) > _FAR * deviations
    pivot = np.where(fine, np.where(far, mean, mean + rest), rounded)
    rest = np.where(far, rest, 0.0)
    if common is not None:
        near = np.abs(common - mean) <= _NEAR * deviations
        pivot, rest = np.where(near, common, pivot), np.where(near, 0.0, rest)
    return Shift(pivot.astype(np.float32), rest.astype(np.float32))


class Repeats(NamedTuple):
    """What repeats in the columns of a block: the value of at least half of the rows (NaN if none), and whether the others repeat too."""

    common: Floats
    few: bool  # some column, not held by eight bits, has few distinct values beside it: equal terms are rounded alike, with a bias


def repeats_of(block: Array) -> Repeats:
    """Return what repeats in a sample of a block: zeros of counts or intensities, a code, a few levels."""
    sample = sample_of(block)
    more = _needs_more_bits(sample - sample[0])
    sample.sort(axis=0)
    middle = sample[(len(sample) - 1) // 2]  # the value of at least half of the rows, if there is one, is here
    equal = sample == middle
    settled = ~more & ~equal.all(axis=0)  # eight bits hold them as they are
    common = np.where(~settled & (2 * equal.sum(axis=0) >= len(sample)), middle, np.nan)
    again = (sample[1:] == sample[:-1]) & ~(equal[1:] & np.isfinite(common))
    others = len(sample) - np.where(np.isfinite(common), equal.sum(axis=0), 0)
    return Repeats(common, bool((again.sum(axis=0) > _MANY_REPEATS * others)[more & (others > 1)].any()))


def _needs_more_bits(sample: Floats) -> NDArray[np.bool_]:
    """Return the columns whose values are not all multiples of 1/256 of a power of two near the largest."""
    unit = np.ldexp(1.0, np.frexp(np.abs(sample).max(axis=0))[1] - 8)
    steps = sample / unit
    more: NDArray[np.bool_] = (np.rint(steps) != steps).any(axis=0)
    return more


def _mean_and_deviations(sample: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each column, with no rounding for constant ones. Overwrites the sample."""
    first = sample[0].copy()
    sample -= first
    offset = sample.mean(axis=0)
    sample -= offset
    deviations: Floats = np.sqrt(np.einsum("ij,ij->j", sample, sample) / len(sample))
    return first + offset, deviations
