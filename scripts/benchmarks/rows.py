"""The rows of every kind of table, a block at a time, from a fixed seed; the same whatever the formats.

``KINDS`` has them by name. Blocks of a long table are drawn one by one; the tables with a given spectrum are built whole, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.dataset import Dataset

RANK = 40
DECAY = 4.6 ** (-1 / 19)  # of the standard deviations of the components: s[0] / s[19] = 4.6
WIDE_RANK, WIDE_DECAY = 200, 10.0  # directions, and the standard deviation of the first by that of the last
LARGEST, NOISE = 10.0, 0.1
GROUP = 4  # groups of equal eigenvalues up to the last component asked for
SLAB = 512  # columns that are mixed at a time
MISSING = 0.2
SPARSE_WIDTH = 10  # columns of a sparse component

Rows = Iterator[np.ndarray]


def low_rank(data: Dataset) -> Rows:
    """Low rank + noise + a mean. A longer table begins alike."""
    rank = min(RANK, data.n_features)
    return _factors(data, LARGEST * DECAY ** np.arange(rank), max(2**23 // data.row_bytes, 1))


def night(data: Dataset) -> Rows:
    """More rows of the same kind and directions."""
    rank = min(RANK, data.n_features)
    return _factors(data, LARGEST * DECAY ** np.arange(rank), max(2**23 // data.row_bytes, 1), np.random.default_rng(1))


def sparse(data: Dataset) -> Rows:
    """k components of few columns each, none in common, + noise + a mean."""
    rng = np.random.default_rng(0)
    loadings = np.zeros((data.k, data.n_features), np.float32)
    for i, deviation in enumerate(np.linspace(3, 1.5, data.k)):
        loadings[i, sparse_columns(data, i)] = deviation / np.sqrt(SPARSE_WIDTH)
    mean = rng.standard_normal(data.n_features, dtype=np.float32)
    for _ in range(0, data.n_rows, data.block_rows):
        x = rng.standard_normal((data.block_rows, data.n_features), dtype=np.float32)
        x *= np.float32(0.5)
        x += rng.standard_normal((len(x), data.k), dtype=np.float32) @ loadings
        x += mean
        yield x


def sparse_columns(data: Dataset, component: int) -> slice:
    """Return the columns of a planted sparse component."""
    return slice(component * SPARSE_WIDTH, min((component + 1) * SPARSE_WIDTH, data.n_features))


def wide(data: Dataset) -> Rows:
    """Slowly decaying directions + noise + a mean: no gap after any component."""
    rank = min(WIDE_RANK, data.n_rows // 2, data.n_features // 2)
    return _factors(data, LARGEST * WIDE_DECAY ** -np.linspace(0, 1, rank), 8 * data.chunk_rows)


def _factors(data: Dataset, deviations: np.ndarray, height: int, drawn: np.random.Generator | None = None) -> Rows:
    """Yield rows of so many directions; ``drawn`` draws other rows with the same directions and mean."""
    rng = np.random.default_rng(0)
    rank = len(deviations)
    directions, _ = np.linalg.qr(rng.standard_normal((data.n_features, rank)))
    loadings = (directions * deviations).T.astype(np.float32)
    del directions
    mean = rng.standard_normal(data.n_features, dtype=np.float32)
    rng = drawn or rng
    for _ in range(0, data.n_rows, height):
        x = rng.standard_normal((height, data.n_features), dtype=np.float32)
        x *= np.float32(NOISE)
        x += rng.standard_normal((height, rank), dtype=np.float32) @ loadings
        x += mean
        yield x


def missing(data: Dataset) -> Rows:
    """Rank k + noise + a mean, a part of the entries missing at random."""
    rng = np.random.default_rng(1)
    for x in _factors(data, LARGEST * DECAY ** np.arange(data.k), data.block_rows):
        x[rng.random(x.shape, dtype=np.float32) < MISSING] = np.nan
        yield x


def blobs(data: Dataset) -> Rows:
    """Two hundred round clusters in random order: what a kernel sees as more directions than there are columns."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((200, data.n_features), dtype=np.float32)
    for _ in range(0, data.n_rows, data.block_rows):
        x = rng.standard_normal((data.block_rows, data.n_features), dtype=np.float32)
        x *= np.float32(0.5)
        x += centres[rng.integers(len(centres), size=len(x))]
        yield x


def power(alpha: float, data: Dataset) -> Rows:
    """Singular values i^-alpha."""
    return _with_spectrum(data, np.arange(1.0, data.n_features + 1) ** -alpha)


def equal(data: Dataset) -> Rows:
    """Singular values in groups of equals, the k-th the last of its group: the k-subspace is defined, its axes are not."""
    group = np.arange(data.n_features) // max(data.k // GROUP, 1)
    return _with_spectrum(data, (group + 1.0) ** -0.5)


def _with_spectrum(data: Dataset, s: np.ndarray) -> Rows:
    """Yield rows of U diag(s) V^T + a mean, U orthogonal to it: centred, they have these singular values, up to a factor and float32."""
    from scipy.fft import idct

    rng = np.random.default_rng(0)
    n, d = data.n_rows, data.n_features
    s = s * np.sqrt(n * d / np.square(s).sum())  # entries of mean square one, before the mean
    mean = rng.standard_normal(d)
    sv = s[:, None] * _mixed(np.eye(d), _signs(rng, d)).T
    signs = _signs(rng, n - 1)
    out = np.empty((n, d), np.float32)
    for slab in (slice(start, start + SLAB) for start in range(0, d, SLAB)):
        padded = np.vstack([sv[:, slab], np.zeros((n - 1 - d, sv[:, slab].shape[1]))])
        spread = np.vstack([np.zeros((1, padded.shape[1])), _mixed(padded, signs)])  # the first cosine is the constant one
        out[:, slab] = idct(spread, axis=0, norm="ortho", overwrite_x=True) + mean[slab]
    yield from (out[start : start + data.block_rows] for start in range(0, n, data.block_rows))


def _signs(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], size=(2, n))


def _mixed(x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return Q x for a random-looking orthogonal Q: random signs and a cosine transform, twice. A QR would cost minutes."""
    from scipy.fft import dct

    for each in signs:
        x = dct(x * each[:, None], axis=0, norm="ortho", overwrite_x=True)
    return x


def clusters(data: Dataset) -> Rows:
    """Twice k clusters, one after another, each in a direction of its own: what comes late was never seen before."""
    rng = np.random.default_rng(0)
    n, d, many = data.n_rows, data.n_features, 2 * data.k
    strengths = rng.permutation(np.linspace(1, 0.3, many)) * LARGEST
    directions, _ = np.linalg.qr(rng.standard_normal((d, many)))
    centres = (directions * strengths).T.astype(np.float32)
    for start in range(0, n, data.block_rows):
        x = rng.standard_normal((min(data.block_rows, n - start), d), dtype=np.float32)
        x *= np.float32(NOISE)
        x += centres[np.arange(start, start + len(x)) * many // n]
        yield x


KINDS: dict[str, Callable[[Dataset], Rows]] = {
    "low-rank": low_rank,
    "night": night,
    "sparse": sparse,
    "wide": wide,
    "power-0.3": partial(power, 0.3),
    "power-0.5": partial(power, 0.5),
    "power-1": partial(power, 1.0),
    "clusters": clusters,
    "equal": equal,
    "missing": missing,
    "blobs": blobs,
}
