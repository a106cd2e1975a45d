"""How good kernel features are: what they leave out of the kernel matrix, measured on pairs of rows or summed in a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from streampca.errors import NonFiniteError, UsageError
from streampca.kernels.fourier import FourierMap
from streampca.kernels.functions import Kernel
from streampca.kernels.maps import FeatureMap, strips
from streampca.kernels.nystrom import NystromMap
from streampca.statistics.base import Array, Floats, Statistic
from streampca.statistics.scatter import Scatter

_STRIP_ROWS = 256


@dataclass(frozen=True)
class Trace:
    """The sum of k(x, x) over rows, and of |f(x)|^2."""

    count: float
    total: float
    captured: float

    @property
    def uncaptured(self) -> float:
        """The mean of k(x, x) - |f(x)|^2; below zero for kernels that are not positive semi-definite, and by rounding."""
        return (self.total - self.captured) / self.count

    @property
    def uncaptured_share(self) -> float:
        """The same, as a share of the mean of k(x, x)."""
        return (self.total - self.captured) / self.total


def trace_of(features: Scatter, total: float | None = None) -> Trace:
    """Return the trace from the scatter of features, which has |f(x)|^2 in it.

    ``total`` is the sum of k(x, x): ``KernelColumns.trace`` of the raw columns' scatter; by default 1 for each row.
    """
    n = float(features.count)
    captured = float(features.scatter.trace()) + n * float(features.mean @ features.mean)
    return Trace(n, n if total is None else total, captured)


class TraceSums(Statistic):
    """The sums of k(x, x) and |f(x)|^2 over rows, for any feature map.

    >>> from streampca.kernels.functions import Rbf
    >>> sums = TraceSums(NystromMap.fit(Rbf(1.0), np.array([[0.0], [9.0]])))
    >>> sums.update(np.array([[0.0], [9.0], [100.0]]))
    >>> round(sums.trace.uncaptured, 6)
    0.333333
    """

    tolerance = 1e-10

    def __init__(self, features: NystromMap | FourierMap) -> None:
        self._features: NystromMap | FourierMap | None = features
        self._sums: Floats = np.zeros(3)  # weights, k(x, x), |f(x)|^2

    @property
    def count(self) -> float:
        """Number of rows, or the sum of their weights."""
        return float(self._sums[0])

    @property
    def trace(self) -> Trace:
        """What was summed."""
        return Trace(*map(float, self._sums))

    def blueprint(self) -> Callable[[], Self]:  # noqa: D102
        features: Any = self._features
        return partial(type(self), features)

    def update(self, block: Array, weights: Floats | None = None) -> None:  # noqa: D102
        if self._features is None:
            raise UsageError("a statistic restored from arrays can be merged and read, not updated")
        for rows in strips(len(block), _STRIP_ROWS):
            each = np.ones(rows.stop - rows.start) if weights is None else weights[rows]
            try:
                features = self._features.transform(block[rows])
            except NonFiniteError as error:
                raise error.at(rows.start) from None
            squares = np.einsum("ij,ij->i", features, features, dtype=np.float64)
            self._sums += each.sum(), each @ _diagonal(self._features, block[rows]), each @ squares

    def merge(self, other: Self) -> None:  # noqa: D102
        self._sums += other._sums

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {"sums": self._sums}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:  # noqa: D102
        statistic = cls.__new__(cls)
        statistic._features, statistic._sums = None, arrays["sums"]
        return statistic

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self._sums.nbytes

    def workspace(self, rows: int) -> int:  # noqa: D102
        if self._features is None:
            return 0
        rows, features = min(rows, _STRIP_ROWS), self._features
        return features.workspace(rows) + rows * (12 * features.n_features_out + 32 * features.n_features_in + 64)


def frobenius_error(kernel: Kernel, features: FeatureMap, X: Array) -> float:
    """Return |K - F F^T| / |K| (Frobenius) over all pairs of the given rows, a sample that was not used to make the features.

    >>> from streampca.kernels.functions import Rbf
    >>> X = np.random.default_rng(0).standard_normal((50, 2))
    >>> frobenius_error(Rbf(0.5), NystromMap.fit(Rbf(0.5), X), X) < 1e-6
    True
    """
    rows = features.columns.shifted(X) if isinstance(features, NystromMap) else X
    F = features.transform(X).astype(np.float64)
    missed = whole = 0.0
    fill = kernel.against(rows, np.dtype(np.float64))
    for part in strips(len(X), _STRIP_ROWS):
        K: Floats = np.empty((part.stop - part.start, len(X)))
        fill(rows[part], K)
        whole += float(np.einsum("ij,ij->", K, K))
        K -= F[part] @ F.T
        missed += float(np.einsum("ij,ij->", K, K))
    return float(np.sqrt(missed / whole)) if whole > 0 else 0.0


def _diagonal(features: NystromMap | FourierMap, rows: Array) -> Floats:
    return features.kernel.diagonal(features.columns.shifted(rows) if isinstance(features, NystromMap) else rows)
