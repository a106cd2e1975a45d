"""Where a fit spends its time: timers around functions of streampca, put there from outside.

Seconds and processor seconds are those of the calling threads, summed. What the package no longer has is left out.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from benchmarks import meter
from benchmarks.runners import Work, ours
from benchmarks.task import Task

TIMED = {
    "opening": "streampca.estimators.pca:PCA._open",
    "planning": "streampca.estimators.pca:PCA.plan_for",
    "checking that the file is unchanged": "streampca.sources.base:Source.check_unchanged",
    "reading and decoding": "streampca.sources.base:Source.read",
    "updates": "streampca.statistics.scatter:Scatter.update",
    "merges": "streampca.statistics.scatter:Scatter.merge",
    "eigh": "scipy.linalg:eigh",
}


class Clock:
    """Seconds, processor seconds and calls by name, from any thread."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            spent = time.perf_counter() - wall, time.thread_time() - cpu, 1
            with self._lock:
                part = self.parts.setdefault(name, [0.0, 0.0, 0])
                part[:] = [old + new for old, new in zip(part, spent, strict=True)]


def run(task: Task) -> Work:
    """Fit with timers in place."""
    clock = Clock()
    for name, place in TIMED.items():
        _wrap(place, functools.partial(_timed, clock, name))
    fit = ours.fit(task)
    clock.parts.clear()  # what the preparation called

    def work() -> dict[str, Any]:
        wall, cpu = time.perf_counter(), time.process_time()
        fit()
        total = time.perf_counter() - wall, time.process_time() - cpu
        return {"detail": json.dumps({"total": total, "cores": meter.cores(), "parts": clock.parts})}

    return work


def _wrap(place: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a function, given as module:name or module:Class.name, by its wrapped self."""
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    try:
        owner = functools.reduce(getattr, owners, import_module(module))
        setattr(owner, name, wrapper(getattr(owner, name)))
    except (ImportError, AttributeError):
        return


def _timed(clock: Clock, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with clock.time(name):
            return function(*args, **kwargs)

    return timed
