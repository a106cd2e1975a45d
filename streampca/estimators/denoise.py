"""Rows without their noise: projected on the components, each shrunk by what noise adds to it, and back, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, get_args

import numpy as np

from streampca.errors import UsageError
from streampca.models.pca import Array, Floats, PCAModel
from streampca.selection import shrink
from streampca.selection.noise import noise_of
from streampca.selection.shrinkage import Kind
from streampca.solvers.choice import known_spectrum


@dataclass(frozen=True, eq=False)
class Denoiser:
    """What becomes of a block of rows; a value that travels to workers."""

    model: PCAModel
    factors: Floats  # what is left of each component

    def __call__(self, block: Array) -> Array:
        """Return the denoised rows."""
        scores = self.model.transform(block)
        scores *= self.factors.astype(scores.dtype)
        return self.model.inverse_transform(scores)


def check_shrinkage(shrinkage: Any) -> Kind | None:
    """Return the kind of shrinkage, or refuse it."""
    if shrinkage is not None and (not isinstance(shrinkage, str) or shrinkage not in get_args(Kind)):
        raise UsageError(f"shrinkage must be None or one of {', '.join(map(repr, get_args(Kind)))}, not {shrinkage!r}")
    return shrinkage  # type: ignore[return-value]


def denoiser_of(model: PCAModel, shrinkage: Kind | None) -> Denoiser:
    """Return how rows are denoised by a model: by its components as they are, or shrunk."""
    factors = np.ones(model.n_components) if shrinkage is None else shrinkage_factors(model, shrinkage)
    return Denoiser(model, factors)


def shrinkage_factors(model: PCAModel, shrinkage: Kind) -> Floats:
    """Return by what each singular value is multiplied.

    The noise is estimated from the median singular value where all are known, else from the exact sum of those that are not. Centred
    noise of n rows is white noise of n - 1 rows.
    """
    weight = float(model.n_samples) if model.weight is None else model.weight
    spectrum = model.explained_variance if model.spectrum is None else model.spectrum
    known = known_spectrum(spectrum, model.n_samples, weight, model.n_features, model.total_variance)
    factors = np.zeros(model.n_components)
    if model.explained_variance[0] <= 0:
        return factors
    noise = noise_of(known, None, "median" if known.complete else "tail")
    rows = max(round(weight) - 1, 1)
    values = model.singular_values[: min(rows, model.n_features)]
    shrunk = shrink(values, rows, model.n_features, shrinkage, noise=sqrt(noise.variance))
    np.divide(shrunk, values, out=factors[: len(values)], where=values > 0)
    return factors
