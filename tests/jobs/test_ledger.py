"""The ledger on disk: how often it writes, what it believes, what becomes of a disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streampca.errors import UsageError
from streampca.events import Observer
from streampca.jobs import ledger as module
from streampca.jobs.ledger import DiskLedger
from streampca.jobs.work import Work
from streampca.statistics import Moments, Scatter
from tests.statistics.conformance import bits


class Clock:
    """A clock that stands still unless it is told: each write of a state takes so many seconds."""

    def __init__(self, seconds_per_write: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.writes = 0.0, 0

        def write(*_: Any, **__: Any) -> None:
            self.now += seconds_per_write
            self.writes += 1

        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module, "write_arrays", write)


class Heard(Observer):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, message: str) -> None:
        self.warnings.append(message)


def state() -> Scatter:
    scatter = Scatter(4)
    scatter.update(np.random.default_rng(0).normal(size=(20, 4)))
    return scatter


def opened(tmp_path: Path) -> Work:
    work = Work(str(tmp_path / "m.zarr"))
    work.open({"method": {"name": "pca"}})
    return work


@pytest.mark.parametrize("seconds", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("every", [1.0, 30.0])
def test_writing_takes_at_most_three_percent(every: float, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(seconds, monkeypatch)
    ledger = DiskLedger(opened(tmp_path), every, Observer())
    for shard in range(1, 20_000):
        clock.now += 0.25
        ledger.progress("000-x", shard, state_of_nothing)
    assert clock.writes > 5
    assert clock.writes <= clock.now / every
    assert ledger.seconds / clock.now <= 0.03 + seconds / clock.now  # the cost of the first one is a guess
    assert ledger.count == clock.writes
    assert ledger.seconds == pytest.approx(clock.writes * seconds)


state_of_nothing = Moments(2)


def test_every_group_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0, monkeypatch)
    ledger = DiskLedger(opened(tmp_path), 0, Observer())
    for shard in (8, 16, 24):
        ledger.progress("000-x", shard, state_of_nothing)
    ledger.finished("000-x", 24, state_of_nothing)  # it is there already
    assert clock.writes == 3


def test_a_short_pass_is_not_worth_it_but_an_interruption_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.1, monkeypatch)
    ledger = DiskLedger(opened(tmp_path), 30, Observer())
    clock.now += 1
    ledger.finished("000-x", 24, state_of_nothing)
    assert clock.writes == 0
    ledger.interrupted("001-y", 8, state_of_nothing)
    assert clock.writes == 1
    clock.now += 10
    ledger.finished("001-y", 24, state_of_nothing)
    assert clock.writes == 2


def test_what_is_written_comes_back_bit_for_bit(tmp_path: Path) -> None:
    work = opened(tmp_path)
    DiskLedger(work, 0, Observer()).progress("000-a pass/with a name", 8, state())
    heard = Heard()
    again = DiskLedger(work, 0, heard)
    kept = again.resume("000-a pass/with a name", Scatter)
    assert kept is not None
    assert (kept.n_shards, bits(kept.state)) == (8, bits(state()))
    assert again.resume("001-other", Scatter) is None
    assert heard.warnings == []
    assert again.resume("000-a pass/with a name", Moments) is None
    assert "holds a Scatter, not a Moments" in heard.warnings[0]


def test_a_full_disk_ends_the_checkpoints_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_arrays", full)
    heard = Heard()
    ledger = DiskLedger(opened(tmp_path), 0, heard)
    for shard in (8, 16):
        ledger.progress("000-x", shard, state())
    assert len(heard.warnings) == 1
    assert "No space left" in heard.warnings[0]


def test_a_work_folder_of_another_run(tmp_path: Path) -> None:
    opened(tmp_path).begin()
    other = Work(str(tmp_path / "m.zarr"))
    with pytest.raises(UsageError, match=r"method\.name was 'pca' and is 'ppca'.*--fresh"):
        other.open({"method": {"name": "ppca"}})
    other.open({"method": {"name": "ppca"}}, fresh=True)
    assert not other.folder.exists()
