"""Kernels k(x, z) with scikit-learn's definitions, evaluated for a block of rows against a few points.

A block is one matrix product and one elementwise function in place. float32 is used only where it is safe: for rbf and laplacian,
whose values lie in [0, 1] and depend on differences alone. NaN and infinite entries are refused here: ``exp(-inf) = 0`` would hide them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.spatial.distance import cdist, pdist

from streampca.errors import DataError, NonFiniteError, UsageError, did_you_mean
from streampca.statistics.base import Array, Floats, find_nonfinite

Fill = Callable[[Array, Array], None]  # of rows, into an array of rows x points
Pairs = Callable[[Array, Array], Array]
Gamma = float | Literal["scale", "median"] | None

FLOAT32_EXPONENT = 20.0  # gamma |z|^2: farther from their centre, float32 distances leave an error above 1e-5 in exp(-gamma d^2)
FLOAT64_EXPONENT = 1e6  # the same for float64 and 1e-9
_HUGE = {4: 1e30, 8: 1e250}  # squares beyond which products of float32 and float64 may overflow
_DIAGONAL_ROWS = 32
_MEDIAN_ROWS = 1000


class Kernel(ABC):
    """A kernel: what it is of two rows, for many of them at once."""

    name: ClassVar[str]
    unit_diagonal: ClassVar[bool] = False  # k(x, x) = 1 for every x
    definite: ClassVar[bool] = True  # positive semi-definite whatever the rows
    shiftable: ClassVar[bool] = False  # centring in feature space undoes a shift of all rows: they may be shifted for accuracy
    narrow: ClassVar[bool] = False  # float32 rows may be evaluated in float32

    def dtype_for(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of the kernel's values for rows of a dtype."""
        return np.dtype(np.float32 if self.narrow and np.can_cast(dtype, np.float32) else np.float64)

    @abstractmethod
    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        """Return what fills an array of ``dtype`` with k(x, z) of finite rows x."""

    def against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        """Return a function of rows X and an array, which it fills with k(x, z) for all points z; what depends on Z is done once.

        NaN or infinite entries of X raise ``NonFiniteError`` with their row and column.
        """
        fill, width = self._against(np.ascontiguousarray(Z), dtype), Z.shape[1]

        def checked(X: Array, out: Array) -> None:
            check_rows(X, width)
            with np.errstate(over="ignore", invalid="ignore", under="ignore"):
                fill(X, out)
            if not (self.unit_diagonal or np.isfinite(out).all()):
                raise DataError(f"values of the {self.name} kernel overflow {out.dtype}: rescale the data, or lower gamma, degree or coef0")

        return checked

    def evaluate(self, X: Array, Z: Array, out: Array | None = None) -> Array:
        """Return k(x, z) for all rows x and points z.

        Parameters
        ----------
        X, Z : ndarray of shape (n, d) and (m, d)
            Rows, and points.
        out : ndarray of shape (n, m), optional
            Where to put the values; float32 or float64.

        Returns
        -------
        ndarray of shape (n, m)
            float32 for float32 rows with rbf and laplacian (absolute error below 1e-5, mostly 1e-7), else float64.

        >>> Linear().evaluate(np.array([[1, 2]]), np.array([[3, 4], [0, 1]]))
        array([[11.,  2.]])
        """
        result: Array = np.empty((len(X), len(Z)), self.dtype_for(np.result_type(X, Z))) if out is None else out
        self.against(Z, result.dtype)(X, result)
        return result

    @abstractmethod
    def diagonal(self, X: Array) -> Floats:
        """Return k(x, x) of each row."""

    def scratch(self, rows: int, points: int, width: int) -> int:
        """Return the bytes that filling rows x points needs beside the result, prepared points included."""
        return 8 * ((rows + points) * (width + 4) + rows * points)

    def parameters(self) -> dict[str, str | float]:
        """Return the name and the numbers that make this kernel again.

        >>> Rbf(0.5).parameters()
        {'name': 'rbf', 'gamma': 0.5}
        """
        return {"name": self.name, **{each.name: getattr(self, each.name) for each in fields(self)}}  # type: ignore[arg-type]


@dataclass(frozen=True)
class Linear(Kernel):
    """x . z."""

    name = "linear"
    shiftable = True

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        points = Z.astype(dtype).T

        def fill(X: Array, out: Array) -> None:
            np.matmul(X.astype(dtype, copy=False), points, out=out)

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        return _squares(X)


@dataclass(frozen=True)
class Rbf(Kernel):
    """exp(-gamma |x - z|^2)."""

    gamma: float
    name = "rbf"
    unit_diagonal = True
    narrow = True

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        """Return the fastest way that is accurate, by how far the points reach from their mean.

        Rows far outside are no worse than the points: their values are small.
        """
        origin = Z.mean(axis=0, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            reach = self.gamma * float(_squares(Z - origin).max(initial=0.0))
        if dtype == np.float32 and reach <= FLOAT32_EXPONENT:
            return self._by_products(Z, origin.astype(np.float32), np.dtype(np.float32))
        if reach <= FLOAT64_EXPONENT:
            return self._by_products(Z, origin, np.dtype(np.float64))
        return self._by_distances(Z)

    def _by_products(self, Z: Array, origin: Array, dtype: np.dtype[Any]) -> Fill:
        """Fold -gamma |x - z|^2 into one product, of (x, |x|^2, 1) and (2 gamma z, -gamma, -gamma |z|^2), both about the points' mean."""
        centred = np.subtract(Z, origin, dtype=dtype, casting="same_kind")
        points = np.empty((Z.shape[1] + 2, len(Z)), dtype)
        points[:-2] = (2 * self.gamma) * centred.T
        points[-2] = -self.gamma
        points[-1] = -self.gamma * np.einsum("ij,ij->i", centred, centred)

        def fill(X: Array, out: Array) -> None:
            rows = np.empty((len(X), X.shape[1] + 2), dtype)
            np.subtract(X, origin, out=rows[:, :-2], dtype=dtype, casting="same_kind")
            np.einsum("ij,ij->i", rows[:, :-2], rows[:, :-2], out=rows[:, -2])
            rows[:, -1] = 1
            if not (rows[:, -2] < _HUGE[dtype.itemsize]).all():  # products could overflow
                self._by_distances(Z)(X, out)
            elif out.dtype == dtype:
                np.matmul(rows, points, out=out)
                np.exp(out, out=out)
            else:
                np.exp(rows @ points, out=out, dtype=out.dtype, casting="same_kind")

        return fill

    def _by_distances(self, Z: Array) -> Fill:
        points = Z.astype(np.float64)

        def fill(X: Array, out: Array) -> None:
            distances = cdist(X.astype(np.float64, copy=False), points, "sqeuclidean")
            distances *= -self.gamma
            np.exp(distances, out=out, dtype=out.dtype, casting="same_kind")

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        return np.ones(len(X))


@dataclass(frozen=True)
class Laplacian(Kernel):
    """exp(-gamma |x - z|_1)."""

    gamma: float
    name = "laplacian"
    unit_diagonal = True
    narrow = True

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        points = Z.astype(np.float64)

        def fill(X: Array, out: Array) -> None:  # SciPy's float64 distances are faster than NumPy's float32 ones
            distances = cdist(X.astype(np.float64, copy=False), points, "cityblock")
            distances *= -self.gamma
            np.exp(distances, out=out, dtype=out.dtype, casting="same_kind")

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        return np.ones(len(X))


@dataclass(frozen=True)
class Polynomial(Kernel):
    """(gamma x . z + coef0)^degree."""

    gamma: float
    degree: float = 3.0
    coef0: float = 1.0
    name = "polynomial"

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        _check_finite("coef0", self.coef0)
        if not (np.isfinite(self.degree) and self.degree > 0):
            raise UsageError(f"degree must be a positive number, not {self.degree!r}: 3 is usual")

    @property
    def definite(self) -> bool:  # type: ignore[override]
        """Whole powers of definite kernels plus a constant of at least 0 are definite."""
        return self.coef0 >= 0 and float(self.degree).is_integer()

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        affine = _affine(Z, self.gamma, dtype)

        def fill(X: Array, out: Array) -> None:
            affine(X, out)
            out += self.coef0
            _raise_to(out, self.degree)

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        return _raise_to(self.gamma * _squares(X) + self.coef0, self.degree)


@dataclass(frozen=True)
class Sigmoid(Kernel):
    """tanh(gamma x . z + coef0): not positive semi-definite in general."""

    gamma: float
    coef0: float = 1.0
    name = "sigmoid"
    definite = False

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        _check_finite("coef0", self.coef0)

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        affine = _affine(Z, self.gamma, dtype)

        def fill(X: Array, out: Array) -> None:
            affine(X, out)
            out += self.coef0
            np.tanh(out, out=out)

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        values: Floats = np.tanh(self.gamma * _squares(X) + self.coef0)
        return values


@dataclass(frozen=True)
class Cosine(Kernel):
    """x . z / (|x| |z|); 0 for a row of zeros."""

    name = "cosine"

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        points = _normalised(Z).astype(dtype).T

        def fill(X: Array, out: Array) -> None:
            np.matmul(_normalised(X).astype(dtype, copy=False), points, out=out)

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        return (_squares(X) > 0).astype(np.float64)


@dataclass(frozen=True)
class Custom(Kernel):
    """A function of two blocks of rows that returns the matrix of their kernel values, as ``sklearn.metrics.pairwise`` has them.

    >>> from sklearn.metrics.pairwise import chi2_kernel
    >>> Custom(chi2_kernel).evaluate(np.eye(2), np.eye(2)).round(3)
    array([[1.   , 0.135],
           [0.135, 1.   ]])
    """

    function: Pairs
    name = "custom"
    definite = False

    def _against(self, Z: Array, dtype: np.dtype[Any]) -> Fill:
        Z = _writeable(Z)

        def fill(X: Array, out: Array) -> None:
            values = np.asarray(self.function(_writeable(X), Z))
            if values.shape != out.shape:
                raise UsageError(
                    f"the kernel function returned shape {values.shape} for {len(X)} rows and {len(Z)} points: it must take two 2-D "
                    f"arrays and return the {out.shape} matrix of their kernel values"
                )
            out[:] = values

        return fill

    def diagonal(self, X: Array) -> Floats:  # noqa: D102
        values = np.empty(len(X))
        for start in range(0, len(X), _DIAGONAL_ROWS):
            rows = X[start : start + _DIAGONAL_ROWS]
            values[start : start + len(rows)] = self.evaluate(rows, rows).diagonal()
        return values

    def parameters(self) -> dict[str, str | float]:  # noqa: D102
        raise UsageError("a kernel that is a Python function cannot be stored: use one of the named kernels")


_KINDS: dict[str, type[Kernel]] = {
    "linear": Linear,
    "rbf": Rbf,
    "laplacian": Laplacian,
    "polynomial": Polynomial,
    "sigmoid": Sigmoid,
    "cosine": Cosine,
}
KERNELS = tuple(_KINDS)
_ALIASES = {"poly": "polynomial"}
_WITH_GAMMA = ("rbf", "laplacian", "polynomial", "sigmoid")


def make_kernel(
    kernel: str | Pairs = "rbf",
    *,
    n_features: int,
    gamma: Gamma = None,
    degree: float = 3,
    coef0: float = 1,
    sample: Array | None = None,
) -> Kernel:
    """Return a kernel by its name, or of a function, with scikit-learn's defaults.

    Parameters
    ----------
    kernel : str or callable
        One of ``KERNELS`` (``"poly"`` is ``"polynomial"``), or a function of two blocks of rows.
    n_features : int
        Number of columns of the rows.
    gamma : float, "scale", "median" or None
        None is ``1 / n_features``; the names are found from ``sample`` (see ``gamma_of``).
    degree, coef0 : float
        Of the polynomial and sigmoid kernels.
    sample : ndarray, optional
        Rows of the data.

    >>> make_kernel("rbf", n_features=4)
    Rbf(gamma=0.25)
    """
    if not isinstance(kernel, str):
        if callable(kernel):
            return Custom(kernel)
        raise UsageError(f"kernel must be a name or a function of two blocks of rows, not {kernel!r}")
    name = _ALIASES.get(kernel, kernel)
    if name not in _KINDS:
        raise UsageError(f"there is no kernel {kernel!r}: choose one of {', '.join(KERNELS)}.{did_you_mean(str(kernel), KERNELS)}")
    if name not in _WITH_GAMMA:
        return _KINDS[name]()
    given: dict[str, float] = {"gamma": gamma_of(gamma, name, n_features, sample)}
    if name == "polynomial":
        given["degree"] = _number("degree", degree)
    if name in ("polynomial", "sigmoid"):
        given["coef0"] = _number("coef0", coef0)
    return _KINDS[name](**given)


def kernel_from(parameters: Mapping[str, Any]) -> Kernel:
    """Return the kernel that ``parameters()`` described.

    >>> kernel_from(Polynomial(0.5, 2).parameters())
    Polynomial(gamma=0.5, degree=2, coef0=1.0)
    """
    rest = dict(parameters)
    return _KINDS[rest.pop("name")](**rest)


def gamma_of(gamma: Gamma, kernel: str, n_features: int, sample: Array | None = None) -> float:
    """Return gamma as a number.

    ``None`` is 1 / d; ``"scale"`` is 1 / (d var), with the variance of all entries, as scikit-learn's SVC has it; ``"median"`` is
    1 / (2 m^2) for rbf and 1 / m for laplacian, with the median distance m (of that kernel) between two different rows.

    >>> gamma_of("scale", "rbf", 2, np.array([[0.0, 0.0], [2.0, 2.0]]))
    0.5
    """
    if gamma is None:
        return 1.0 / n_features
    if not isinstance(gamma, str):
        number = _number("gamma", gamma)
        _check_gamma(number)
        return number
    if gamma not in ("scale", "median"):
        raise UsageError(
            f"gamma must be a positive number, None, 'scale' or 'median', not {gamma!r}.{did_you_mean(gamma, ('scale', 'median'))}"
        )
    if sample is None:
        raise UsageError(f"gamma={gamma!r} is found from rows of the data, and none were given")
    if gamma == "median":
        return _median_gamma(kernel, sample)
    variance = float(sample.var(dtype=np.float64))
    return 1.0 / (n_features * variance) if variance > 0 else 1.0 / n_features


def _median_gamma(kernel: str, sample: Array) -> float:
    if kernel not in ("rbf", "laplacian"):
        raise UsageError(f"gamma='median' is a distance's: the {kernel} kernel has none. Use a number, None or 'scale'")
    step = -(-len(sample) // _MEDIAN_ROWS)
    distances = pdist(sample[::step].astype(np.float64), "euclidean" if kernel == "rbf" else "cityblock")
    distances = distances[distances > 0]
    if distances.size == 0:
        return 1.0 / int(sample.shape[1])
    median = float(np.median(distances))
    return 1.0 / (2 * median**2) if kernel == "rbf" else 1.0 / median


def check_rows(X: Array, width: int) -> None:
    """Refuse rows of another width, and name the first NaN or infinite entry."""
    if X.ndim != 2 or X.shape[1] != width:
        raise DataError(f"the rows have shape {X.shape}, but the kernel's points have {width} columns")
    place = find_nonfinite(X)
    if place is not None:
        raise NonFiniteError(float(X[place]), *place)


class _OverflowingError(DataError):
    """Squares of finite entries are not finite."""

    def __init__(self) -> None:
        super().__init__("the values are so large that their squares overflow float64: rescale the data")


def _affine(Z: Array, gamma: float, dtype: np.dtype[Any]) -> Fill:
    points = (gamma * Z.astype(np.float64)).astype(dtype).T

    def fill(X: Array, out: Array) -> None:
        np.matmul(X.astype(dtype, copy=False), points, out=out)

    return fill


def _writeable(rows: Array) -> Array:
    """Return rows that compiled functions take: many refuse read-only arrays."""
    return rows if rows.flags.writeable else rows.copy()


def _raise_to(values: Array, degree: float) -> Array:
    """Raise to a power in place; small whole ones by products, which are ten times as fast as ``pow``."""
    if degree == 1:
        return values
    if degree in (2, 3, 4):
        squares = values * values
        if degree == 3:
            values *= squares
        else:
            np.multiply(squares, squares if degree == 4 else 1.0, out=values)
        return values
    return np.power(values, degree, out=values)


def _normalised(X: Array) -> Floats:
    rows = X.astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    if not np.isfinite(norms).all():
        raise _OverflowingError
    norms[norms == 0] = 1.0
    rows /= norms[:, None]
    return rows


def _squares(X: Array) -> Floats:
    rows = X.astype(np.float64, copy=False)
    squares: Floats = np.einsum("ij,ij->i", rows, rows)
    return squares


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise UsageError(f"{name} must be a number, not {value!r}")
    return float(value)


def _check_gamma(gamma: float) -> None:
    if not (np.isfinite(gamma) and gamma > 0):
        raise UsageError(f"gamma must be a positive number, not {gamma!r}: None is 1 / (number of features)")


def _check_finite(name: str, value: float) -> None:
    if not np.isfinite(value):
        raise UsageError(f"{name} must be a finite number, not {value!r}")
