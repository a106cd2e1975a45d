"""The products of few, long samples with each other, in one pass over slabs of columns: the dual of the scatter matrix.

Its rows are the features of the data, each a vector over all samples. Every feature is complete in its slab, so it is
centred (and, if asked, divided by its deviation) exactly before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streampca import buffers
from streampca.errors import UsageError
from streampca.statistics.base import Array, Floats, Statistic, refuse_nonfinite
from streampca.statistics.scatter import Precision

_STRIP_BYTES = 8 * 2**20
_STRIP_ROWS = (64, 4096)
_PANEL = 512  # samples: products of a panel with all later samples are made at once


class Gram(Statistic):
    """Sum over features of x x^T, where x holds one centred feature of all samples.

    Parameters
    ----------
    n_samples : int
        Length of a row.
    standardize : bool
        Divide each feature by its standard deviation (divisor n), unless it is constant.
    precision : {"float64", "float32"}
        Of the products; sums are float64.

    >>> gram = Gram(3)
    >>> gram.update(np.array([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]))
    >>> gram.products.tolist()
    [[1.0, 0.0, -1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 1.0]]
    """

    def __init__(self, n_samples: int, standardize: bool = False, precision: Precision = "float64") -> None:
        self.precision: Precision = precision
        self.standardize = standardize
        self.count = 0  # features
        self._sums: Floats = np.zeros((n_samples, n_samples))  # only the upper triangle of panels is filled
        self._buffer: NDArray[np.uint8] | None = None

    @property
    def tolerance(self) -> float:
        """Relative to the square root of the product of two diagonal entries."""
        return 1e-12 if self.precision == "float64" else 1e-6

    @property
    def n_features(self) -> int:
        """Length of a row: the number of samples."""
        return len(self._sums)

    @property
    def products(self) -> Floats:
        """The n x n products."""
        for start in range(0, self.n_features, _PANEL):
            stop = start + _PANEL
            self._sums[stop:, start:stop] = self._sums[start:stop, stop:].T
        return self._sums

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        return partial(type(self), self.n_features, self.standardize, self.precision)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        if weights is not None:
            raise UsageError("solver='dual' reads columns, whose samples cannot have weights: use solver='sketch' or 'covariance'")
        height = strip_rows(self.n_features, self.precision)
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            for start in range(0, len(block), height):
                if not self._add_strip(block[start : start + height]):
                    refuse_nonfinite(block)

    def _add_strip(self, strip: Array) -> bool:
        """Add the products of a few features; return whether they are finite."""
        dtype = np.dtype(self.precision)
        if self._buffer is None:
            self._buffer = buffers.borrow(strip_rows(self.n_features, self.precision) * self.n_features * dtype.itemsize)
        centred = self._buffer[: strip.size * dtype.itemsize].view(dtype).reshape(strip.shape)
        _, deviations = centre_rows(strip, centred)
        if not np.isfinite(deviations).all():
            return False
        if self.standardize:
            centred /= np.where(deviations > 0, deviations, 1.0).astype(dtype)[:, None]
        for start in range(0, self.n_features, _PANEL):
            self._sums[start : start + _PANEL, start:] += centred[:, start : start + _PANEL].T @ centred[:, start:]
        self.count += len(strip)
        return True

    def merge(self, other: Self) -> None:  # noqa: D102
        self.count += other.count
        self._sums += other._sums

    def release(self) -> None:  # noqa: D102
        if self._buffer is not None:
            buffers.give_back(self._buffer)
        self._buffer = None

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {
            "count": np.array(self.count, np.int64),
            "standardize": np.array(self.standardize),
            "precision": np.array(np.dtype(self.precision).itemsize, np.int64),
            "products": self.products,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        gram = cls.__new__(cls)
        gram.precision = "float32" if int(arrays["precision"]) == 4 else "float64"
        gram.standardize, gram.count = bool(arrays["standardize"]), int(arrays["count"])
        gram._sums, gram._buffer = arrays["products"], None
        return gram

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self._sums.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        return workspace_bytes(self.n_features, self.precision)


def centre_rows(rows: Array, out: Array) -> tuple[Floats, Floats]:
    """Put rows, each less its own mean, into ``out``; return the means and standard deviations (divisor: length).

    >>> out = np.empty((1, 2))
    >>> centre_rows(np.array([[1e8, 1e8 + 2]]), out), out
    ((array([1.00000001e+08]), array([1.])), array([[-1.,  1.]]))
    """
    first = rows[:, :1].astype(np.float64)
    narrow = np.can_cast(rows.dtype, out.dtype)
    np.subtract(rows, first.astype(out.dtype) if narrow else first, out=out, casting="same_kind")
    for _ in range(2):  # the second time takes away what rounding the mean left
        offset = out.mean(axis=1, dtype=np.float64)[:, None]
        out -= offset.astype(out.dtype)
        first += offset
    squares = np.einsum("ij,ij->i", out, out, dtype=np.float64) / rows.shape[1]
    return first[:, 0], np.sqrt(squares)


def state_bytes(n_samples: int) -> int:
    """Return the bytes of a state, without making one."""
    return 8 * n_samples * n_samples


def workspace_bytes(n_samples: int, precision: Precision) -> int:
    """Return the bytes that updates need beside the state: the centred strip, a panel of products, NumPy's casting buffers."""
    itemsize = np.dtype(precision).itemsize
    rows = strip_rows(n_samples, precision)
    return itemsize * n_samples * (rows + 2 * min(_PANEL, n_samples)) + 64 * rows + 2**18


def strip_rows(n_samples: int, precision: Precision) -> int:
    """Return the features that are multiplied at once."""
    low, high = _STRIP_ROWS
    return min(max(_STRIP_BYTES // (n_samples * np.dtype(precision).itemsize), low), high)
