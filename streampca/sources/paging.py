"""Hints to the system's page cache: fetch what comes next while this is decoded, forget what will not be read again in time."""

from __future__ import annotations

import os

from streampca.memory import total_memory

_HINTS = hasattr(os, "posix_fadvise")


def fetch(file: int, offset: int, size: int) -> None:
    """Have the system read so many bytes (0: to the end) of a file, without waiting for them."""
    if _HINTS:
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


def forget(file: int, offset: int, size: int) -> None:
    """Have the system drop bytes that were read from its cache."""
    if _HINTS:
        os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)


class Paging:
    """Hints for one open file, read in pieces from front to back."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = os.fstat(file).st_size
        self._forget = self._size > total_memory()  # the cache would throw out all else and still not hold it

    def turn(self, start: int, stop: int) -> None:
        """Bytes ``start:stop`` have been read: as many after them are likely to be next."""
        ahead = min(stop - start, self._size - stop)
        if ahead > 0:
            fetch(self._file, stop, ahead)
        if self._forget and stop > start:
            forget(self._file, start, stop - start)
