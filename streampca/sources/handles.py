"""Open files, a few per process: sources carry paths, and the first read in a process opens what it needs.

A handle is dropped, never closed, when it is evicted: a thread that is still reading holds a reference, and the
last reference closes the file. After a fork the child starts with no handles, since file offsets and locks
inherited from the parent are not its own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

H = TypeVar("H")


class HandleCache(Generic[H]):
    """The most recently used handles of this process, at most ``limit`` of them.

    >>> cache = HandleCache[str](limit=1)
    >>> cache.get("a.h5", stamp=1, open_handle=lambda: "opened"), cache.get("a.h5", 1, lambda: "again")
    ('opened', 'opened')
    >>> cache.get("a.h5", stamp=2, open_handle=lambda: "replaced")
    'replaced'
    """

    def __init__(self, limit: int = 16) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[int, Hashable], tuple[object, H]] = OrderedDict()
        self._inherited: list[object] = []
        os.register_at_fork(after_in_child=self._start_afresh)

    def get(self, key: Hashable, stamp: object, open_handle: Callable[[], H]) -> H:
        """Return the handle of ``key``, opened again if ``stamp`` differs from when it was opened."""
        place = (os.getpid(), key)
        with self._lock:
            entry = self._entries.get(place)
            if entry is not None and entry[0] == stamp:
                self._entries.move_to_end(place)
                return entry[1]
        handle = open_handle()
        with self._lock:
            self._entries[place] = (stamp, handle)
            self._entries.move_to_end(place)
            dropped = [self._entries.popitem(last=False) for _ in range(len(self._entries) - self._limit)]
        del dropped  # outside the lock: the last reference closes the file
        return handle

    def drop(self, key: Hashable) -> None:
        """Forget the handle of ``key``."""
        with self._lock:
            entry = self._entries.pop((os.getpid(), key), None)
        del entry

    def __len__(self) -> int:
        return len(self._entries)

    def _start_afresh(self) -> None:
        self._inherited.append(self._entries)  # kept: closing them is the parent's business
        self._entries = OrderedDict()
        self._lock = threading.Lock()
