"""A pass that is interrupted anywhere and gone on with has the bits of one that never was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from distributed import Client

from streampca.engine import Engine, Kept, Scheduler, Written, map_rows
from streampca.engine.cluster import Cluster
from streampca.engine.threads import Threads
from streampca.errors import InterruptedRunError
from streampca.statistics import Moments, RFactor, Scatter, Statistic
from streampca.statistics.products import Products
from streampca.statistics.sketch import Sketch
from tests.engine.conformance import by_hand, cut
from tests.engine.scripted import Counter, Failing, Scripted
from tests.statistics.conformance import bits

N_SHARDS, GROUP = 30, 8
Q = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 2)))[0]
STATISTICS: dict[str, Any] = {
    "moments": Moments(6),
    "scatter64": Scatter(6),
    "scatter32": Scatter(6, "float32"),
    "rfactor": RFactor(6),
    "sketch": Sketch(6, 3),
    "products": Products(Q, np.zeros(6), None, "float64", "float64"),
}


@dataclass
class MemoryLedger:
    """Keeps everything, as arrays: what a file would hold."""

    kept: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    heard: list[tuple[str, str, int]] = field(default_factory=list)

    def resume(self, name: str, kind: type[Statistic]) -> Kept | None:
        if name not in self.kept:
            return None
        n_shards, arrays = self.kept[name]
        return Kept(n_shards, kind.from_arrays({key: array.copy() for key, array in arrays.items()}))

    def _keep(self, how: str, name: str, n_shards: int, state: Statistic) -> None:
        self.heard.append((how, name, n_shards))
        self.kept[name] = n_shards, {key: np.array(array, copy=True) for key, array in state.to_arrays().items()}

    def progress(self, name: str, n_shards: int, state: Statistic) -> None:
        self._keep("progress", name, n_shards, state)

    def interrupted(self, name: str, n_shards: int, state: Statistic) -> None:
        self._keep("interrupted", name, n_shards, state)

    def finished(self, name: str, n_shards: int, state: Statistic) -> None:
        self._keep("finished", name, n_shards, state)


@pytest.fixture(params=["threads 1", "threads 3", "cluster"])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    if request.param == "cluster":
        client: Client = request.getfixturevalue("client")
        return Cluster(client)
    return Threads(int(request.param[-1]))


def source(**more: Any) -> Scripted:
    return Scripted(20 * N_SHARDS, 6, **more)


PARTITION = cut(source(), 10, 20)


@pytest.mark.parametrize("name", STATISTICS)
def test_from_any_group_on_the_bits_are_the_same(name: str) -> None:
    statistic = STATISTICS[name]
    wanted = bits(by_hand(statistic, source(), PARTITION))
    ledger = MemoryLedger()
    assert bits(Engine(source(), PARTITION, Threads(2), ledger=ledger).run("test", statistic)) == wanted
    ends = [8, 16, 24, 30]
    assert ledger.heard == [*(("progress", "000-test", end) for end in ends), ("finished", "000-test", 30)]
    for end in ends[:-1]:
        part = MemoryLedger()
        stopping = Counter(stop_after=20 * (end + 5))  # a few shards are folded ahead of the total
        with pytest.raises(InterruptedRunError, match="run again"):
            Engine(source(), PARTITION, Threads(1), stopping, ledger=part).run("test", statistic)
        assert part.heard[-1] == ("interrupted", "000-test", end)
        counter = Counter()
        assert bits(Engine(source(), PARTITION, Threads(2), counter, ledger=part).run("test", statistic)) == wanted
        assert counter.rows == 20 * (N_SHARDS - end)


def test_every_scheduler_goes_on(scheduler: Scheduler) -> None:
    ledger = MemoryLedger()
    with pytest.raises((InterruptedRunError, OSError)):
        Engine(Failing(600, 6, row=450), PARTITION, scheduler, ledger=ledger).run("test", Scatter(6))
    assert ledger.kept
    counter = Counter()
    result = Engine(source(), PARTITION, scheduler, counter, ledger=ledger).run("test", Scatter(6))
    assert bits(result) == bits(by_hand(Scatter(6), source(), PARTITION))
    assert counter.rows in (20 * (N_SHARDS - 8), 20 * (N_SHARDS - 16))


def test_a_finished_pass_is_not_read_again(scheduler: Scheduler) -> None:
    ledger = MemoryLedger()
    first = Engine(source(), PARTITION, scheduler, ledger=ledger)
    wanted = [bits(first.run(name, Moments(6))) for name in ("same", "same", "other")]
    assert set(ledger.kept) == {"000-same", "001-same", "002-other"}  # a name may come twice
    again = Engine(Failing(600, 6, row=0), PARTITION, scheduler, ledger=ledger)
    assert [bits(again.run(name, Moments(6))) for name in ("same", "same", "other")] == wanted
    assert again.passes == ["same", "same", "other"]


def test_rows_that_are_written_are_not_computed_again(scheduler: Scheduler) -> None:
    told: list[tuple[int, int]] = []
    found: dict[int, int] = {}
    written = Written([(0, 100), (200, 240)], lambda start, stop: told.append((start, stop)))
    counter = Counter()
    map_rows(
        "test",
        np.negative,
        lambda start, block: found.update({start: len(block)}),
        source(),
        PARTITION,
        scheduler,
        counter,
        anywhere=False,
        written=written,
    )
    assert sorted(told) == [shard for shard in PARTITION.shards() if not (shard[1] <= 100 or 200 <= shard[0] < 240)]
    assert sorted(found) == sorted(start for start, _ in (block for shard in told for block in PARTITION.blocks(*shard)))
    assert counter.rows == 600 - 140
