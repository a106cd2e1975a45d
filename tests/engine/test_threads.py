from __future__ import annotations

import gc
from typing import Any

import pytest

from streampca.blocks import Partition
from streampca.engine import Scheduler, live_states
from streampca.engine.threads import Threads
from streampca.events import Observer
from tests.engine.conformance import EngineTests, cut
from tests.engine.scripted import Counted, Scripted, Slow, Sum


class ThreadsTests(EngineTests):
    workers = 1

    @pytest.fixture
    def scheduler(self) -> Scheduler:
        return Threads(self.workers)

    @pytest.mark.parametrize("merge_seconds", [0.0, 0.004])
    @pytest.mark.parametrize("slow_rows", [2, 16, 18, 34])
    def test_live_states_are_bounded(self, scheduler: Scheduler, slow_rows: int, merge_seconds: float, monkeypatch: Any) -> None:
        """A slow first shard of any group makes the others wait, instead of piling up."""
        monkeypatch.setattr(Counted, "seconds_to_merge", merge_seconds)
        source = Slow(120, seconds=0.05 if slow_rows == 2 else 0.01, until=slow_rows)
        statistic = Counted()
        gc.collect()
        Counted.most = Counted.live
        already = Counted.live  # among them the one that was just made, and stays empty
        assert self.run(scheduler, statistic, source, cut(source, 1, 2)) is not None
        assert Counted.most - already <= live_states(self.workers)
        gc.collect()
        assert Counted.live <= already


class TestThreads1(ThreadsTests):
    workers = 1


class TestThreads2(ThreadsTests):
    workers = 2


class TestThreads4(ThreadsTests):
    workers = 4


@pytest.mark.timeout(120)
def test_thousands_of_shards_are_scheduled() -> None:
    source = Scripted(5_000)
    result: Any = Threads(2).fold(Sum(), source, Partition(source.info.segments, 1, 1), Observer())
    assert result.total[0] == pytest.approx(source.read(slice(None)).sum())
