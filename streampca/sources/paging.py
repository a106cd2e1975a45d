"""Hints to the system's page cache: fetch what comes next while this is decoded, forget what will not be read again in time."""

from __future__ import annotations

import os

from streampca.memory import total_memory


class Paging:
    """Hints for one open file, read in pieces from front to back."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._size = os.fstat(file).st_size
        self._forget = self._size > total_memory()  # the cache would throw out all else and still not hold it

    def turn(self, start: int, stop: int) -> None:
        """Bytes ``start:stop`` have been read: as many after them are likely to be next."""
        if not hasattr(os, "posix_fadvise") or stop <= start:
            return
        ahead = min(stop - start, self._size - stop)
        if ahead > 0:
            os.posix_fadvise(self._file, stop, ahead, os.POSIX_FADV_WILLNEED)
        if self._forget:
            os.posix_fadvise(self._file, start, stop - start, os.POSIX_FADV_DONTNEED)
