"""PCA of wide data in two or three passes: a one-pass sketch, then products with the covariance until the subspace holds still.

Halko, Martinsson & Tropp (2011) and Musco & Musco (2015) for subspace and block Krylov methods; the merge of truncated decompositions
as a start makes two passes do where random starts need about seven.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streampca.errors import UsageError
from streampca.models.pca import Array, Floats, PCAModel
from streampca.selection import Selection
from streampca.solvers.choice import Wanted, at_least_one, choose, count_components, known_spectrum
from streampca.solvers.finish import Found, Sample, orthonormal_rows, pca_model
from streampca.solvers.spectrum import Options, check_sum_of_weights
from streampca.solvers.subspace import Extraction, better_basis, extract, row_panels
from streampca.statistics import Moments
from streampca.statistics.products import Products
from streampca.statistics.scatter import Precision
from streampca.statistics.sketch import Sketch

Run = Callable[[str, Any], Any]

_REAL = 32  # units of rounding, beside the longest: shorter directions of a sketch may be rounding alone
_PATIENCE = 2  # passes that may gain nothing
_STEEP = {"float32": 1e-6, "float64": 1e-13}  # of the largest variance: products resolve less only roughly, or not at all


class UndecidedError(UsageError):
    """The directions that the memory holds are too few for the number of components."""

    def __init__(self, message: str, directions: int) -> None:
        super().__init__(message)
        self.directions = directions  # how many would have a chance


@dataclass(frozen=True)
class Effort:
    """How hard to try: the rank of the sketch, the precision of products and sums, when to stop."""

    rank: int
    precision: Precision = "float64"
    sums: Precision = "float64"
    tol: float = 1e-3  # on 1 - MEV
    max_passes: int = 8
    seed: int | None = None
    max_rank: int | None = None  # directions that the sketch may grow to, if a fraction or a criterion needs them

    @property
    def most(self) -> int:
        """Directions that the sketch may have."""
        return self.max_rank or self.rank


def solve(n_features: int, options: Options, run: Run, effort: Effort) -> tuple[PCAModel, Sketch]:
    """Return the model, and the sketch that it started from."""
    scale = _scales(run("moments", Moments(n_features))) if options.standardize else None
    passes = 1
    while True:
        sketch = run("sketch" if passes == 1 else f"sketch-{passes}", Sketch(n_features, effort.rank, effort.precision, scale))
        sample = sample_of(sketch, scale)
        found = _refine(sketch, sample, scale, options, run, effort, passes)
        if found is not None:
            return pca_model(sample, found, options), sketch
        del sketch  # before the larger one is made
        effort, passes = replace(effort, rank=min(2 * effort.rank, effort.most)), passes + 2


def sample_of(sketch: Sketch, scale: Floats | None) -> Sample:
    """Return what the first pass tells of the rows beside their directions."""
    weight = float(sketch.count)
    check_sum_of_weights(weight, sketch.centre.rows)
    ones = np.ones(sketch.n_features) if scale is None else scale
    return Sample(sketch.mean, ones, sketch.centre.rows, weight, float(sketch.squares.sum()) / (weight - 1))


def _refine(sketch: Sketch, sample: Sample, scale: Floats | None, options: Options, run: Run, effort: Effort, passes: int) -> Found | None:
    """Ask for products with the covariance, with an ever better basis, until the estimated error is small enough.

    None if the directions are too few to choose the number of components, and more of them may be tried.
    """
    Q, leading = first_basis(sketch), None
    real = Q.shape[1]  # directions that have variance
    complete = real < effort.rank or effort.rank >= min(sample.rows, len(sample.mean))  # nothing was cut off
    k: int | None = None
    errors: list[float] = []
    for number in range(passes + 1, max(effort.max_passes, passes + 1) + 1):
        if Q.shape[1] == 0:
            return _nothing(sample, options, effort)
        products = run(f"products-{number}", Products(Q, sketch.mean, scale, effort.precision, effort.sums))
        Y = products.take()
        Y /= sample.weight - 1
        extraction = extract(Q, Y, sample.rows)
        if extraction is None:
            return _nothing(sample, options, effort)
        if k is None:  # later bases hold no more directions
            k = _count(extraction, options.n_components, sample, complete)
        if k is None:
            if effort.rank < effort.most:
                return None
            raise UndecidedError(_undecided(extraction, options.n_components, sample), 2 * effort.rank)
        outside = 0.0 if complete else outside_variance(extraction, sample, k, leading)
        best = _found(extraction, Y, k, outside, min(k, real), effort.seed)
        errors.append(best.subspace_error)
        if best.subspace_error <= effort.tol:
            return best
        if complete or _stalled(errors):
            break
        leading = min(max(effort.rank // 2, k + max(k // 8, 1)), effort.rank, len(extraction.variances))
        Q = better_basis(extraction, Q, Y, leading, effort.rank)
        del Y, products
    warnings.warn(_why_not(best, passes + len(errors), effort), ConvergenceWarning, stacklevel=2)
    return best


def _nothing(sample: Sample, options: Options, effort: Effort) -> Found:
    """Return directions for rows without any variance."""
    known = known_spectrum(np.zeros(sample.limit), sample.rows, sample.weight, len(sample.mean), 0.0)
    k = count_components(known, options.n_components, sample.limit)
    return Found(np.zeros(k), orthonormal_rows(np.zeros((0, len(sample.mean))), k, effort.seed), np.zeros(k), 0.0)


def _stalled(errors: list[float]) -> bool:
    """Return whether two more passes have gained next to nothing."""
    return len(errors) > _PATIENCE and min(errors[-_PATIENCE:]) > 0.9 * min(errors[:-_PATIENCE])


def _why_not(found: Found, passes: int, effort: Effort) -> str:
    """Say how far the passes came, and what would help."""
    missed = (
        f"after {passes} passes the estimated error of the subspace (1 - MEV) is {found.subspace_error:.1e}, above tol={effort.tol:g}: "
    )
    if found.variances[-1] > _STEEP[effort.precision] * found.variances[0]:
        return missed + "neighbouring variances may be equal, so that the last components are not unique; else allow more memory or passes"
    remedy = "use precision='float64'" if effort.precision == "float32" else "use solver='tsqr', or fewer components"
    return missed + f"the last variances are below what {effort.precision} products resolve beside the largest: {remedy}"


def first_basis(sketch: Sketch) -> Array:
    """Return the directions of the sketch as columns."""
    rows = sketch.rows
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    kept = norms > _REAL * np.finfo(rows.dtype).eps * norms.max(initial=0.0)
    return np.ascontiguousarray((rows[kept] / norms[kept, None].astype(rows.dtype)).T)


def outside_variance(extraction: Extraction, sample: Sample, k: int, leading: int | None) -> float:
    """Return the variance in the directions that a basis misses, as far as they matter: rules that hold for all spectra measured.

    A basis from a sketch misses directions nearly as long as its last one, and shorter ones the faster the variances decay. One of which
    only the first ``leading`` are eigenvectors found before misses what lies between the next and the last of its variances. It is at
    least what the residuals show, and the average of what is left.
    """
    ritz = extraction.ritz
    left = min(sample.rows - 1, len(sample.mean)) - len(ritz)
    if left <= 0:
        return 0.0
    last, rest = float(ritz[-1]), max(sample.trace - float(ritz.sum()), 0.0) / left
    shown = max(0.5 * float((extraction.residuals[k:] * ritz[k:]).max(initial=0.0)), rest)
    if leading is not None:
        return max(float(np.sqrt(last * ritz[min(leading, len(ritz) - 1)])), shown)
    return max(float(last**0.9 * min(rest, last) ** 0.1), shown)


def _found(extraction: Extraction, Y: Array, k: int, outside: float, real: int, seed: int | None) -> Found:
    """Return k components: those found, then others without variance; ``real`` of them should have some."""
    have = min(k, len(extraction.variances))
    errors = np.zeros(k)
    errors[:have] = extraction.errors(have, outside)
    errors[have:real] = 1.0
    vectors = np.empty((have, len(Y)))
    coefficients = extraction.coefficients[:, :have]
    for rows in row_panels(Y):
        vectors[:, rows] = (Y[rows] @ coefficients).T
    variances, residuals = np.zeros(k), np.zeros(k)
    variances[:have] = np.minimum.accumulate(extraction.corrected(have, outside))
    residuals[:have] = extraction.accuracy(have, outside)
    spectrum = None if k > len(extraction.variances) else np.r_[variances, np.minimum(extraction.variances[k:], variances[-1])]
    return Found(variances, orthonormal_rows(vectors, k, seed), residuals, float(errors.mean()), spectrum=spectrum)


def _count(extraction: Extraction, wanted: Wanted, sample: Sample, complete: bool) -> int | None:
    """Return the number of components, or None if the directions are too few to tell."""
    if isinstance(wanted, int):
        return wanted
    if wanted is None:
        return sample.limit if complete else None
    selection = _choice(extraction, wanted, sample)
    return None if isinstance(selection, str) or selection.bound else at_least_one(selection)


def _choice(extraction: Extraction, wanted: float | str, sample: Sample) -> Selection | str:
    """Return what a criterion chooses, or why it cannot."""
    known = known_spectrum(extraction.variances, sample.rows, sample.weight, len(sample.mean), sample.trace)
    try:
        return choose(known, wanted)
    except UsageError as error:
        return str(error)


def _undecided(extraction: Extraction, wanted: Wanted, sample: Sample) -> str:
    """Say what the directions do not tell."""
    directions = len(extraction.variances)
    if wanted is None:
        return f"the sketch has {directions} directions, which do not explain all of the variance"
    selection = _choice(extraction, wanted, sample)
    reason = selection if isinstance(selection, str) else selection.reason
    return f"the {directions} directions of the sketch do not decide n_components={wanted!r}: {reason}"


def _scales(moments: Moments) -> Floats:
    """Return the standard deviation (divisor n) of each column, 1 where it is constant."""
    deviation = np.sqrt(moments.variance())
    return np.where(deviation > 0, deviation, 1.0)
