"""Sources and statistics that follow a script: slow, failing, changing, counted. Importable by worker processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from threadpoolctl import threadpool_info

from streampca.blocks import Segment
from streampca.events import Observer
from streampca.sources.base import Array, Source, SourceInfo
from streampca.sources.files import not_found
from streampca.statistics import Statistic


def table(n_rows: int, n_features: int = 3, dtype: Any = "float64") -> np.ndarray:
    return np.random.default_rng(n_rows).normal(size=(n_rows, n_features)).astype(dtype)


@dataclass(frozen=True)
class Scripted(Source):
    """Rows made of their own number; hooks tell what happens when some of them are read."""

    n_rows: int
    n_features: int = 3
    chunk_rows: int = 1
    names: tuple[str, ...] | None = None

    @property
    def info(self) -> SourceInfo:
        segments = (Segment(0, self.n_rows, self.chunk_rows),)
        return SourceInfo(self.n_rows, self.n_features, np.dtype(np.float64), segments, 8 * self.n_rows, "same", self.names)

    def before(self, start: int, stop: int) -> None:
        """Do what the script says."""

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        self.before(start, stop)
        rows = np.arange(start, stop)
        return np.sin(rows[:, None] * np.arange(1.0, self.n_features + 1))


@dataclass(frozen=True)
class Slow(Scripted):
    """Takes its time over the rows before ``until``."""

    seconds: float = 0.05
    until: int = 10**9

    def before(self, start: int, stop: int) -> None:
        if start < self.until:
            time.sleep(self.seconds)


@dataclass(frozen=True)
class Failing(Scripted):
    """Raises when a row is read: always, or only as long as a marker file is missing."""

    row: int = 0
    marker: str | None = None
    seconds: float = 0.0

    def before(self, start: int, stop: int) -> None:
        time.sleep(self.seconds)
        if not start <= self.row < stop:
            return
        if self.marker and Path(self.marker).exists():
            return
        if self.marker:
            Path(self.marker).touch()
        raise OSError(f"cannot read row {self.row}")


@dataclass(frozen=True)
class Unseen(Scripted):
    """Is a file that only one process sees, or none."""

    pid: int = 0

    def before(self, start: int, stop: int) -> None:
        if os.getpid() != self.pid:
            raise not_found("/data/x.h5")

    def current_fingerprint(self) -> str:
        self.before(0, 1)
        return "same"


@dataclass(frozen=True)
class Spoilt(Scripted):
    """Has a NaN."""

    row: int = 0
    column: int = 0

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        rows = super()._read(start, stop, out)
        if start <= self.row < stop:
            rows[self.row - start, self.column] = np.nan
        return rows


@dataclass(frozen=True)
class Changing(Scripted):
    """Is another file once some row has been read."""

    row: int = 0
    marker: str = ""

    def before(self, start: int, stop: int) -> None:
        if start <= self.row < stop:
            Path(self.marker).touch()

    def current_fingerprint(self) -> str:
        return "other" if Path(self.marker).exists() else "same"


@dataclass(frozen=True)
class Telling(Slow):
    """Writes the process id of the worker that reads into a folder."""

    folder: str = ""

    def before(self, start: int, stop: int) -> None:
        (Path(self.folder) / f"{os.getpid()}-{start}").touch()
        super().before(start, stop)


@dataclass
class Counter(Observer):
    """Counts what it is told; asks to stop after some rows."""

    stop_after: int = 10**9
    rows: int = 0
    n_bytes: int = 0
    told: list[Any] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:
        self.told.append(("started", name, rows, n_bytes))

    def advanced(self, rows: int, n_bytes: int) -> None:
        with self.lock:
            self.rows += rows
            self.n_bytes += n_bytes

    def pass_finished(self, name: str) -> None:
        self.told.append(("finished", name))

    def stop_requested(self) -> bool:
        return self.rows >= self.stop_after


class Sum(Statistic):
    """The sum of all entries: next to nothing to do."""

    tolerance = 1e-12

    def __init__(self) -> None:
        self.total: Array = np.zeros(1)

    def blueprint(self) -> Callable[[], Self]:
        return type(self)

    def update(self, block: Array, weights: Array | None = None) -> None:
        self.total += block.sum()

    def merge(self, other: Self) -> None:
        self.total += other.total

    def to_arrays(self) -> dict[str, Array]:
        return {"total": self.total}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        one = cls()
        one.total = arrays["total"]
        return one

    @property
    def nbytes(self) -> int:
        return 8

    def workspace(self, rows: int) -> int:
        return 0


class Order(Sum):
    """The tree of merges, as text: any other order of the same parts is another text."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def update(self, block: Array, weights: Array | None = None) -> None:
        self.text += f"[{len(block)}]"

    def merge(self, other: Self) -> None:
        self.text = f"({self.text}+{other.text})"

    def to_arrays(self) -> dict[str, Array]:
        return {"text": np.array(self.text)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        one = cls()
        one.text = str(arrays["text"])
        return one


class Counted(Sum):
    """Knows how many of its kind exist, and how many did at most."""

    lock: ClassVar[Any] = threading.RLock()  # a state may be collected while another is being made
    live: ClassVar[int] = 0
    most: ClassVar[int] = 0
    seconds_to_merge: ClassVar[float] = 0.0

    def __init__(self) -> None:
        super().__init__()
        with Counted.lock:
            Counted.live += 1
            Counted.most = max(Counted.most, Counted.live)

    def __del__(self) -> None:
        with Counted.lock:
            Counted.live -= 1

    def merge(self, other: Self) -> None:
        time.sleep(Counted.seconds_to_merge)
        super().merge(other)


class Threads1(Sum):
    """The largest number of BLAS threads that was ever allowed during an update or merge."""

    def update(self, block: Array, weights: Array | None = None) -> None:
        product = np.ones((4, 4)) @ np.ones((4, 4))  # BLAS is loaded
        self.total = np.maximum(self.total, blas_threads() + 0 * product[0, 0])

    def merge(self, other: Self) -> None:
        self.total = np.maximum(self.total, np.maximum(other.total, blas_threads()))


def blas_threads() -> int:
    return max((each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"), default=1)
