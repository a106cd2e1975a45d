"""What a run tells while it runs. The engine calls an observer; fronts (progress bar, log) subclass it."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from streampca.memory import current_rss

Record = dict[str, Any]


class Observer:
    """Receives what happens, and may ask to stop. The base class ignores everything.

    ``advanced`` is called from several threads.
    """

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:
        """Tell that a pass over ``rows`` rows (``n_bytes`` decoded) begins."""

    def advanced(self, rows: int, n_bytes: int) -> None:
        """Tell that ``rows`` more rows have been folded."""

    def pass_finished(self, name: str) -> None:
        """Tell that the pass has ended."""

    def resumed(self, name: str, rows: int) -> None:
        """Tell that the first (or some) ``rows`` rows of a pass are known from an earlier run."""

    def warned(self, message: str) -> None:
        """Tell something that the user should know."""

    def noted(self, message: str) -> None:
        """Tell something that the user may like to know, such as where a cluster's dashboard is."""

    def stop_requested(self) -> bool:
        """Return True if the run shall stop at the next block."""
        return False


class ProgressObserver(Observer):
    """Hands records of plain values to ``tell``: when a pass begins and ends, every so often in between, and whatever else there is.

    Every record has ``time`` and ``event``; those of a pass (``started``, ``progress``, ``finished``) also ``pass``, ``rows``, ``of``, and,
    once there are some, ``rows_per_s``, ``GB_per_s`` (decoded) and ``eta_s``, and the ``memory`` of this process in bytes.

    >>> class Print(ProgressObserver):
    ...     def tell(self, record):
    ...         print(record["event"], record["pass"], record["rows"], "of", record["of"])
    >>> observer = Print()
    >>> observer.pass_started("scatter", rows=10, n_bytes=800)
    started scatter 0 of 10
    """

    seconds = 10.0  # between two records of progress

    def tell(self, record: Record) -> None:
        """Receive a record. Called from one thread at a time."""

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._name, self._rows, self._done, self._bytes = name, rows, 0, 0
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()
        self._tell("started", **self._progress(0.0), GB=round(n_bytes / 1e9, 4))

    def advanced(self, rows: int, n_bytes: int) -> None:  # noqa: D102
        with self._lock:
            self._done += rows
            self._bytes += n_bytes
            now = time.monotonic()
            if now - self._said < self.seconds:
                return
            self._said = now
            self._tell("progress", **self._progress(now - self._began))

    def pass_finished(self, name: str) -> None:  # noqa: D102
        elapsed = time.monotonic() - self._began
        self._tell("finished", **self._progress(elapsed), seconds=round(elapsed, 3))

    def resumed(self, name: str, rows: int) -> None:  # noqa: D102
        self._tell("resumed", **{"pass": name, "rows": rows})

    def warned(self, message: str) -> None:  # noqa: D102
        self._tell("warning", message=message)

    def noted(self, message: str) -> None:  # noqa: D102
        self._tell("note", message=message)

    def _progress(self, elapsed: float) -> Record:
        facts: Record = {"pass": self._name, "rows": self._done, "of": self._rows}
        if self._done and elapsed > 0:
            speed = self._done / elapsed
            left = (self._rows - self._done) / speed
            facts |= {"rows_per_s": round(speed, 1), "GB_per_s": round(self._bytes / elapsed / 1e9, 4), "eta_s": round(left, 1)}
        return {**facts, "memory": current_rss()}

    def _tell(self, event: str, **facts: Any) -> None:
        self.tell({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **facts})


class LoggingObserver(ProgressObserver):
    """Tells Python's logger ``streampca``: what a fit in Python does where nobody else listens."""

    def tell(self, record: Record) -> None:
        """Log the record as a line of text."""
        level = logging.WARNING if record["event"] == "warning" else logging.INFO
        logging.getLogger("streampca").log(level, as_text(record))


def default_observer() -> Observer:
    """Return an observer for a fit without one: the logger ``streampca``, if somebody has turned it on."""
    return LoggingObserver() if logging.getLogger("streampca").isEnabledFor(logging.INFO) else Observer()


def as_text(record: Record) -> str:
    """Return a record as a line for people.

    >>> as_text({"event": "progress", "pass": "scatter", "rows": 50, "of": 200, "rows_per_s": 5.0, "GB_per_s": 0.25, "eta_s": 30.0})
    'pass scatter: 25%, 5 rows/s, 0.25 GB/s, 30 s left'
    >>> as_text({"event": "warning", "message": "2 chunks are absent"})
    'warning: 2 chunks are absent'
    """
    event = record["event"]
    if event in ("warning", "note"):
        return f"warning: {record['message']}" if event == "warning" else str(record["message"])
    speed = f"{record.get('rows_per_s', 0):,.0f} rows/s, {record.get('GB_per_s', 0):.2f} GB/s"
    texts = {
        "started": lambda: f"{record['of']:,} rows, {record['GB']:.2f} GB",
        "progress": lambda: f"{record['rows'] / max(record['of'], 1):.0%}, {speed}, {record.get('eta_s', 0):.0f} s left",
        "finished": lambda: f"done in {record['seconds']:.1f} s, {speed}",
        "resumed": lambda: f"{record['rows']:,} rows are done, by a run that was interrupted",
    }
    return f"pass {record['pass']}: {texts[event]()}"
