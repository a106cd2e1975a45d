"""The QR update that everything orthogonal is made of: fold rows into a triangular factor, by LAPACK's ``dtpqrt``.

It leaves the zeros of the triangle alone, so a row costs ``2 d^2`` flops however few come at a time. SciPy's own wrapper would hold the
interpreter's lock meanwhile, so that neither other tasks nor the reader could go on: LAPACK is called through SciPy's C interface instead.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

from scipy import LowLevelCallable
from scipy.linalg import cython_lapack, lapack

from streampca.statistics.base import Floats

_NARROW = 256  # columns: up to here 16 reflections at a time are fastest, 32 beyond (by measurement)
_N_ARGUMENTS = 12


def fold_rows(lower: Floats, columns: Floats, scratch: Floats) -> None:
    """Replace ``R = lower.T`` by the triangular factor of the rows of R and those of ``columns.T``, which are overwritten.

    Each row of ``lower`` (d x d) and of ``columns`` (d x m) must be contiguous; the rows may be any equal distance apart. What
    is above the diagonal of ``lower`` is neither read nor written. The diagonal of R may come out with any signs.

    >>> import numpy as np
    >>> lower = np.array([[3.0, 0.0], [1.0, 2.0]])
    >>> fold_rows(lower, np.array([[4.0], [0.0]]), np.empty(scratch_size(2)))
    >>> np.abs(lower.T).round(12).tolist()
    [[5.0, 0.6], [0.0, 2.154065922854]]
    """
    call = _tpqrt()
    if columns.size == 0:
        return
    if call is None:  # pragma: no cover (no SciPy build so far)
        _fold_by_wrapper(lower, columns)
    else:
        _fold(call, lower, columns, scratch)


def scratch_size(n_features: int) -> int:
    """Return how many float64 numbers ``fold_rows`` needs as scratch."""
    return 2 * _panel(n_features) * n_features


def _panel(n_features: int) -> int:
    """Return how many reflections are applied at once."""
    return min(16 if n_features <= _NARROW else 32, n_features)


def _fold(call: Callable[..., None], lower: Floats, columns: Floats, scratch: Floats) -> None:
    (d, m), panel = columns.shape, _panel(len(lower))
    number = ctypes.c_int
    address, width = scratch.ctypes.data, scratch.itemsize
    info = number()
    call(
        *(ctypes.byref(number(value)) for value in (m, d, 0, panel)),
        *(lower.ctypes.data, ctypes.byref(number(_leading(lower)))),
        *(columns.ctypes.data, ctypes.byref(number(_leading(columns)))),
        *(address, ctypes.byref(number(panel)), address + width * panel * d, ctypes.byref(info)),
    )


def _leading(array: Floats) -> int:
    """Return how many numbers apart two rows are."""
    distance: int = max(array.strides[0] // array.itemsize, array.shape[1], 1)
    return distance


def _fold_by_wrapper(lower: Floats, columns: Floats) -> None:
    """Do the same through SciPy's Python interface, with copies."""
    d = len(lower)
    factor, _, _, _ = lapack.dtpqrt(0, _panel(d), lower.T, columns.T)
    for row in range(d):
        lower[row, : row + 1] = factor[: row + 1, row]


@cache
def _tpqrt() -> Callable[..., None] | None:
    """Return LAPACK's function as one that frees the interpreter while it runs; None if its integers are not C's ``int``."""
    function = LowLevelCallable.from_cython(cython_lapack, "dtpqrt")
    if not function.signature.startswith("void (int *"):  # pragma: no cover (no SciPy build so far)
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(function.function, function.signature.encode())
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * _N_ARGUMENTS)(address)
