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

from streampca.statistics.base import Array, Floats, refuse_nonfinite
from streampca.statistics.score_density import GRID, ROWS_AT_ONCE, ScoreDensity, total

PER_DECADE = 20  # bins of the histograms of T2 and SPE, which are measured in units of their limits
DECADES = (-6, 6)
SAMPLE = 1000  # distinct rows
OUTLYING = 50
SAMPLE_SCORES = 8  # of each row of the sample, at most

_STRIP_BYTES = 2**19  # of centred rows: they are multiplied while they are in the processor's own cache
_KEYS_BYTES = 2**20  # of rows that are hashed at once
_LOOKED_AT = 4  # columns of a row that its place in the sample depends on, beside its length
_BINS = PER_DECADE * (DECADES[1] - DECADES[0]) + 2  # those below and above are counted in the first and the last
_CANCELLED = {"float64": 1e-8, "float32": 1e-3}  # |x|^2 - |z|^2 below this part of |x|^2 is computed from the residual instead
_UNSEEN = 1e-10  # of the limit of SPE: a squared length that makes no difference
_HALF = np.uint64(32)  # bits
_NO_KEY = np.uint64(2**32 - 1)  # an upper half that no row of a sample has
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
    whitening : ndarray of shape (k,), optional
        What the scores that the model gives are divided by, where it makes them white.
    """

    mean: Floats
    scale: Floats
    components: Floats
    explained_variance: Floats
    t2_limit: float
    spe_limit: float
    whitening: Floats | None = None

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


class RowSummary(ScoreDensity):
    """Densities, histograms, a sample and outlying rows under a fitted PCA.

    Row numbers count all rows, also those of weight 0, which are nowhere else; a merge takes ``other`` as the rows that follow.

    >>> frame = Frame(np.zeros(2), np.ones(2), np.array([[1.0, 0.0]]), np.array([4.0]), t2_limit=6.6, spe_limit=9.0)
    >>> summary = RowSummary(frame)
    >>> summary.update(np.array([[1.0, 0.5], [-2.0, 30.0]]))
    >>> summary.rows, summary.outlying.row[0], summary.outlying.spe[0], summary.outlying.feature[0]
    (2, np.int64(1), np.float64(900.0), np.int64(1))
    """

    def __init__(self, frame: Frame) -> None:
        super().__init__(None, frame.deviations)
        self._frame: Frame | None = frame
        self.limits: Floats = np.array([frame.t2_limit, frame.spe_limit])
        self.t2: Floats = np.zeros(_BINS)
        self.spe: Floats = np.zeros(_BINS)
        self._sample = _empty_sample(min(len(frame.components), SAMPLE_SCORES))
        self._outlying = _empty_outlying()

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
        self._fold(block, None, weights)

    def add(self, block: Array, scores: Array, weights: Floats | None = None) -> None:
        """Fold in the rows of a block whose scores the model has given."""
        self._fold(block, scores, weights)

    def _fold(self, block: Array, scores: Array | None, weights: Floats | None) -> None:
        frame: Any = self._frame
        projection = frame.components.astype(np.float32 if block.dtype == np.float32 else np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(block), ROWS_AT_ONCE):
                rows = slice(start, start + ROWS_AT_ONCE)
                found = _measured(block[rows], frame, projection, None if scores is None else scores[rows])
                if not np.isfinite(found.spe).all():
                    refuse_nonfinite(block)
                self._add_rows(frame, block[rows], found, None if weights is None else weights[rows])

    def _add_rows(self, frame: Frame, rows: Array, found: _Measured, weights: Floats | None) -> None:
        """Fold in a few thousand rows that have been measured."""
        index = np.arange(self.rows, self.rows + len(rows))
        self.rows += len(rows)
        self.count += total(weights, len(rows))
        self._count_scores(found.scores, weights)
        self.t2 += _histogram(found.t2 / self.limits[0], weights)
        self.spe += _histogram(found.spe / self.limits[1], weights)
        self._add_to_sample(rows, index, found, weights)
        self._add_outlying(frame, rows, index, found, weights)

    def _add_to_sample(self, rows: Array, index: Array, found: _Measured, weights: Floats | None) -> None:
        """Add the rows with small keys: the upper half of a key is at hand, so that few rows are hashed from end to end."""
        upper = found.keys if weights is None else np.where(weights > 0, found.keys, _NO_KEY)
        full = self._sample.row[-1] >= 0
        chosen = np.flatnonzero(upper <= self._sample.keys[-1] >> _HALF if full else upper < _NO_KEY)
        if len(chosen) > SAMPLE:
            distinct = np.unique(upper[chosen])
            chosen = chosen[upper[chosen] <= distinct[min(SAMPLE, len(distinct)) - 1]]
        if not len(chosen):
            return
        keys = upper[chosen] << _HALF | row_keys(rows, chosen) >> _HALF
        width = self._sample.scores.shape[1]
        each = np.ones(len(chosen)) if weights is None else weights[chosen]
        new = Sample(keys, index[chosen], each, found.t2[chosen], found.spe[chosen], found.scores[chosen, :width])
        self._sample = _smallest(self._sample, new)

    def _add_outlying(self, frame: Frame, rows: Array, index: Array, found: _Measured, weights: Floats | None) -> None:
        t2, spe, scores = found.t2, found.spe, found.scores
        excess = np.maximum(t2 / self.limits[0], spe / self.limits[1])
        outlying = excess > max(self._outlying.excess[-1], 0.0)
        chosen = np.flatnonzero(outlying if weights is None else outlying & (weights > 0))
        if len(chosen) > OUTLYING:
            chosen = np.sort(chosen[np.lexsort((chosen, -excess[chosen]))[:OUTLYING]])
        if not len(chosen):
            return
        by_t2 = t2[chosen] / self.limits[0] >= spe[chosen] / self.limits[1]
        feature = _main_features(frame, rows, chosen, scores[chosen], by_t2)
        first = np.pad(scores[chosen, :2], ((0, 0), (0, max(2 - scores.shape[1], 0))))
        self._outlying = _largest(self._outlying, Outlying(index[chosen], excess[chosen], t2[chosen], spe[chosen], feature, first))

    def merge(self, other: Self) -> None:
        """Fold in the summary of the rows that follow those of this one."""
        self._sample = _smallest(self._sample, _shifted(other._sample, self.rows))
        self._outlying = _largest(self._outlying, _shifted(other._outlying, self.rows))
        self.t2 += other.t2
        self.spe += other.spe
        super().merge(other)

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            **super().to_arrays(),
            "limits": self.limits,
            "t2": self.t2,
            "spe": self.spe,
            **{f"sample_{name}": part for name, part in self._sample._asdict().items()},
            **{f"outlying_{name}": part for name, part in self._outlying._asdict().items()},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        summary = super().from_arrays(arrays)
        summary._frame = None
        summary.limits, summary.t2, summary.spe = arrays["limits"], arrays["t2"], arrays["spe"]
        summary._sample = Sample(**{name: arrays[f"sample_{name}"] for name in Sample._fields})
        summary._outlying = Outlying(**{name: arrays[f"outlying_{name}"] for name in Outlying._fields})
        return summary

    def workspace(self, rows: int) -> int:  # noqa: D102
        frame: Any = self._frame
        d, k = len(frame.mean), len(frame.components)
        height, taken = min(rows, max(_STRIP_BYTES // (4 * d), 16)), min(rows, ROWS_AT_ONCE)
        strips = height * 5 * 8 * d + 2 * 8 * d * min(taken, _KEYS_BYTES // (8 * d) + 1) + 8 * 8 * d * min(_rows_of_a_strip(d), OUTLYING)
        return strips + taken * 8 * (3 * k + 64) + 2 * 8 * d * k + 2 * 8 * GRID * GRID + 16 * 8 * d + 64 * 8 * SAMPLE


def bin_edges() -> Floats:
    """Return the upper edges of the bins of T2 and SPE, in units of their limits: below the first, ..., above the last.

    >>> edges = bin_edges()
    >>> edges[0], edges[-1]
    (np.float64(1e-06), np.float64(inf))
    """
    low, high = DECADES
    return np.append(10.0 ** np.linspace(low, high, _BINS - 1), np.inf)


def row_keys(rows: Array, chosen: Array | None = None) -> NDArray[np.uint64]:
    """Return a hash of the values of each row, or of chosen ones, the same in any memory layout.

    A sum of the row's words times odd numbers, modulo 2^64, mixed so that all bits depend on all others.

    >>> keys = row_keys(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> keys[0] == keys[2], keys[0] == keys[1]
    (np.True_, np.False_)
    """
    keys = np.empty(len(rows) if chosen is None else len(chosen), np.uint64)
    height = _KEYS_BYTES // (8 * rows.shape[1]) + 1
    for start in range(0, len(keys), height):
        part = slice(start, start + height)
        keys[part] = _mixed(_sums_of_words(rows[part] if chosen is None else rows[chosen[part]]))
    return keys


def _sums_of_words(rows: Array) -> NDArray[np.uint64]:
    """Return the sum of each row's words, as wide as its bytes allow, times odd numbers."""
    if rows.dtype.itemsize > 8:
        rows = rows.astype(np.float64)  # the bytes that extended numbers are padded with may be anything
    plain = np.ascontiguousarray(rows)
    size = plain.shape[1] * plain.itemsize
    word = next(each for each in (8, 4, 2, 1) if size % each == 0)
    words = plain.view(np.uint8).reshape(len(plain), size).view(f"u{word}")
    sums: NDArray[np.uint64] = words.astype(np.uint64, copy=False) @ _odd(words.shape[1])
    return sums


def _odd(count: int) -> NDArray[np.uint64]:
    """Return so many odd numbers, scattered over all 64 bits."""
    return _mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values scattered over all 64 bits (the finaliser of SplitMix64)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


class _Measured(NamedTuple):
    """What is told of each of some rows."""

    scores: Floats
    t2: Floats
    spe: Floats
    keys: NDArray[np.uint64]  # upper halves, less than ``_NO_KEY``


def _measured(rows: Array, frame: Frame, projection: Array, given: Array | None) -> _Measured:
    """Measure rows strip by strip, from the scores that the model has given or else from what they are projected to here."""
    dtype, columns = projection.dtype, _looked_at(len(frame.mean))
    scores = np.empty((len(rows), len(projection))) if given is None else _plain_scores(given, frame)
    squares, entries = np.empty(len(rows), dtype), np.empty((len(rows), len(columns)), dtype)
    height = max(_STRIP_BYTES // (len(frame.mean) * dtype.itemsize), 16)
    centring, buffer = _Centring.of(frame, dtype), np.empty((min(height, len(rows)), len(frame.mean)), dtype)
    for start in range(0, len(rows), height):
        strip = slice(start, start + height)
        centred = centring.apply(rows[strip], buffer)
        if given is None:
            scores[strip] = centred @ projection.T
        np.einsum("ij,ij->i", centred, centred, out=squares[strip])
        entries[strip] = centred[:, columns]
    errors: Floats = squares - np.einsum("ij,ij->i", scores, scores)
    cancelled = np.flatnonzero(errors < _CANCELLED[dtype.name] * squares)
    for start in range(0, len(cancelled), height):
        few = cancelled[start : start + height]
        residual = centring.apply(rows[few], buffer)
        residual -= scores[few].astype(dtype) @ projection
        errors[few] = np.einsum("ij,ij->i", residual, residual)
    return _Measured(scores, (scores * scores) @ frame.inverse_variances, errors, _half_keys(squares, entries))


def _looked_at(n_features: int) -> NDArray[np.intp]:
    """Return a few columns, evenly spread."""
    return np.linspace(0, n_features - 1, min(_LOOKED_AT, n_features)).astype(np.intp)


def _plain_scores(given: Array, frame: Frame) -> Floats:
    """Return scores as they were before they were made white."""
    plain: Floats = given.astype(np.float64)
    if frame.whitening is not None:
        plain *= frame.whitening
    return plain


class _Centring(NamedTuple):
    """What is subtracted from rows, and what they are divided by; None where there is nothing to do."""

    pivot: Array
    rest: Array | None  # what rounding the mean to float32 leaves out, if it could be seen
    scale: Array | None

    @classmethod
    def of(cls, frame: Frame, dtype: np.dtype[Any]) -> Self:
        pivot = frame.mean.astype(dtype)
        rest = frame.mean - pivot
        unseen = _UNSEEN * frame.spe_limit if np.isfinite(frame.spe_limit) else 0.0
        seen = not np.square(rest / frame.scale).sum() <= unseen
        scaled = bool((frame.scale != 1).any())
        return cls(pivot, rest.astype(dtype) if seen else None, frame.scale.astype(dtype) if scaled else None)

    def apply(self, strip: Array, buffer: Array) -> Array:
        centred: Array = np.subtract(strip, self.pivot, out=buffer[: len(strip)], dtype=buffer.dtype, casting="unsafe")
        if self.rest is not None:
            centred -= self.rest
        if self.scale is not None:
            centred /= self.scale
        return centred


def _half_keys(squares: Array, entries: Array) -> NDArray[np.uint64]:
    """Return 32 bits that depend on the length of each row and on a few of its entries: hardly two distinct rows share them."""
    word = f"u{squares.itemsize}"
    keys: NDArray[np.uint64] = squares.view(word).astype(np.uint64)
    for odd, entry in zip(_odd(entries.shape[1]), entries.T, strict=True):
        keys += np.ascontiguousarray(entry).view(word) * odd
    halves: NDArray[np.uint64] = np.minimum(_mixed(keys) >> _HALF, _NO_KEY - np.uint64(1))
    return halves


def _histogram(ratios: Floats, weights: Floats | None) -> Floats:
    """Return the weights by bin; not a number (0 by a limit of 0) counts as below."""
    with np.errstate(divide="ignore"):
        places = np.floor((np.log10(ratios) - DECADES[0]) * PER_DECADE) + 1
    bins = np.clip(np.nan_to_num(places, nan=0.0), 0, _BINS - 1).astype(np.int64)
    counts: Floats = np.bincount(bins, weights, _BINS).astype(np.float64, copy=False)
    return counts


def _main_features(frame: Frame, rows: Array, chosen: Array, scores: Floats, by_t2: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the column that contributes most to T2, or to SPE, of each chosen row; a few at a time, for they may be wide."""
    found, height = np.empty(len(chosen), np.int64), _rows_of_a_strip(len(frame.mean))
    centring = _Centring.of(frame, np.dtype(np.float64))
    for start in range(0, len(chosen), height):
        few = slice(start, start + height)
        wanted = rows[chosen[few]]
        centred = centring.apply(wanted, np.empty(wanted.shape))
        to_t2 = centred * ((scores[few] * frame.inverse_variances) @ frame.components)
        to_spe = (centred - scores[few] @ frame.components) ** 2
        found[few] = np.where(by_t2[few, None], to_t2, to_spe).argmax(axis=1)
    return found


def _rows_of_a_strip(n_features: int) -> int:
    return max(_STRIP_BYTES // (8 * n_features), 1)


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
