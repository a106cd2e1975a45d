"""Choosing landmarks: rows of the data whose kernel columns stand for all. At most one extra pass, the same rows for the same seed.

A sample of rows is read by index, in order, so that every stored chunk is decoded once at most; the landmarks are chosen of that sample.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from streampca.errors import DataError, NonFiniteError, UsageError, did_you_mean
from streampca.kernels.functions import Kernel
from streampca.kernels.maps import strips
from streampca.kernels.nystrom import gram
from streampca.memory import KIB, MIB
from streampca.sources.base import Source
from streampca.sources.views import slab_rows
from streampca.statistics.base import Array, Floats, find_nonfinite

Indices = NDArray[np.int64]
Method = Literal["auto", "pivoted", "uniform", "kmeans++", "leverage"]

MIN_SAMPLE, SAMPLE = 2000, 5000  # rows that landmarks are chosen of: more make no better landmarks (measured), and take longer
SAMPLE_BYTES = 128 * MIB  # of the sample's columns that the choice of landmarks keeps
MAX_CHUNKS = 1024
_GAP = 64 * KIB  # a gap between wanted rows that is read rather than skipped
_PROPOSALS = 64
_DICTIONARY_PER_LANDMARK, _DICTIONARY = 4, 2000  # rows that leverage scores are found from
_LEVERAGE_SHARE = 4  # landmarks per dimension of the subspace beyond which the ridge is the mean of the rest of the spectrum


@dataclass(frozen=True, eq=False)
class Sample:
    """Some rows of a source, and which they are."""

    rows: Array
    indices: Indices


@dataclass(frozen=True, eq=False)
class Landmarks:
    """The chosen rows, which they are in the source, and how they were chosen."""

    points: Array
    indices: Indices
    method: str


def sample_size(n_landmarks: int, n_rows: int) -> int:
    """Return how many rows the landmarks are chosen of: ten times as many, or 5,000, or four times as many; at least twice as many.

    >>> sample_size(500, 1_000_000), sample_size(500, 800), sample_size(2000, 1_000_000)
    (5000, 800, 8000)
    """
    held = SAMPLE_BYTES // (8 * max(n_landmarks, 1))
    wanted = max(min(10 * n_landmarks, SAMPLE), 4 * n_landmarks, MIN_SAMPLE)
    return min(max(min(wanted, held), 2 * n_landmarks), n_rows)


def choice_bytes(n_landmarks: int, n_rows: int, n_features: int) -> int:
    """Return the bytes that choosing landmarks needs: the sample, its columns, and a few blocks of them."""
    size = sample_size(n_landmarks, n_rows)
    return size * (8 * n_landmarks + 24 * n_features + 8 * 4 * _PROPOSALS) + 3 * 8 * max(n_landmarks, min(_DICTIONARY, size)) ** 2


def choose_landmarks(
    source: Source, kernel: Kernel, n_landmarks: int, *, method: Method = "auto", seed: int = 0, sample: Sample | None = None
) -> Landmarks:
    """Return rows of a source to be landmarks; all of them if there are no more.

    Parameters
    ----------
    source : Source
        The data.
    kernel : Kernel
        The kernel that they are chosen for.
    n_landmarks : int
        How many.
    method : {"auto", "pivoted", "uniform", "kmeans++", "leverage"}
        ``"pivoted"``: each with a probability in proportion to what those before it leave of its k(x, x) (randomly pivoted Cholesky, Chen
        et al. 2024), which had the smallest error in most measurements: ``"auto"``, unless the kernel is indefinite, then uniform.
        ``"kmeans++"``: in proportion to the squared distance to those before it. ``"leverage"``: by ridge leverage scores, found
        recursively (Musco & Musco 2017).
    seed : int
        The same seed gives the same landmarks.
    sample : Sample, optional
        Rows already read, of which to choose.

    >>> from streampca.kernels.functions import Rbf
    >>> from streampca.sources import ArraySource
    >>> choose_landmarks(ArraySource(np.arange(20.0).reshape(10, 2)), Rbf(0.1), 3, method="uniform").points.shape
    (3, 2)
    """
    if method not in get_args(Method):
        names = get_args(Method)
        raise UsageError(f"there is no choice of landmarks {method!r}: choose one of {', '.join(names)}.{did_you_mean(str(method), names)}")
    if n_landmarks < 1:
        raise UsageError(f"at least 1 landmark is needed, not {n_landmarks}")
    if method == "auto":
        method = "pivoted" if kernel.definite else "uniform"
    if sample is None:
        n_rows = source.info.n_rows
        sample = sample_rows(source, min(n_landmarks, n_rows) if method == "uniform" else sample_size(n_landmarks, n_rows), seed)
    chosen = _choose(kernel, sample.rows, n_landmarks, method, np.random.default_rng([seed, 1]))
    return Landmarks(sample.rows[chosen], sample.indices[chosen], method)


def _choose(kernel: Kernel, X: Array, m: int, method: str, rng: np.random.Generator) -> Indices:
    n = len(X)
    if n <= m:
        return np.arange(n)
    if method == "uniform":
        return np.sort(rng.choice(n, m, replace=False))
    if method == "kmeans++":
        return _kmeans_plus_plus(X, m, rng)
    return _pivoted(kernel, X, m, rng) if method == "pivoted" else _by_leverage(kernel, X, m, rng)


# --- a sample, read by index ----------------------------------------------------------------------------------


def sample_rows(source: Source, count: int, seed: int, max_chunks: int = MAX_CHUNKS) -> Sample:
    """Return rows drawn uniformly without replacement, in order.

    Where they would lie in more than ``max_chunks`` stored chunks, so many chunks are drawn, and the rows evenly from these. Rows with NaN
    or infinite entries are left out (the pass that follows names the first of them), and rows of weight zero.
    """
    rng = np.random.default_rng([seed, 0])
    n = source.info.n_rows
    indices = np.sort(rng.choice(n, min(count, n), replace=False)).astype(np.int64)
    indices = _within_chunks(source, indices, max_chunks, rng)
    rows, weights = read_rows(source, indices)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.any():
        place = find_nonfinite(rows)
        if place is None:
            raise DataError(f"no rows could be sampled of {source.info.description}")
        raise NonFiniteError(float(rows[place]), int(indices[place[0]]), place[1])
    kept = finite & (weights > 0)
    if not kept.any():
        raise DataError(f"all {len(kept)} sampled rows of {source.info.description} have weight zero")
    return Sample(rows, indices) if kept.all() else Sample(rows[kept], indices[kept])


def _within_chunks(source: Source, indices: Indices, max_chunks: int, rng: np.random.Generator) -> Indices:
    spans = [_chunk_of(source, int(index)) for index in indices]
    distinct = list(dict.fromkeys(spans))
    if len(distinct) <= max_chunks or all(stop - start == 1 for start, stop in distinct):
        return indices
    drawn = [distinct[i] for i in np.sort(rng.choice(len(distinct), max_chunks, replace=False))]
    each = -(-len(indices) // max_chunks)
    parts = [start + np.sort(rng.choice(stop - start, min(each, stop - start), replace=False)) for start, stop in drawn]
    return np.concatenate(parts).astype(np.int64)


def _chunk_of(source: Source, row: int) -> tuple[int, int]:
    """Return the rows of the stored chunk that a row lies in."""
    segments = source.info.segments
    segment = segments[bisect_right(segments, row, key=lambda each: each.start) - 1]
    origin = segment.start - segment.phase
    start = origin + (row - origin) // segment.chunk_rows * segment.chunk_rows
    return max(start, segment.start), min(start + segment.chunk_rows, segment.stop)


def read_rows(source: Source, indices: Indices) -> tuple[Array, Floats]:
    """Return the rows with these ascending indices and their weights, reading each stored chunk once at most, and in order."""
    info = source.info
    rows, weights = np.empty((len(indices), info.n_features), info.dtype), np.ones(len(indices))
    for first, last in _runs(source, indices):
        start, stop = int(indices[first]), int(indices[last - 1]) + 1
        wanted = indices[first:last] - start
        rows[first:last] = source.read(slice(start, stop))[wanted]
        given = source.weights(slice(start, stop))
        if given is not None:
            weights[first:last] = given[wanted]
    return rows, weights


def _runs(source: Source, indices: Indices) -> Iterator[tuple[int, int]]:
    """Yield ranges of wanted rows that are read at once: of one chunk, or with small gaps between them, within a slab."""
    info = source.info
    limit, first, end = slab_rows(info), 0, _chunk_of(source, int(indices[0]))[1]
    for place in range(1, len(indices)):
        row = int(indices[place])
        near = row < end or (row - indices[place - 1]) * info.row_bytes <= _GAP
        if not near or row - indices[first] >= limit:
            yield first, place
            first = place
        if row >= end:
            end = _chunk_of(source, row)[1]
    yield first, len(indices)


# --- landmarks of a sample ------------------------------------------------------------------------------------


def _kmeans_plus_plus(X: Array, m: int, rng: np.random.Generator) -> Indices:
    """Draw each row in proportion to its squared distance from the nearest one drawn before (Arthur & Vassilvitskii 2007)."""
    rows = X - X.mean(axis=0, dtype=np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    chosen = [int(rng.integers(len(X)))]
    distances = np.full(len(X), np.inf)
    for _ in range(m - 1):
        last = chosen[-1]
        np.minimum(distances, np.maximum(squares + squares[last] - 2 * (rows @ rows[last]), 0.0), out=distances)
        distances[last] = 0.0
        chosen.append(_draw(distances, chosen, rng))
    return np.array(chosen)


def _pivoted(kernel: Kernel, X: Array, m: int, rng: np.random.Generator) -> Indices:
    """Draw rows in proportion to the diagonal of K less what those drawn before explain.

    Rows are proposed by the dozen and then accepted one by one with the probability that makes the outcome that of drawing one at a time
    (Epperly, Tropp & Webber 2024): matrix products instead of one pass over the factor for each.
    """
    n, dtype = len(X), kernel.dtype_for(X.dtype)
    factor, rest = np.zeros((n, m), dtype), np.maximum(kernel.diagonal(X), 0.0)
    floor = (1e-13 if dtype == np.float64 else 1e-7) * float(rest.sum())
    chosen: list[int] = []
    while len(chosen) < m and rest.sum() > floor:
        done = len(chosen)
        proposed = rng.choice(n, _PROPOSALS, p=rest / rest.sum())
        known = factor[proposed, :done].astype(np.float64, copy=False)
        residual = gram(kernel, X[proposed]) - known @ known.T
        accepted = _accept(residual, rng)[: m - done]
        if not accepted:
            rest[proposed] = 0.0  # only rounding is left of them
            continue
        rows = proposed[accepted]
        lower = linalg.cholesky(_lifted(residual[np.ix_(accepted, accepted)]), lower=True)
        new = slice(done, done + len(rows))
        columns = kernel.evaluate(X, X[rows]).astype(dtype, copy=False) - factor[:, :done] @ factor[rows, :done].T
        factor[:, new] = linalg.solve_triangular(lower.astype(dtype, copy=False), columns.T, lower=True).T
        rest -= np.einsum("ij,ij->i", factor[:, new], factor[:, new], dtype=np.float64)
        np.maximum(rest, 0.0, out=rest)
        rest[rows] = 0.0
        chosen += rows.tolist()
    while len(chosen) < m:  # the kernel has a lower rank: any others
        chosen.append(_draw(np.zeros(n), chosen, rng))
    return np.array(chosen)


def _accept(residual: Floats, rng: np.random.Generator) -> list[int]:
    """Return the proposals that are accepted: each with the share that those accepted before it leave of its diagonal."""
    left, chances = residual.copy(), residual.diagonal().copy()
    accepted = []
    for i, uniform in enumerate(rng.uniform(size=len(left))):
        if left[i, i] > 1e-8 * chances[i] and uniform * chances[i] < left[i, i]:
            accepted.append(i)
            column = left[:, i] / np.sqrt(left[i, i])
            left -= np.outer(column, column)
    return accepted


def _lifted(matrix: Floats) -> Floats:
    matrix.flat[:: len(matrix) + 1] += 1e-12 * matrix.diagonal().max()
    return matrix


def _by_leverage(kernel: Kernel, X: Array, m: int, rng: np.random.Generator) -> Indices:
    """Draw rows by ridge leverage scores: those of some rows from all of them, of twice as many from some drawn by these, and so on."""
    n = len(X)
    order, dictionary = rng.permutation(n), min(max(m, min(_DICTIONARY_PER_LANDMARK * m, _DICTIONARY)), n)
    chosen, weights, size = order[:dictionary], np.ones(dictionary), dictionary
    while True:
        size = min(2 * size, n)
        scores = _ridge_leverage(kernel, X, order[:size], chosen, weights, max(m // _LEVERAGE_SHARE, 1))
        chances = scores / scores.sum()
        if size == n:
            return order[rng.choice(n, m, replace=False, p=chances)]
        places = rng.choice(size, dictionary, replace=False, p=chances)
        chosen, weights = order[places], 1 / np.sqrt(np.minimum(dictionary * chances[places], 1.0))


def _ridge_leverage(kernel: Kernel, X: Array, candidates: Indices, chosen: Indices, weights: Floats, top: int) -> Floats:
    """Return min(1, [K (K + ridge)^-1]_ii) of candidate rows, with K approximated by weighted chosen ones."""
    points = X[chosen]
    inner = gram(kernel, points) * np.outer(weights, weights)
    spectrum = linalg.eigvalsh(inner)[::-1]
    if not spectrum[0] > 0:
        return np.ones(len(candidates))
    ridge = max(float(np.maximum(spectrum[top:], 0.0).sum()) / top, 1e-10 * float(spectrum[0]))
    inner.flat[:: len(inner) + 1] += ridge + max(-float(spectrum[-1]), 0.0)
    lower = linalg.cholesky(inner, lower=True, overwrite_a=True)
    scores = np.empty(len(candidates))
    for rows in strips(len(candidates), 1024):
        block = X[candidates[rows]]
        half = linalg.solve_triangular(lower, (kernel.evaluate(block, points) * weights).T, lower=True)
        scores[rows] = kernel.diagonal(block) - np.einsum("ij,ij->j", half, half)
    return np.clip(scores / ridge, 1e-12, 1.0)


def _draw(masses: Floats, taken: list[int], rng: np.random.Generator) -> int:
    """Draw an index in proportion to masses; any that is not taken if there are none."""
    total = np.cumsum(masses)
    if total[-1] > 0:
        return min(int(np.searchsorted(total, rng.uniform(0, total[-1]), side="right")), len(masses) - 1)
    others = np.setdiff1d(np.arange(len(masses)), taken)
    return int(others[rng.integers(len(others))])
