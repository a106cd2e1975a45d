"""Exact PCA from one pass that never squares the data: the SVD of the R factor of the centred rows (TSQR).

Variances of 1e-24 of the largest are still right, where the scatter matrix keeps nothing below 1e-16. Demmel, Grigori, Hoemmen, Langou,
"Communication-optimal parallel and sequential QR and LU factorizations" (2012).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
from scipy import linalg

from streampca.engine import in_pass
from streampca.errors import DataError
from streampca.models.pca import Floats, PCAModel
from streampca.solvers.choice import count_components, known_spectrum
from streampca.solvers.finish import Sample, exactly, pca_model
from streampca.solvers.spectrum import ONE_THREAD_LIMIT, Options, Spectrum, check_sum_of_weights
from streampca.statistics.rfactor import RFactor

Run = Callable[[str, RFactor], RFactor]


def solve(n_features: int, options: Options, run: Run) -> tuple[PCAModel, RFactor]:
    """Return the model and the factor that it came from."""
    rfactor = run("rfactor", RFactor(n_features))
    return model_of(rfactor, options), rfactor


def model_of(rfactor: RFactor, options: Options) -> PCAModel:
    """Return the PCA of an accumulated factor; a row of weight w is w rows in all of it but the rank."""
    n, d = rfactor.count, rfactor.n_features
    check_sum_of_weights(n, rfactor.rows)
    if not np.isfinite(rfactor.squares).all():
        raise DataError("the values are so large that their squares overflow float64: rescale the data")
    scale = column_scales(rfactor) if options.standardize else np.ones(d)
    L, V = singular_pairs(rfactor.R, scale)
    variances = L**2 / (n - 1)
    trace = float((rfactor.squares / scale**2).sum() / (n - 1))
    sample = Sample(rfactor.mean, scale, rfactor.rows, n, trace)
    spectrum = Spectrum(variances, V, trace)
    k = count_components(known_spectrum(variances, rfactor.rows, n, d, trace), options.n_components, sample.limit)
    # The singular values, not their squares, are off by a few units of the largest one.
    residuals = 4 * np.finfo(np.float64).eps * L[0] / np.maximum(L, np.finfo(np.float64).tiny)
    negligible = 4 * np.sqrt(d) * np.finfo(np.float64).eps * L[0]
    rank = int(np.count_nonzero(negligible < L))
    return pca_model(sample, exactly(spectrum, k, residuals, rank), options)


def column_scales(rfactor: RFactor) -> Floats:
    """Return the standard deviation (divisor n) of each column, 1 where it is constant."""
    deviation = np.sqrt(rfactor.squares / rfactor.count)
    return np.where(deviation > 0, deviation, 1.0)


def singular_pairs(R: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return all singular values of ``R / scale``, largest first, and its right singular vectors, one per row.

    The columns are sorted by size first, and made triangular again: LAPACK's SVD keeps every digit of small columns beside large
    ones only if these come first (measured, columns from 1 to 1e-14: off by 1e-15 of each singular value, 2e-4 in the opposite order).

    >>> singular_pairs(np.diag([1.0, 8.0]), np.array([1.0, 4.0]))[0]
    array([2., 1.])
    """
    d = len(R)
    with in_pass() if d <= ONE_THREAD_LIMIT else nullcontext():
        scaled = R / scale
        order = np.argsort(-np.linalg.norm(scaled, axis=0), kind="stable")
        (factor,) = linalg.qr(np.asfortranarray(scaled[:, order]), mode="r", overwrite_a=True, check_finite=False)
        del scaled
        L, V = _svd(factor)
    vectors = np.empty_like(V)
    vectors[:, order] = V
    return L, vectors


def solve_bytes(n_features: int) -> int:
    """Return the bytes that ``model_of`` needs beside the factor: its sorted copy, both sets of singular vectors, LAPACK's workspace.

    >>> solve_bytes(1000)
    64512000
    """
    return 8 * n_features * (8 * n_features + 64)


def _svd(factor: Floats) -> tuple[Floats, Floats]:
    try:
        _, L, V = linalg.svd(factor, full_matrices=False, check_finite=False)
    except linalg.LinAlgError:  # divide and conquer may fail where the slower iteration does not
        _, L, V = linalg.svd(factor, full_matrices=False, check_finite=False, lapack_driver="gesvd")
    return L, V
