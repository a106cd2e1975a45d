"""Large buffers that are used again: their pages stay mapped from block to block and from shard to shard.

Mapping fresh memory for every shard costs as much time as a tenth of the arithmetic. While somebody keeps the pool
(``keep`` / ``drop``, as often), what is given back is lent again; otherwise it goes back to the system at once.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_lock = threading.Lock()
_keepers = 0
_idle: list[Bytes] = []


def keep() -> None:
    """Keep what is given back until ``drop`` has been called as often."""
    global _keepers
    with _lock:
        _keepers += 1


def drop() -> None:
    """Undo one ``keep``; the last one gives all idle buffers back to the system."""
    global _keepers
    with _lock:
        _keepers -= 1
        if _keepers == 0:
            _idle.clear()


def borrow(n_bytes: int) -> Bytes:
    """Return a buffer of at least so many bytes, aligned to a page, its contents undefined."""
    with _lock:
        fitting = [index for index, buffer in enumerate(_idle) if n_bytes <= len(buffer) <= 2 * n_bytes]
        if fitting:
            return _idle.pop(min(fitting, key=lambda index: len(_idle[index])))
    populate = getattr(mmap, "MAP_POPULATE", 0)  # Linux: all pages at once, not one fault each
    pages = mmap.mmap(-1, max(n_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
    return np.frombuffer(pages, np.uint8)


def give_back(buffer: Bytes) -> None:
    """Return a buffer that was borrowed; it must not be used any more."""
    with _lock:
        if _keepers:
            _idle.append(buffer)
