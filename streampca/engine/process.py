"""What a process keeps while passes run in it: one BLAS thread per task, and the blocks' buffers, reused from shard to shard.

Both are process-wide, begin with the first pass and end with the last, whatever threads these run in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from streampca import buffers

_lock = threading.Lock()
_passes = 0
_limits: Any = None
_libraries: tuple[int, ThreadpoolController] | None = None  # and how many modules there were when they were looked for


def enter_pass() -> None:
    """Hold this process at one BLAS thread until ``leave_pass`` has been called as often."""
    global _passes, _limits
    buffers.keep()
    with _lock:
        if _passes == 0:
            _take_control_of_openblas()
            _limits = _find_libraries().limit(limits=1, user_api="blas")  # OpenMP's limit would be this thread's only
        _passes += 1


def leave_pass() -> None:
    """Undo one ``enter_pass``; the last one lifts the limit and gives the buffers back to the system."""
    global _passes, _limits
    buffers.drop()
    with _lock:
        _passes -= 1
        if _passes == 0 and _limits is not None:
            _take_control_of_openblas()
            _limits.restore_original_limits()
            _limits = None
            _take_control_of_openblas()


def _find_libraries() -> ThreadpoolController:
    """Return the loaded libraries, looked for again only after an import: to find them, all mappings of the process are read."""
    global _libraries
    count = len(sys.modules)
    if _libraries is None or _libraries[0] != count:
        _libraries = count, ThreadpoolController()
    return _libraries[1]


def _take_control_of_openblas() -> None:
    """Let any thread set the limit: newer versions of threadpoolctl ignore all but the thread that set it first."""
    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


@contextmanager
def in_pass() -> Iterator[None]:
    """Be in a pass within the block; may nest and overlap in threads."""
    enter_pass()
    try:
        yield
    finally:
        leave_pass()


@contextmanager
def borrowed_buffers(count: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Iterator[list[NDArray[Any]]]:
    """Lend arrays for the length of the block."""
    n_bytes = shape[0] * shape[1] * dtype.itemsize
    lent = [buffers.borrow(n_bytes) for _ in range(count)]
    try:
        yield [buffer[:n_bytes].view(dtype).reshape(shape) for buffer in lent]
    finally:
        for buffer in lent:
            buffers.give_back(buffer)
