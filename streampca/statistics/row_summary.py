"""What a report tells of the rows under a fitted PCA, in one pass and bounded memory: no scores are kept.

Densities of the first two scores, histograms of Hotelling's T2 and of the squared prediction error (SPE), a sample of distinct rows, and
the most outlying rows. Rows are numbered as they come: ``other`` of a merge holds the rows that follow, as the engine merges shards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite

GRID = 80  # cells of the density along each score
REACH = 5.0  # standard deviations from the middle of the density to its edge
PER_DECADE = 20  # bins of the histograms of T2 and SPE, which are measured in units of their limits
DECADES = (-6, 6)
SAMPLE = 1000  # distinct rows
OUTLYING = 50
SAMPLE_SCORES = 8  # of each row of the sample, at most

_STRIP_BYTES = 2**19  # of centred rows: they are multiplied while they are in the processor's own cache
_ROWS_AT_ONCE = 4096
_KEYS_BYTES = 2**20  # of rows that are hashed at once
_BINS = PER_DECADE * (DECADES[1] - DECADES[0]) + 2  # those below and above are counted in the first and the last
_CANCELLED = {"float64": 1e-8, "float32": 1e-2}  # |x|^2 - |z|^2 below this part of |x|^2 is computed from the residual instead
_NO_VARIANCE = 1e-14  # relative to the first component: what rounding leaves of none


@dataclass(frozen=True, eq=False)
class Frame:
    """The fitted model as seen from a row, and the limits that rows are measured by.

    Parameters
    ----------
    mean, scale : ndarray of shape (n_features,)
        What is subtracted from each column, and what it is then divided by.
    components : ndarray of shape (k, n_features)
        Orthonormal rows.
    explained_variance : ndarray of shape (k,)
        Variance of each score.
    t2_limit, spe_limit : float
        What T2 and SPE of few rows exceed; infinite where it has no meaning.
    """

    mean: Floats
    scale: Floats
    components: Floats
    explained_variance: Floats
    t2_limit: float
    spe_limit: float

    @property
    def deviations(self) -> Floats:
        """Standard deviations of the first two scores, where there are so many."""
        found = np.sqrt(np.maximum(self.explained_variance[:2], 0.0))
        return np.pad(found, (0, 2 - len(found)))

    @property
    def inverse_variances(self) -> Floats:
        """1 / variance of each score; 0 where there is none, so that rounding does not count as a distance."""
        variances = self.explained_variance
        known = variances > _NO_VARIANCE * variances.max(initial=0.0)
        return np.where(known, 1 / np.where(known, variances, 1.0), 0.0)


class Sample(NamedTuple):
    """Distinct rows, those with the smallest hashes: which they are depends on the values of the rows only."""

    keys: Array
    row: Array  # of the first row with these values
    weight: Array  # of all rows with these values
    t2: Array
    spe: Array
    scores: Array  # the first few


class Outlying(NamedTuple):
    """Rows of the largest T2 or SPE in units of their limits, the most outlying first."""

    row: Array
    excess: Array  # the larger of T2 and SPE, each by its limit
    t2: Array
    spe: Array
    feature: Array  # the column that contributes most to the larger of both
    scores: Array  # the first two


class RowSummary(Statistic):
    """Densities, histograms, a sample and outlying rows under a fitted PCA.

    Row numbers count all rows, also those of weight 0, which are nowhere else; a merge takes ``other`` as the rows that follow.

    >>> frame = Frame(np.zeros(2), np.ones(2), np.array([[1.0, 0.0]]), np.array([4.0]), t2_limit=6.6, spe_limit=9.0)
    >>> summary = RowSummary(frame)
    >>> summary.update(np.array([[1.0, 0.5], [-2.0, 30.0]]))
    >>> summary.rows, summary.outlying.row[0], summary.outlying.spe[0], summary.outlying.feature[0]
    (2, np.int64(1), np.float64(900.0), np.int64(1))
    """

    tolerance = 1e-9

    def __init__(self, frame: Frame) -> None:
        self._frame: Frame | None = frame
        self.deviations: Floats = frame.deviations
        self.limits: Floats = np.array([frame.t2_limit, frame.spe_limit])
        self.rows, self.count, self.outside = 0, 0.0, 0.0
        self.density: Floats = np.zeros((GRID, GRID))  # first score by row, second by column
        self.t2: Floats = np.zeros(_BINS)
        self.spe: Floats = np.zeros(_BINS)
        self._sample = _empty_sample(min(len(frame.components), SAMPLE_SCORES))
        self._outlying = _empty_outlying()

    @property
    def edges(self) -> tuple[Floats, Floats]:
        """Edges of the cells of the density, along the first and the second score."""
        unit = np.linspace(-REACH, REACH, GRID + 1)
        return unit * self.deviations[0], unit * self.deviations[1]

    @property
    def sample(self) -> Sample:
        """The sample, without its empty places, by row."""
        order = np.argsort(self._sample.row, kind="stable")
        order = order[self._sample.row[order] >= 0]
        return Sample(*(part[order] for part in self._sample))

    @property
    def outlying(self) -> Outlying:
        """The most outlying rows, without empty places."""
        return Outlying(*(part[self._outlying.row >= 0] for part in self._outlying))

    def quantile(self, what: str, level: float) -> float:
        """Return the value that a part ``level`` of the rows stays below, within a bin of 12%: of ``"t2"`` or ``"spe"``."""
        counts, limit = (self.t2, self.limits[0]) if what == "t2" else (self.spe, self.limits[1])
        reached = np.cumsum(counts) >= level * counts.sum()
        return float(bin_edges()[int(np.argmax(reached))] * limit)

    def beyond(self, what: str) -> float:
        """Return how many rows exceed the limit of ``"t2"`` or ``"spe"``."""
        counts = self.t2 if what == "t2" else self.spe
        return float(counts[1 + PER_DECADE * -DECADES[0] :].sum())

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        if self._frame is None:
            raise ValueError("a summary restored from arrays can be merged and read, not updated: it no longer has its model")
        return partial(type(self), self._frame)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        frame: Any = self._frame
        projection = frame.components.astype(np.float32 if block.dtype == np.float32 else np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(block), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                if not self._add_rows(frame, block[rows], None if weights is None else weights[rows], projection):
                    refuse_nonfinite(block)

    def _add_rows(self, frame: Frame, rows: Array, weights: Floats | None, projection: Array) -> bool:
        """Fold in a few thousand rows; return whether they are finite."""
        scores, spe = _project(rows, frame, projection)
        if not np.isfinite(spe).all():
            return False
        t2 = (scores * scores) @ frame.inverse_variances
        each = np.ones(len(rows)) if weights is None else weights
        index = np.arange(self.rows, self.rows + len(rows))
        self.rows += len(rows)
        self.count += float(each.sum())
        self._count_scores(scores, each)
        self.t2 += _histogram(t2 / self.limits[0], each)
        self.spe += _histogram(spe / self.limits[1], each)
        self._add_to_sample(rows, index, each, t2, spe, scores)
        self._add_outlying(frame, rows, index, each, t2, spe, scores)
        return True

    def _count_scores(self, scores: Floats, weights: Floats) -> None:
        """Add rows to the density; those beyond its edges only to their number."""
        cells = np.empty((2, len(scores)), np.int64)
        for axis, deviation in enumerate(self.deviations):
            values = scores[:, axis] / deviation if deviation > 0 else np.zeros(len(scores))
            cells[axis] = np.clip(np.floor((values / REACH + 1) * (GRID / 2)), -1, GRID)
        inside = ((cells >= 0) & (cells < GRID)).all(axis=0)
        self.outside += float(weights[~inside].sum())
        flat = cells[0, inside] * GRID + cells[1, inside]
        self.density += np.bincount(flat, weights[inside], GRID * GRID).reshape(GRID, GRID)

    def _add_to_sample(self, rows: Array, index: Array, weights: Floats, t2: Floats, spe: Floats, scores: Floats) -> None:
        keys = row_keys(rows)
        highest = self._sample.keys[-1] if self._sample.row[-1] >= 0 else np.iinfo(np.uint64).max
        chosen = (keys <= highest) & (weights > 0)
        width = self._sample.scores.shape[1]
        new = Sample(keys[chosen], index[chosen], weights[chosen], t2[chosen], spe[chosen], scores[chosen, :width])
        self._sample = _smallest(self._sample, new)

    def _add_outlying(self, frame: Frame, rows: Array, index: Array, weights: Floats, t2: Floats, spe: Floats, scores: Floats) -> None:
        excess = np.maximum(t2 / self.limits[0], spe / self.limits[1])
        chosen = np.flatnonzero((weights > 0) & (excess > max(self._outlying.excess[-1], 0.0)))
        if len(chosen) > OUTLYING:
            chosen = np.sort(chosen[np.lexsort((chosen, -excess[chosen]))[:OUTLYING]])
        if not len(chosen):
            return
        by_t2 = t2[chosen] / self.limits[0] >= spe[chosen] / self.limits[1]
        feature = _main_features(frame, rows[chosen], scores[chosen], by_t2)
        first = np.pad(scores[chosen, :2], ((0, 0), (0, max(2 - scores.shape[1], 0))))
        self._outlying = _largest(self._outlying, Outlying(index[chosen], excess[chosen], t2[chosen], spe[chosen], feature, first))

    def merge(self, other: Self) -> None:
        """Fold in the summary of the rows that follow those of this one."""
        self._sample = _smallest(self._sample, _shifted(other._sample, self.rows))
        self._outlying = _largest(self._outlying, _shifted(other._outlying, self.rows))
        self.rows += other.rows
        self.count += other.count
        self.outside += other.outside
        self.density += other.density
        self.t2 += other.t2
        self.spe += other.spe

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            "rows": np.array(self.rows, np.int64),
            "count": np.array(self.count),
            "outside": np.array(self.outside),
            "deviations": self.deviations,
            "limits": self.limits,
            "density": self.density,
            "t2": self.t2,
            "spe": self.spe,
            **{f"sample_{name}": part for name, part in self._sample._asdict().items()},
            **{f"outlying_{name}": part for name, part in self._outlying._asdict().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        summary = cls.__new__(cls)
        summary._frame = None
        summary.rows, summary.count, summary.outside = int(arrays["rows"]), float(arrays["count"]), float(arrays["outside"])
        summary.deviations, summary.limits = arrays["deviations"], arrays["limits"]
        summary.density, summary.t2, summary.spe = arrays["density"], arrays["t2"], arrays["spe"]
        summary._sample = Sample(**{name: arrays[f"sample_{name}"] for name in Sample._fields})
        summary._outlying = Outlying(**{name: arrays[f"outlying_{name}"] for name in Outlying._fields})
        return summary

    @property
    def nbytes(self) -> int:  # noqa: D102
        return sum(array.nbytes for array in self.to_arrays().values() if array.ndim)

    def workspace(self, rows: int) -> int:  # noqa: D102
        frame: Any = self._frame
        d, k = len(frame.mean), len(frame.components)
        height, taken = min(rows, max(_STRIP_BYTES // (4 * d), 16)), min(rows, _ROWS_AT_ONCE)
        strips = height * 5 * 8 * d + 2 * 8 * d * min(taken, _KEYS_BYTES // (8 * d) + 1) + 8 * 8 * d * OUTLYING
        return strips + taken * 8 * (3 * k + 64) + 4 * 8 * d * k + 2 * 8 * GRID * GRID + 16 * 8 * d + 64 * 8 * SAMPLE


def bin_edges() -> Floats:
    """Return the upper edges of the bins of T2 and SPE, in units of their limits: below the first, ..., above the last.

    >>> edges = bin_edges()
    >>> edges[0], edges[-1]
    (np.float64(1e-06), np.float64(inf))
    """
    low, high = DECADES
    return np.append(10.0 ** np.linspace(low, high, _BINS - 1), np.inf)


def row_keys(rows: Array) -> NDArray[np.uint64]:
    """Return a hash of the values of each row, the same in any memory layout.

    A sum of the row's words times odd numbers, modulo 2^64, mixed so that all bits depend on all others.

    >>> keys = row_keys(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> keys[0] == keys[2], keys[0] == keys[1]
    (np.True_, np.False_)
    """
    keys = np.empty(len(rows), np.uint64)
    height = _KEYS_BYTES // (8 * rows.shape[1]) + 1
    for start in range(0, len(rows), height):
        keys[start : start + height] = _mixed(_sums_of_words(rows[start : start + height]))
    return keys


def _sums_of_words(rows: Array) -> NDArray[np.uint64]:
    """Return the sum of each row's words, as wide as its bytes allow, times odd numbers."""
    if rows.dtype.itemsize > 8:
        rows = rows.astype(np.float64)  # the bytes that extended numbers are padded with may be anything
    plain = np.ascontiguousarray(rows)
    size = plain.shape[1] * plain.itemsize
    word = next(each for each in (8, 4, 2, 1) if size % each == 0)
    words = plain.view(np.uint8).reshape(len(plain), size).view(f"u{word}")
    odd = _mixed(np.arange(1, words.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    sums: NDArray[np.uint64] = words.astype(np.uint64, copy=False) @ odd
    return sums


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _project(rows: Array, frame: Frame, projection: Array) -> tuple[Floats, Floats]:
    """Return scores and SPE of rows, strip by strip."""
    scores, errors = np.empty((len(rows), len(projection))), np.empty(len(rows))
    height = max(_STRIP_BYTES // (len(frame.mean) * projection.itemsize), 16)
    for start in range(0, len(rows), height):
        strip = slice(start, start + height)
        centred = _centred(rows[strip], frame, projection.dtype)
        scores[strip] = centred @ projection.T
        errors[strip] = _squared_errors(centred, scores[strip], projection)
    return scores, errors


def _centred(strip: Array, frame: Frame, dtype: np.dtype[Any]) -> Array:
    """Return the rows less the mean, by the scale; what rounding the mean to float32 leaves out is subtracted as well."""
    pivot = frame.mean.astype(dtype)
    centred: Array = np.subtract(strip, pivot, dtype=dtype, casting="unsafe", order="C")
    if dtype == np.float32:
        centred -= (frame.mean - pivot).astype(dtype)
    if (frame.scale != 1).any():
        centred /= frame.scale.astype(dtype)
    return centred


def _squared_errors(centred: Array, scores: Floats, projection: Array) -> Floats:
    """Return |x - x^|^2 of each row: |x|^2 - |z|^2, or of the residual itself where that difference would be rounding."""
    squares = np.einsum("ij,ij->i", centred, centred).astype(np.float64)
    errors: Floats = squares - np.einsum("ij,ij->i", scores, scores)
    cancelled = errors < _CANCELLED[projection.dtype.name] * squares
    if cancelled.any():
        basis = projection.astype(np.float64)
        rows = centred[cancelled].astype(np.float64)
        rows -= (rows @ basis.T) @ basis
        errors[cancelled] = np.einsum("ij,ij->i", rows, rows)
    return errors


def _histogram(ratios: Floats, weights: Floats) -> Floats:
    """Return the weights by bin; not a number (0 by a limit of 0) counts as below."""
    with np.errstate(divide="ignore"):
        places = np.floor((np.log10(ratios) - DECADES[0]) * PER_DECADE) + 1
    bins = np.clip(np.nan_to_num(places, nan=0.0), 0, _BINS - 1).astype(np.int64)
    counts: Floats = np.bincount(bins, weights, _BINS).astype(np.float64, copy=False)
    return counts


def _main_features(frame: Frame, rows: Array, scores: Floats, by_t2: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the column that contributes most to T2, or to SPE, of each row."""
    centred = _centred(rows, frame, np.dtype(np.float64))
    to_t2 = centred * ((scores * frame.inverse_variances) @ frame.components)
    to_spe = (centred - scores @ frame.components) ** 2
    found: NDArray[np.int64] = np.where(by_t2[:, None], to_t2, to_spe).argmax(axis=1)
    return found


def _empty_sample(width: int) -> Sample:
    keys = np.full(SAMPLE, np.iinfo(np.uint64).max, np.uint64)
    return Sample(keys, np.full(SAMPLE, -1), np.zeros(SAMPLE), np.zeros(SAMPLE), np.zeros(SAMPLE), np.zeros((SAMPLE, width)))


def _empty_outlying() -> Outlying:
    n = OUTLYING
    return Outlying(np.full(n, -1), np.full(n, -1.0), np.zeros(n), np.zeros(n), np.zeros(n, np.int64), np.zeros((n, 2)))


def _shifted(part: Any, rows: int) -> Any:
    """Return the same rows, numbered as those that follow ``rows`` others; empty places stay empty."""
    return part._replace(row=np.where(part.row >= 0, part.row + rows, -1))


def _smallest(first: Sample, second: Sample) -> Sample:
    """Return the distinct rows with the smallest hashes of both; equal rows are one, with the sum of their weights."""
    if not (second.row >= 0).any():
        return first
    both = Sample(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    order = np.lexsort((both.row, both.keys))
    order = order[both.row[order] >= 0]
    _, starts = np.unique(both.keys[order], return_index=True)
    kept = order[starts][:SAMPLE]
    weight = np.add.reduceat(both.weight[order], starts)[:SAMPLE]
    found = Sample(*(part[kept] for part in both))._replace(weight=weight)
    empty = _empty_sample(first.scores.shape[1])
    return Sample(*(np.concatenate([part, rest[len(kept) :]]) for part, rest in zip(found, empty, strict=True)))


def _largest(first: Outlying, second: Outlying) -> Outlying:
    """Return the most outlying rows of both; of equals, those that come first."""
    both = Outlying(*(np.concatenate(pair) for pair in zip(first, second, strict=True)))
    order = np.lexsort((both.row, -both.excess))[:OUTLYING]
    return Outlying(*(part[order] for part in both))
