"""The ledger on disk: the running total of a pass, stored now and then as checksummed arrays, one store per pass.

A note costs the time to write a state; notes are as rare as needed to cost at most 3% of the run.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from streampca.engine import Kept
from streampca.errors import DataError
from streampca.events import Observer
from streampca.failpoints import failpoint
from streampca.jobs.work import Work
from streampca.memory import MIB
from streampca.statistics.base import Statistic
from streampca.storage import read_arrays, write_arrays

VERSION = 1
_SHARE = 0.03  # of the time that notes may take
_CHUNK_BYTES = 4 * MIB  # a state is written in pieces, of which a few are in memory
_SPEED, _LATENCY = 200e6, 0.1  # bytes/s and s: a guess, until one has been written


class DiskLedger:
    """Keeps totals of passes in the work folder of a run."""

    def __init__(self, work: Work, every: float, observer: Observer) -> None:
        self._work, self._every, self._observer = work, every, observer
        self._last = time.monotonic()
        self._slowness = 1.0  # of this disk, against the guess
        self._written = ("", 0)
        self._broken = False
        self.count, self.seconds = 0, 0.0  # what was written, and the time it took

    def resume(self, name: str, kind: type[Statistic]) -> Kept | None:
        """Return what is kept of a pass; what cannot be read is as good as nothing."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            arrays, attributes, _ = read_arrays(path, kind="checkpoint", max_version=VERSION)
            if attributes["statistic"] != kind.__name__:
                raise DataError(f"{path} holds a {attributes['statistic']}, not a {kind.__name__}")
            return Kept(int(attributes["n_shards"]), kind.from_arrays(arrays))
        except (DataError, KeyError, TypeError, ValueError) as error:
            self._observer.warned(f"a checkpoint cannot be used, its pass starts over: {error}")
            return None

    def progress(self, name: str, n_shards: int, state: Statistic) -> None:
        """Write a total if the last one was written long enough ago."""
        if self._every == 0 or self._since() >= max(self._every, self._cost(state) / _SHARE):
            self._write(name, n_shards, state)

    def interrupted(self, name: str, n_shards: int, state: Statistic) -> None:
        """Write a total now."""
        self._write(name, n_shards, state)

    def finished(self, name: str, n_shards: int, state: Statistic) -> None:
        """Write the total of a pass unless the pass was so short that it is sooner done again."""
        if self._every == 0 or self._since() >= self._cost(state) / _SHARE:
            self._write(name, n_shards, state)
        failpoint("pass-finished")

    def _write(self, name: str, n_shards: int, state: Statistic) -> None:
        if self._broken or self._written == (name, n_shards):
            return
        began = time.monotonic()
        try:
            self._work.begin()
            attributes = {"n_shards": n_shards, "statistic": type(state).__name__}
            path = self._path(name)
            write_arrays(
                path,
                state.to_arrays(),
                attributes,
                kind="checkpoint",
                version=VERSION,
                overwrite=True,
                chunk_bytes=_CHUNK_BYTES,
                name="checkpoint",
            )
        except OSError as error:  # the run itself may well succeed
            self._broken = True
            self._observer.warned(f"no checkpoints from here on: {error}")
            return
        self._last = time.monotonic()
        self.count, self.seconds = self.count + 1, self.seconds + self._last - began
        self._slowness = max((self._last - began) / _guess(state), 0.1)
        self._written = name, n_shards
        failpoint("checkpoint-written")

    def _since(self) -> float:
        return time.monotonic() - self._last

    def _cost(self, state: Statistic) -> float:
        """Return the seconds that writing a state will take, judged by the last one."""
        return self._slowness * _guess(state)

    def _path(self, name: str) -> Path:
        return self._work.folder / "passes" / f"{re.sub('[^A-Za-z0-9.+-]', '_', name)}.zarr"


def _guess(state: Statistic) -> float:
    return state.nbytes / _SPEED + _LATENCY
