"""Random Fourier features of the rbf and laplacian kernels (Rahimi & Recht 2007): no landmarks, no pass to choose them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from streampca.errors import DataError, UsageError
from streampca.kernels.functions import Kernel, Laplacian, Rbf, check_rows, kernel_from
from streampca.kernels.maps import FeatureMap, FeaturePass, Scores
from streampca.statistics.base import Array, Floats

_FLOAT32_ANGLE = 64.0  # radians: float32 keeps 4e-6 of it


@dataclass(frozen=True, eq=False, repr=False)
class FourierMap(FeatureMap):
    """cos and sin of random frequencies: f(x) . f(y) is k(x - y) in the mean, with an error that falls like 1 / sqrt(m).

    Features are float32 whatever the data: their rounding, 1e-7, is far below that error, and they are ten times as fast. With
    ``paired`` features |f(x)|^2 = 1 = k(x, x). Rows are taken relative to ``origin``, so that a large mean costs no accuracy.

    >>> fourier = FourierMap.draw(Rbf(0.5), 3, 1000, seed=0)
    >>> f = fourier.transform(np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    >>> float(abs(f[0] @ f[1] - np.exp(-0.5))) < 0.05
    True
    """

    kernel: Kernel
    frequencies: Floats  # d x p
    origin: Floats
    phases: Floats | None = None  # of p cosines; without them, p cosines and p sines
    kind = "fourier"

    @classmethod
    def draw(
        cls,
        kernel: Kernel,
        n_features_in: int,
        n_features_out: int,
        seed: int,
        *,
        origin: Array | None = None,
        paired: bool = True,
        orthogonal: bool | None = None,
    ) -> Self:
        """Return a map with random frequencies.

        Parameters
        ----------
        kernel : Rbf or Laplacian
            Frequencies are normal, N(0, 2 gamma), for rbf and Cauchy(gamma) for laplacian.
        n_features_in, n_features_out : int
            Number of columns and of features, which is even if they are paired.
        seed : int
            The same seed gives the same features.
        origin : ndarray, optional
            A point near the mean of the data; by default 0.
        paired : bool
            cos and sin of each frequency, which has the lower variance, or ``sqrt(2) cos(w . x + b)``.
        orthogonal : bool, optional
            Frequencies orthogonal in groups of d (Yu et al. 2016), which lowers the variance further: the default for rbf, and only there.
        """
        if not isinstance(kernel, Rbf | Laplacian):
            raise UsageError(f"random Fourier features are for the rbf and laplacian kernels, not for {kernel.name}: use Nystrom features")
        if n_features_out < 1 or (paired and n_features_out % 2):
            raise UsageError(f"the number of random features must be positive, and even as cos and sin are paired, not {n_features_out}")
        if orthogonal and isinstance(kernel, Laplacian):
            raise UsageError("orthogonal frequencies are for the rbf kernel: those of the laplacian kernel have no rotational symmetry")
        rng = np.random.default_rng(seed)
        p = n_features_out // 2 if paired else n_features_out
        if isinstance(kernel, Laplacian):
            frequencies = kernel.gamma * rng.standard_cauchy((n_features_in, p))
        elif orthogonal is False:
            frequencies = np.sqrt(2 * kernel.gamma) * rng.standard_normal((n_features_in, p))
        else:
            frequencies = np.sqrt(2 * kernel.gamma) * _orthogonal_normal(n_features_in, p, rng)
        phases = None if paired else rng.uniform(0, 2 * np.pi, p)
        centre = np.zeros(n_features_in) if origin is None else np.asarray(origin, np.float64)
        return cls(kernel, np.ascontiguousarray(frequencies), centre, phases)

    @property
    def dtype(self) -> np.dtype[Any]:  # noqa: D102
        return np.dtype(np.float32)

    @property
    def n_features_in(self) -> int:  # noqa: D102
        return len(self.frequencies)

    @property
    def n_features_out(self) -> int:  # noqa: D102
        return int(self.frequencies.shape[1]) * (2 if self.phases is None else 1)

    @cached_property
    def _narrow(self) -> tuple[Array, Array]:
        return self.origin.astype(np.float32), self.frequencies.astype(np.float32)

    def _map(self, strip: Array, out: Array) -> None:
        check_rows(strip, self.n_features_in)
        angles = self._angles(strip)
        p = angles.shape[1]
        with np.errstate(invalid="ignore"):
            if self.phases is None:
                np.cos(angles, out=out[:, :p])
                np.sin(angles, out=out[:, p:])
            else:
                np.cos(angles, out=out)
        out *= np.float32(np.sqrt((1 if self.phases is None else 2) / p))

    def _angles(self, strip: Array) -> Array:
        """Return w . (x - origin) + b in float32; from float64 products less whole turns where float32 ones would lose the phase."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.phases is None and self.kernel.dtype_for(strip.dtype) == np.float32 and isinstance(self.kernel, Rbf):
                origin, frequencies = self._narrow
                angles = np.subtract(strip, origin, dtype=np.float32, casting="same_kind") @ frequencies
                if np.abs(angles).max(initial=0.0) <= _FLOAT32_ANGLE:
                    return angles
            wide = np.subtract(strip, self.origin, dtype=np.float64) @ self.frequencies
            if self.phases is not None:
                wide += self.phases
            turns = wide / (2 * np.pi)
            np.rint(turns, out=turns)
            turns *= 2 * np.pi
            wide -= turns
        if not np.isfinite(wide).all():
            raise DataError("the values are so large that their products with random frequencies overflow float64: rescale the data")
        return wide.astype(np.float32)

    def _strip_scratch(self, rows: int) -> int:
        d, p = self.frequencies.shape
        return int(rows * (9 * d + 24 * p))

    def cheapest_pass(self) -> FeaturePass:
        """Return the pass over these features."""
        return FeaturePass(self, "auto")

    def projected(self, components: Array, mean: Array) -> Scores:
        """Return the map to scores ``(f(x) - mean) . v`` of orthonormal components v."""
        return Scores(self, np.ascontiguousarray(components.T), mean @ components.T, self.n_features_out)

    def to_arrays(self) -> dict[str, Array]:  # noqa: D102
        arrays = {"frequencies": self.frequencies, "origin": self.origin}
        return arrays if self.phases is None else {**arrays, "phases": self.phases}

    def attributes(self) -> dict[str, Any]:  # noqa: D102
        return {"kernel": self.kernel.parameters()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:  # noqa: D102
        return cls(kernel_from(attributes["kernel"]), arrays["frequencies"], arrays["origin"], arrays.get("phases"))


def _orthogonal_normal(d: int, p: int, rng: np.random.Generator) -> Floats:
    """Return d x p normal vectors in columns, orthogonal to each other in groups of d; each alone is N(0, I)."""
    result = np.empty((d, p))
    for start in range(0, p, d):
        width = min(d, p - start)
        directions, triangle = np.linalg.qr(rng.standard_normal((d, width)))
        directions *= np.sign(triangle.diagonal())  # uniform on the orthogonal group
        result[:, start : start + width] = directions * np.sqrt(rng.chisquare(d, width))
    return result
