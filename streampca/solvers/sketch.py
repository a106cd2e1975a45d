"""PCA of wide data in two or three passes: a one-pass sketch, then products with the covariance until the subspace holds still.

Halko, Martinsson & Tropp (2011) and Musco & Musco (2015) for subspace and block Krylov methods; the merge of truncated decompositions
as a start makes two passes do where random starts need about seven.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streampca.errors import UsageError
from streampca.models.pca import Array, Floats, PCAModel
from streampca.solvers.finish import Found, Sample, orthonormal_rows, pca_model
from streampca.solvers.spectrum import Options, check_sum_of_weights
from streampca.solvers.subspace import Extraction, better_basis, extract, row_panels
from streampca.statistics import Moments
from streampca.statistics.products import Products
from streampca.statistics.scatter import Precision
from streampca.statistics.sketch import Sketch

Run = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Effort:
    """How hard to try: the rank of the sketch, the precision of products and sums, when to stop."""

    rank: int
    precision: Precision = "float64"
    sums: Precision = "float64"
    tol: float = 1e-3  # on 1 - MEV
    max_passes: int = 8
    seed: int | None = None


def solve(n_features: int, options: Options, run: Run, effort: Effort) -> tuple[PCAModel, Sketch]:
    """Return the model, and the sketch that it started from."""
    scale = _scales(run("moments", Moments(n_features))) if options.standardize else None
    sketch = run("sketch", Sketch(n_features, effort.rank, effort.precision, scale))
    sample = sample_of(sketch, scale)
    found = _refine(sketch, sample, scale, options, run, effort)
    return pca_model(sample, found, options), sketch


def sample_of(sketch: Sketch, scale: Floats | None) -> Sample:
    """Return what the first pass tells of the rows beside their directions."""
    weight = float(sketch.count)
    check_sum_of_weights(weight, sketch.centre.rows)
    ones = np.ones(sketch.n_features) if scale is None else scale
    return Sample(sketch.mean, ones, sketch.centre.rows, weight, float(sketch.squares.sum()) / (weight - 1))


def _refine(sketch: Sketch, sample: Sample, scale: Floats | None, options: Options, run: Run, effort: Effort) -> Found:
    """Ask for products with the covariance, with an ever better basis, until the estimated error is small enough."""
    Q, leading = first_basis(sketch), None
    best: Found | None = None
    for number in range(2, max(effort.max_passes, 2) + 1):
        if Q.shape[1] == 0:
            break
        products = run(f"products-{number}", Products(Q, sketch.mean, scale, effort.precision, effort.sums))
        Y = products.take()
        Y /= sample.weight - 1
        extraction = extract(Q, Y)
        if extraction is None:
            break
        k = _count(extraction, options.n_components, sample)
        best = _found(extraction, Y, k, sample, outside_variance(extraction, sample, leading), effort.seed)
        if best.subspace_error <= effort.tol:
            return best
        leading = min(max(effort.rank // 2, 1), len(extraction.variances))
        Q = better_basis(extraction, Q, Y, leading)
        del Y, products
    if best is None:  # no variance at all
        k = options.n_components if isinstance(options.n_components, int) else 1
        return Found(np.zeros(k), orthonormal_rows(np.zeros((0, len(sample.mean))), k, effort.seed), np.zeros(k), 0.0)
    warnings.warn(
        f"after {effort.max_passes} passes the estimated error of the subspace (1 - MEV) is {best.subspace_error:.1e}, "
        f"above tol={effort.tol:g}: "
        "neighbouring variances may be equal, so that the last components are not unique; else allow more memory or passes",
        ConvergenceWarning,
        stacklevel=2,
    )
    return best


def first_basis(sketch: Sketch) -> Array:
    """Return the directions of the sketch as columns."""
    rows = sketch.rows
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    kept = norms > np.sqrt(np.finfo(rows.dtype).eps) * 1e-3 * norms.max(initial=0.0)
    return np.ascontiguousarray((rows[kept] / norms[kept, None].astype(rows.dtype)).T)


def outside_variance(extraction: Extraction, sample: Sample, leading: int | None) -> float:
    """Return the variance in the directions that a basis misses, by rules that fit decays from i^-0.3 to i^-1 (measured).

    A basis from a sketch misses what lies between its last direction and all others on average; one of which only the first ``leading``
    are eigenvectors found before, what lies between the next and the last of its variances.
    """
    ritz = extraction.ritz
    left = sample.limit - len(ritz)
    if left <= 0:
        return 0.0
    last = float(ritz[-1])
    if leading is not None:
        return float(np.sqrt(last * ritz[min(leading, len(ritz) - 1)]))
    rest = max(sample.trace - float(ritz.sum()), 0.0) / left
    return float(last**0.65 * min(rest, last) ** 0.35)


def _found(extraction: Extraction, Y: Array, k: int, sample: Sample, outside: float, seed: int | None) -> Found:
    have = min(k, len(extraction.variances))
    errors = extraction.errors(have, outside)
    vectors = np.empty((have, len(Y)))
    coefficients = extraction.coefficients[:, :have]
    for rows in row_panels(Y):
        vectors[:, rows] = (Y[rows] @ coefficients).T
    variances, residuals = np.zeros(k), np.zeros(k)
    variances[:have] = np.minimum.accumulate(extraction.corrected(have, outside))
    residuals[:have] = np.sqrt(errors) * np.maximum(1 - outside / extraction.ritz[:have], 0.0)
    return Found(variances, orthonormal_rows(vectors, k, seed), residuals, float(errors.mean()))


def _count(extraction: Extraction, n_components: int | float | None, sample: Sample) -> int:
    """Return the number of components, or say that the sketch does not reach that far."""
    if isinstance(n_components, int):
        return n_components
    explained = np.cumsum(extraction.variances) / sample.trace
    wanted = 1.0 - 1e-12 if n_components is None else n_components
    k = int(np.searchsorted(explained, wanted, side="right")) + 1
    if n_components is None and len(explained) >= sample.limit - 1:
        return sample.limit
    if k > len(explained):
        raise UsageError(
            f"the sketch has {len(explained)} components, which explain {explained[-1]:.2%} of the variance, not more than {wanted:.2%}: "
            "ask for a number of components, a smaller fraction, or give more memory"
        )
    return k


def _scales(moments: Moments) -> Floats:
    """Return the standard deviation (divisor n) of each column, 1 where it is constant."""
    deviation = np.sqrt(moments.variance())
    return np.where(deviation > 0, deviation, 1.0)
