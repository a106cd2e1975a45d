"""Progress for people: a bar on a terminal, plain log lines everywhere else. Also the wish to stop, from signals."""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from streampca.events import Observer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_LOG_SECONDS = 10.0


class StoppableObserver(Observer):
    """Asks the run to stop at the next block once a signal has come."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Catch the signals that ask to stop."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {each: signal.signal(each, self._on_signal) for each in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give the signals back."""
        for each, handler in self._previous.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked twice: at once
        self._stop.set()

    def stop_requested(self) -> bool:  # noqa: D102
        return self._stop.is_set()


class LogObserver(StoppableObserver):
    """Writes plain lines to standard error: when a pass begins and ends, and now and then in between."""

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._name, self._rows, self._done, self._bytes = name, rows, 0, 0
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()
        self._log(f"pass {name}: {rows:,} rows, {n_bytes / 1e9:.2f} GB")

    def advanced(self, rows: int, n_bytes: int) -> None:  # noqa: D102
        with self._lock:
            self._done += rows
            self._bytes += n_bytes
            now = time.monotonic()
            if now - self._said < _LOG_SECONDS:
                return
            self._said = now
        elapsed = now - self._began
        left = elapsed * (self._rows - self._done) / max(self._done, 1)
        self._log(f"pass {self._name}: {self._done / max(self._rows, 1):.0%}, {self._speed(elapsed)}, {left:.0f} s left")

    def pass_finished(self, name: str) -> None:  # noqa: D102
        elapsed = time.monotonic() - self._began
        self._log(f"pass {name}: done in {elapsed:.1f} s, {self._speed(elapsed)}")

    def resumed(self, name: str, rows: int) -> None:  # noqa: D102
        self._log(f"pass {name}: {rows:,} rows are done, by a run that was interrupted")

    def warned(self, message: str) -> None:  # noqa: D102
        self._log(f"warning: {message}")

    def _speed(self, elapsed: float) -> str:
        elapsed = max(elapsed, 1e-9)
        return f"{self._done / elapsed:,.0f} rows/s, {self._bytes / elapsed / 1e9:.2f} GB/s"

    def _log(self, message: str) -> None:
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
        sys.stderr.flush()


class QuietObserver(StoppableObserver):
    """Says only what the user must know."""

    def warned(self, message: str) -> None:  # noqa: D102
        sys.stderr.write(f"warning: {message}\n")


class BarObserver(StoppableObserver):
    """Draws a progress bar with rows/s, GB/s and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _Speed(),
            TimeRemainingColumn(),
            console=console,
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop drawing."""
        super().__exit__(kind, error, trace)
        self._progress.stop()

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._task = self._progress.add_task(name, total=rows, row_bytes=n_bytes / max(rows, 1))

    def advanced(self, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._progress.advance(self._task, rows)

    def resumed(self, name: str, rows: int) -> None:  # noqa: D102
        self._progress.console.print(f"pass {name}: {rows:,} rows are done, by a run that was interrupted", soft_wrap=True)

    def warned(self, message: str) -> None:  # noqa: D102
        self._progress.console.print(Text("warning: ", "yellow") + Text(message), soft_wrap=True)


class _Speed(ProgressColumn):
    """Rows and decoded bytes per second."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        elapsed = task.finished_time or task.elapsed
        if not elapsed or not task.completed:
            return Text("")
        speed = task.completed / elapsed  # of the whole pass: Rich's own figure leaves out the first block, which may be the only one
        return Text(f"{speed:,.0f} rows/s {speed * task.fields['row_bytes'] / 1e9:.2f} GB/s")


def choose_observer(quiet: bool) -> StoppableObserver:
    """Return a bar for a terminal, log lines otherwise, or next to nothing when quiet."""
    if quiet:
        return QuietObserver()
    console = Console(stderr=True)
    return BarObserver(console) if console.is_terminal else LogObserver()
