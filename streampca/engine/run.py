"""One pass: check that the data is what was opened, fold it on the scheduler, check again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar, cast

import numpy as np

from streampca.blocks import Partition
from streampca.engine.ledger import Ledger, Total, Written
from streampca.engine.scheduler import Compute, Scheduler, Write
from streampca.engine.tasks import Array
from streampca.errors import CorruptDataError, InterruptedRunError, NonFiniteError
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.statistics.base import Statistic, find_nonfinite

S = TypeVar("S", bound=Statistic)
_OVERTAKEN = 64  # shards; more are never under way at once in one process


@dataclass
class Engine:
    """Runs named passes of statistics over one source."""

    source: Source
    partition: Partition
    scheduler: Scheduler
    observer: Observer = field(default_factory=Observer)
    passes: list[str] = field(default_factory=list)
    ledger: Ledger | None = None

    def run(self, name: str, statistic: S) -> S:
        """Return the statistic of all rows of the source: folded, gone on with, or taken from the ledger."""
        key = f"{len(self.passes):03d}-{name}"  # a name may come twice
        n_shards = len(self.partition.shards())
        total = self._begin(key, statistic)
        if total.n_shards < n_shards:
            result = self._fold(name, statistic, total)
            if self.ledger is not None and total.n_shards:
                self.ledger.finished(key, n_shards, result)
        else:
            result = statistic.fresh() if total.state is None else total.state
        self.passes.append(name)
        return cast("S", result)

    def _begin(self, key: str, statistic: Statistic) -> Total:
        """Return the total to begin with, empty or as far as an earlier run came; it tells the ledger what is added to it."""
        if self.ledger is None:
            return Total()
        kept, total = self.ledger.resume(key, type(statistic)), Total(keep=partial(self.ledger.progress, key))
        if kept is not None and 0 < kept.n_shards <= len(self.partition.shards()):
            total.n_shards, total.state = kept.n_shards, kept.state
            self.observer.resumed(key.partition("-")[2], self.partition.shards()[kept.n_shards - 1][1])
        return total

    def _fold(self, name: str, statistic: Statistic, total: Total) -> Statistic:
        with _one_pass(name, self.source, self.observer, self.partition.shards()[total.n_shards][0]):
            try:
                return self.scheduler.fold(statistic, self.source, self.partition, self.observer, total)
            except NonFiniteError as error:
                allow_nan = statistic.allows_nan or self.source.skips_nan
                raise first_nonfinite(self.source, self.partition, error, allow_nan=allow_nan) from None
            except InterruptedRunError:
                if self.ledger is not None and total.state is not None:
                    self.ledger.interrupted(f"{len(self.passes):03d}-{name}", total.n_shards, total.state)
                raise

    def over(self, source: Source, partition: Partition) -> Engine:
        """Return an engine over another view of the data, whose passes count with this one's."""
        return Engine(source, partition, self.scheduler, self.observer, self.passes, self.ledger)

    def collect(self, name: str, compute: Compute, n_columns: int) -> Array:
        """Return what is computed of every row, ``n_columns`` numbers each, in order."""
        table = np.empty((self.source.info.n_rows, n_columns))

        def write(start: int, block: Array) -> None:
            table[start : start + len(block)] = block

        map_rows(name, compute, write, self.source, self.partition, self.scheduler, self.observer, anywhere=False)
        self.passes.append(name)
        return table


def map_rows(
    name: str,
    compute: Compute,
    write: Write,
    source: Source,
    partition: Partition,
    scheduler: Scheduler,
    observer: Observer,
    *,
    anywhere: bool,
    written: Written | None = None,
) -> None:
    """Compute something of every block and write it at its first row; ``anywhere``: any process may write; ``written``: what is there."""
    known = sum(stop - start for start, stop in written.ranges) if written else 0
    if known:
        observer.resumed(name, known)
    with _one_pass(name, source, observer, known):
        scheduler.each(compute, write, anywhere, source, partition, observer, written)


def first_nonfinite(source: Source, partition: Partition, found: NonFiniteError, *, allow_nan: bool = False) -> NonFiniteError:
    """Return the first infinite (or NaN, unless allowed) entry: shards run side by side, so one a little before may have been overtaken."""
    shards = [shard for shard in partition.shards() if shard[0] <= found.row][-_OVERTAKEN:]
    for start, stop in (block for shard in shards for block in partition.blocks(*shard)):
        rows = source.read(slice(start, min(stop, found.row)))
        place = find_nonfinite(rows, allow_nan=allow_nan)
        if place is not None:
            return NonFiniteError(float(rows[place]), *place).at(start, source.info.feature_names)
    return found


@contextmanager
def _one_pass(name: str, source: Source, observer: Observer, known: int = 0) -> Iterator[None]:
    """Begin and end a pass over the rows that are not known from an earlier run."""
    source.check_unchanged()
    rows = source.info.n_rows - known
    observer.pass_started(name, rows, rows * source.info.row_bytes)
    try:
        yield
    except CorruptDataError:
        source.check_unchanged()  # a file that is being written to may look damaged
        raise
    finally:
        source.release()  # so that the file can be written again
    source.check_unchanged()
    observer.pass_finished(name)
