"""A fitted kernel PCA: kernel values with landmarks (or random features), a matrix that makes scores of them, and the way back.

All methods end here: for the exact one, every row that was fitted is a landmark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from streampca.errors import CorruptDataError, UsageError
from streampca.kernels import FourierMap, KernelColumns, RidgePreimage, Scores, fixed_point
from streampca.kernels.functions import Kernel, Rbf
from streampca.models.pca import Array, Floats, scores_dtype

Inverse = Literal["ridge", "fixed-point"]
INVERSES: tuple[Inverse, ...] = ("ridge", "fixed-point")
_FEATURES: dict[str, type[KernelColumns] | type[FourierMap]] = {KernelColumns.kind: KernelColumns, FourierMap.kind: FourierMap}


@dataclass(frozen=True, eq=False)
class KernelModel:
    """Components in feature space, as weights of the landmarks' images or of random features."""

    features: KernelColumns | FourierMap
    matrix: Floats  # landmarks (or random features) x components, before whitening
    offset: Floats  # the score of the mean, subtracted
    mean_weights: Floats | None  # of the landmarks' images, whose sum is the mean in feature space; None for random features
    eigenvalues: Floats  # of the centred kernel matrix, largest first
    explained_variance_ratio: Floats
    n_samples: int
    weight: float  # the sum of the rows' weights; the number of rows without
    frobenius_error: float
    uncaptured_trace: float
    negative_share: float
    whiten: bool = False
    preimage: RidgePreimage | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self.features.kernel

    @property
    def n_components(self) -> int:
        """Number of components."""
        return len(self.eigenvalues)

    @property
    def n_features(self) -> int:
        """Number of columns of the rows."""
        return self.features.n_features_in

    @property
    def landmarks(self) -> Array | None:
        """The landmarks as they are in the data; None for random features."""
        if isinstance(self.features, FourierMap):
            return None
        points, origin = self.features.landmarks, self.features.origin
        return points if origin is None else points + origin

    @cached_property
    def _deviations(self) -> Floats:
        """What scores are divided by: standard deviations if they are whitened; 1 where there is no variance."""
        deviations = np.sqrt(self.eigenvalues / (self.weight - 1)) if self.whiten else np.ones(self.n_components)
        return np.where(deviations > 0, deviations, 1.0)

    @cached_property
    def _scores(self) -> Scores:
        return Scores(self.features, self.matrix / self._deviations, self.offset / self._deviations, len(self.matrix))

    def transform(self, block: Array) -> Array:
        """Return the scores of rows: float32 for float32 rows, else float64."""
        return self._scores.transform(block).astype(scores_dtype(block.dtype), copy=False)

    def inverse_transform(self, scores: Array, method: Inverse = "ridge") -> Array:
        """Return rows that scores stand for: float32 for float32 scores, else float64."""
        plain = scores.astype(np.float64) * self._deviations
        if method == "ridge":
            rows = self._ridge.inverse_transform(plain)
        else:
            rows = self._fixed_point(plain)
        return rows.astype(scores_dtype(scores.dtype), copy=False)

    @property
    def _ridge(self) -> RidgePreimage:
        if self.preimage is None:
            raise UsageError("the way back from scores to rows was not learned: fit with fit_inverse_transform=True")
        return self.preimage

    def _fixed_point(self, scores: Floats) -> Floats:
        points = self.landmarks
        if points is None or self.mean_weights is None or not isinstance(self.kernel, Rbf):
            raise UsageError("the fixed point is for the rbf kernel with landmarks or the exact method: use method='ridge'")
        weights = self.mean_weights + scores @ self.matrix.T
        start = _near(weights, points) if self.preimage is None else self.preimage.inverse_transform(scores)
        return fixed_point(weights, points, self.kernel.gamma, start)

    def to_arrays(self) -> dict[str, Array]:
        """Return all arrays, by name."""
        own = ("matrix", "offset", "mean_weights", "eigenvalues", "explained_variance_ratio")
        arrays = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        arrays |= {f"features_{name}": array for name, array in self.features.to_arrays().items()}
        if self.preimage is not None:
            arrays |= {f"preimage_{name}": array for name, array in self.preimage.to_arrays().items()}
        return arrays

    def attributes(self) -> dict[str, Any]:
        """Return what else there is, as JSON; a kernel that is a function is refused."""
        own = ("n_samples", "weight", "frobenius_error", "uncaptured_trace", "negative_share", "whiten")
        return {
            **{name: getattr(self, name) for name in own},
            "features": {"kind": self.features.kind, **self.features.attributes()},
            "preimage": None if self.preimage is None else self.preimage.attributes(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], attributes: Mapping[str, Any]) -> Self:
        """Return the model that ``to_arrays`` and ``attributes`` described, after checking that its parts fit together."""
        about = dict(attributes["features"])
        features = _FEATURES[about.pop("kind")].from_arrays(_part(arrays, "features_"), about)
        back = attributes["preimage"]
        preimage = None if back is None else RidgePreimage.from_arrays(_part(arrays, "preimage_"), back)
        n_features = len(features.landmarks) if isinstance(features, KernelColumns) else features.n_features_out
        k = len(arrays["eigenvalues"])
        expected = {"matrix": (n_features, k), "offset": (k,), "explained_variance_ratio": (k,), "mean_weights": (n_features,)}
        for name, shape in expected.items():
            if name in arrays and (arrays[name].shape != shape or not np.isfinite(arrays[name]).all()):
                raise CorruptDataError(f"array {name!r} of the model has shape {arrays[name].shape} or entries that do not fit the others")
        return cls(
            features,
            arrays["matrix"],
            arrays["offset"],
            arrays.get("mean_weights"),
            arrays["eigenvalues"],
            arrays["explained_variance_ratio"],
            int(attributes["n_samples"]),
            float(attributes["weight"]),
            float(attributes["frobenius_error"]),
            float(attributes["uncaptured_trace"]),
            float(attributes["negative_share"]),
            bool(attributes["whiten"]),
            preimage,
        )


def _near(weights: Floats, points: Array) -> Floats:
    """Return the means of the points with the positive weights."""
    positive = np.maximum(weights, 0.0)
    sums = positive.sum(axis=1, keepdims=True)
    rows: Floats = (positive / np.where(sums > 0, sums, 1.0)) @ points.astype(np.float64)
    return rows


def _part(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
