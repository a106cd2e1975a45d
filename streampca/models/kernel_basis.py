"""What a kernel PCA by features has fixed, kept with its sums so that more rows can be mapped as the first ones were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from streampca.kernels import FeatureMap, FourierMap, KernelColumns, NystromMap
from streampca.models.kernel import KernelModel
from streampca.models.pca import Array


@dataclass(frozen=True)
class Basis:
    """The features, and rows to measure their error and to learn the way back on."""

    features: NystromMap | FourierMap
    held: Array
    sample: Array | None  # None without a way back

    @property
    def streamed(self) -> FeatureMap:
        """What a pass streams: the features, or raw kernel columns."""
        return self.features.cheapest_pass().features

    def to_arrays(self) -> dict[str, Array]:
        """Return what the model does not hold, by name."""
        arrays = {"basis_held": self.held} | ({} if self.sample is None else {"basis_sample": self.sample})
        if isinstance(self.features, NystromMap):
            arrays |= {"basis_root": self.features.root, "basis_eigenvalues": self.features.eigenvalues}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], model: KernelModel) -> Self:
        """Return the basis that ``to_arrays`` described."""
        features: Any = model.features
        if isinstance(features, KernelColumns):
            features = NystromMap(features, arrays["basis_root"], arrays["basis_eigenvalues"], model.negative_share)
        return cls(features, arrays["basis_held"], arrays.get("basis_sample"))
