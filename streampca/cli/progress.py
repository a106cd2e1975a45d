"""Progress for people: a bar on a terminal, plain log lines everywhere else. Also the wish to stop, from signals."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from enum import StrEnum
from types import FrameType, TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from streampca.events import Observer, ProgressObserver, Record, as_text
from streampca.memory import current_rss, format_bytes

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


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


class LogObserver(ProgressObserver, StoppableObserver):
    """Writes lines to standard error: when a pass begins and ends, and now and then in between. As text, or as JSON, one object each."""

    def __init__(self, form: LogFormat = LogFormat.TEXT) -> None:
        StoppableObserver.__init__(self)
        self._form = form

    def tell(self, record: Record) -> None:
        """Write a line."""
        text = json.dumps(record) if self._form is LogFormat.JSON else f"{time.strftime('%Y-%m-%d %H:%M:%S')} {as_text(record)}"
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class QuietObserver(StoppableObserver):
    """Says only what the user must know."""

    def warned(self, message: str) -> None:  # noqa: D102
        sys.stderr.write(f"warning: {message}\n")


class BarObserver(StoppableObserver):
    """Draws a progress bar with rows/s, GB/s, the time left and the memory of this process."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description:>8}"),
            BarColumn(bar_width=None),  # what the others leave
            TextColumn("{task.percentage:>3.0f}%"),
            _Speed(),
            TimeRemainingColumn(),
            _Memory(),
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

    def noted(self, message: str) -> None:  # noqa: D102
        self._progress.console.print(Text(message), soft_wrap=True)


class _Speed(ProgressColumn):
    """Rows and decoded bytes per second."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        elapsed = task.finished_time or task.elapsed
        if not elapsed or not task.completed:
            return Text("")
        speed = task.completed / elapsed  # of the whole pass: Rich's own figure leaves out the first block, which may be the only one
        return Text(f"{speed:,.0f} rows/s {speed * task.fields['row_bytes'] / 1e9:.2f} GB/s")


class _Memory(ProgressColumn):
    """What this process holds."""

    def render(self, task: Task) -> Text:
        """Return the text of the column."""
        return Text(format_bytes(current_rss()))


def choose_observer(quiet: bool, log: LogFormat | None = None) -> StoppableObserver:
    """Return log lines if asked for; else next to nothing when quiet, a bar for a terminal, lines of text otherwise."""
    if log is not None:
        return LogObserver(log)
    if quiet:
        return QuietObserver()
    console = Console(stderr=True)
    return BarObserver(console) if console.is_terminal else LogObserver()


def log_error(facts: Record) -> None:
    """Write why a run failed as a line of JSON, like those before it."""
    LogObserver(LogFormat.JSON)._tell("error", **facts)
