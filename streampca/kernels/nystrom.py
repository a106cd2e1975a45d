"""Nystrom features: the kernel with a few landmarks stands for the kernel with all rows.

Either the features are streamed, or the raw kernel columns, whose scatter is turned into that of the features at the end: that saves
two thirds of the arithmetic of a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from scipy import linalg

from streampca.errors import DataError, UsageError
from streampca.kernels.functions import Fill, Kernel, check_rows, kernel_from
from streampca.kernels.maps import STRIP_BYTES, FeatureMap, FeaturePass, Scores, strips
from streampca.statistics.base import Array, Floats
from streampca.statistics.centre import Centre
from streampca.statistics.scatter import Scatter

# Eigenvalues of K_ZZ below this share of the largest are dropped: there, rounding in k(Z, x) outweighs what they add (measured).
ROUNDING = {4: 1e-9, 8: 1e-11}
FLOAT32_CONDITION = 1e5  # of K_ZZ: up to here float32 products of raw kernel columns are as good as those of features (measured)


@dataclass(frozen=True, eq=False, repr=False)
class KernelColumns(FeatureMap):
    """The kernel of a row with each landmark, k(z_1, x) .. k(z_m, x); and k(x, x), unless that is always 1."""

    kernel: Kernel
    landmarks: Array  # less the origin
    values: np.dtype[Any]  # what they are computed in
    origin: Floats | None = None  # subtracted from rows, for kernels where centring undoes that
    kind = "kernel-columns"

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return self.values

    @property
    def n_landmarks(self) -> int:
        """Number of landmarks."""
        return len(self.landmarks)

    @property
    def n_features_in(self) -> int:  # noqa: D102
        return int(self.landmarks.shape[1])

    @property
    def n_features_out(self) -> int:  # noqa: D102
        return self.n_landmarks + (not self.kernel.unit_diagonal)

    @cached_property
    def _fill(self) -> Fill:
        return self.kernel.against(self.landmarks, self.dtype)

    def shifted(self, rows: Array) -> Array:
        """Return rows less the origin, if there is one."""
        if self.origin is None:
            return rows
        check_rows(rows, self.n_features_in)
        return np.subtract(rows, self.origin, dtype=np.float64)

    def fill(self, rows: Array, out: Array) -> None:
        """Put k(z, x) in an array of rows x landmarks."""
        self._fill(self.shifted(rows), out)

    def _map(self, strip: Array, out: Array) -> None:
        if self.kernel.unit_diagonal:
            self.fill(strip, out)
            return
        rows = self.shifted(strip)
        self._fill(rows, out[:, : self.n_landmarks])
        out[:, self.n_landmarks] = self.kernel.diagonal(rows)

    def _strip_scratch(self, rows: int) -> int:
        return self.kernel.scratch(rows, self.n_landmarks, self.n_features_in) + 16 * rows * self.n_features_in

    def trace(self, columns: Scatter) -> float:
        """Return the sum of k(x, x) over the rows whose raw columns were accumulated."""
        return float(columns.count * (1.0 if self.kernel.unit_diagonal else columns.mean[self.n_landmarks]))

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {"landmarks": self.landmarks} | ({} if self.origin is None else {"origin": self.origin})

    def attributes(self) -> dict[str, Any]:  # noqa: D102
        return {"kernel": self.kernel.parameters(), "dtype": self.dtype.name}

    def _identity(self) -> Any:
        return repr(self.kernel)  # a function's too

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:  # noqa: D102
        return cls(kernel_from(attributes["kernel"]), arrays["landmarks"], np.dtype(attributes["dtype"]), arrays.get("origin"))


@dataclass(frozen=True, eq=False, repr=False)
class NystromMap(FeatureMap):
    """f(x) = L^(-1/2) U^T k(Z, x), with K_ZZ = U L U^T: exact for landmarks, and for all rows if they span them.

    Eigenvalues that rounding would drown are dropped: f has as many features as K_ZZ has rank. So landmarks may repeat. Negative
    ones, of kernels that are not positive semi-definite, are dropped too; ``negative_share`` says how much that was.

    >>> from streampca.kernels.functions import Rbf
    >>> nystrom = NystromMap.fit(Rbf(0.5), np.array([[0.0], [1.0], [1.0]]))
    >>> f = nystrom.transform(np.array([[0.0], [1.0]]))
    >>> nystrom.n_features_out, (f @ f.T).round(6)
    (2, array([[1.      , 0.606531],
           [0.606531, 1.      ]]))
    """

    columns: KernelColumns
    root: Floats  # m x r: U L^(-1/2)
    eigenvalues: Floats  # those of K_ZZ that are kept, largest first
    negative_share: float = 0.0  # sum of |negative eigenvalues| over the sum of all magnitudes
    kind = "nystrom"

    @classmethod
    def fit(cls, kernel: Kernel, landmarks: Array, dtype: np.dtype[Any] | None = None, tolerance: float | None = None) -> Self:
        """Return the map of landmarks.

        Parameters
        ----------
        kernel : Kernel
            The kernel.
        landmarks : ndarray of shape (m, d)
            Rows of the data.
        dtype : dtype, optional
            Of the features; by default as ``kernel.dtype_for`` has it for the landmarks' dtype.
        tolerance : float, optional
            Eigenvalues of K_ZZ below this share of the largest are dropped: 1e-9 for float32, 1e-11 for float64.
        """
        if landmarks.ndim != 2 or landmarks.size == 0:
            raise UsageError(f"landmarks must be at least one row (2-D), not an array of shape {landmarks.shape}")
        check_rows(landmarks, landmarks.shape[1])
        dtype = np.dtype(dtype) if dtype is not None else kernel.dtype_for(landmarks.dtype)
        origin = landmarks.mean(axis=0, dtype=np.float64) if kernel.shiftable else None
        points = landmarks if origin is None else np.subtract(landmarks, origin, dtype=np.float64)
        columns = KernelColumns(kernel, np.ascontiguousarray(points), dtype, origin)
        values, vectors, negative = positive_eigenpairs(gram(kernel, columns.landmarks), tolerance or ROUNDING[dtype.itemsize])
        return cls(columns, vectors / np.sqrt(values), values, negative)

    @property
    def kernel(self) -> Kernel:
        """The kernel that the features stand for."""
        return self.columns.kernel

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return self.columns.dtype

    @property
    def n_landmarks(self) -> int:
        """Number of landmarks."""
        return self.columns.n_landmarks

    @property
    def n_features_in(self) -> int:  # noqa: D102
        return self.columns.n_features_in

    @property
    def n_features_out(self) -> int:  # noqa: D102
        return int(self.root.shape[1])

    @cached_property
    def _rounded_root(self) -> Array:
        return self.root.astype(self.dtype)

    def _map(self, strip: Array, out: Array) -> None:
        values = np.empty((len(strip), self.n_landmarks), self.dtype)
        self.columns.fill(strip, values)
        np.matmul(values, self._rounded_root, out=out)

    @property
    def _strip_rows(self) -> int:
        return self.columns._strip_rows

    def _strip_scratch(self, rows: int) -> int:
        return self.columns._strip_scratch(rows) + rows * self.n_landmarks * self.dtype.itemsize

    def features_of(self, columns: Scatter) -> Scatter:
        """Return the scatter of the features from that of the raw columns: two m x m products at the end instead of one in each row.

        Rounding in the columns' scatter is divided by the eigenvalues of K_ZZ: see ``cheapest_pass``.
        """
        m, root = self.n_landmarks, self.root
        if columns.n_features != self.columns.n_features_out:
            raise DataError(f"the scatter is of {columns.n_features} columns, but {self.columns.n_features_out} were expected")
        scatter = root.T @ columns.scatter[:m, :m] @ root
        part = columns.centre
        centre = Centre(part.count, root.T @ part.pivot[:m], root.T @ part.offset[:m], part.rows)
        arrays = {**columns.to_arrays(), **centre.to_arrays(), "scatter": (scatter + scatter.T) / 2}
        return Scatter.from_arrays(arrays)

    def cheapest_pass(self) -> FeaturePass:
        """Return what to stream: raw columns, whose scatter is turned into that of the features afterwards, or the features.

        For each row the columns cost m^2 multiplications (2 m^2 in float64 products, if K_ZZ is ill-conditioned); the features
        2 m r for the root and r^2. Either way the leading eigenvalues agree within the rounding of k(Z, x) (measured).
        """
        m, r = self.n_landmarks, self.n_features_out
        wide = self.dtype.itemsize == 8
        well = bool(self.eigenvalues[-1] * FLOAT32_CONDITION >= self.eigenvalues[0])
        columns = m * m if wide or well else 2 * m * m
        if columns <= 2 * m * r + r * r:
            return FeaturePass(self.columns, "auto" if well else "float64", self)
        return FeaturePass(self, "auto", None)

    def projected(self, components: Array, mean: Array) -> Scores:
        """Return the map to scores ``(f(x) - mean) . v`` of orthonormal components v, without making f(x): m k products a row."""
        return Scores(self.columns, self.root @ components.T, mean @ components.T, self.n_landmarks)

    def coefficients(self, features: Array) -> Array:
        """Return the weights of the landmarks' images whose sum is the point of feature space with these features.

        Parameters
        ----------
        features : ndarray of shape (n, n_features_out)

        Returns
        -------
        ndarray of shape (n, n_landmarks)
        """
        return features @ self.root.T

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        return {**self.columns.to_arrays(), "root": self.root, "eigenvalues": self.eigenvalues}

    def attributes(self) -> dict[str, Any]:  # noqa: D102
        return {**self.columns.attributes(), "negative_share": self.negative_share}

    def _identity(self) -> Any:
        return self.columns._identity()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:  # noqa: D102
        columns = KernelColumns.from_arrays(arrays, attributes)
        return cls(columns, arrays["root"], arrays["eigenvalues"], float(attributes["negative_share"]))


def gram(kernel: Kernel, points: Array) -> Floats:
    """Return the symmetric matrix of the kernel between points, in float64."""
    matrix = np.empty((len(points), len(points)))
    fill = kernel.against(points, matrix.dtype)
    for rows in strips(len(points), max(STRIP_BYTES // (8 * len(points)), 32)):
        fill(points[rows], matrix[rows])
    symmetrise(matrix)
    np.fill_diagonal(matrix, kernel.diagonal(points))
    return matrix


def symmetrise(matrix: Floats, height: int = 256) -> None:
    """Replace a square matrix by the mean of itself and its transpose, a panel at a time."""
    for rows in strips(len(matrix), height):
        upper = matrix[rows, rows.start :]
        upper += matrix[rows.start :, rows].T.copy()
        upper *= 0.5
        matrix[rows.start :, rows] = upper.T.copy()


def positive_eigenpairs(matrix: Floats, tolerance: float) -> tuple[Floats, Floats, float]:
    """Return the eigenvalues above ``tolerance`` of the largest, largest first, their vectors in columns, and the negative share."""
    values, vectors = linalg.eigh(matrix, overwrite_a=True, check_finite=False, driver="evd")
    values, vectors = values[::-1], vectors[:, ::-1]
    magnitude, noise = float(np.abs(values).sum()), len(values) * np.finfo(np.float64).eps
    if not values[0] > noise * magnitude:
        raise DataError(
            f"the kernel is zero or negative between all landmarks (largest eigenvalue {values[0]:.3g}): change the kernel or gamma"
        )
    negative = float(-values[values < 0].sum()) / magnitude
    kept = int(np.count_nonzero(values > tolerance * values[0]))
    return values[:kept].copy(), signed(vectors[:, :kept]), negative if negative > noise else 0.0


def signed(vectors: Array) -> Floats:
    """Return vectors in columns with their entry of largest magnitude positive, in C order."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.ascontiguousarray(vectors * np.where(largest < 0, -1.0, 1.0))
