"""One pass: check that the data is what was opened, fold it on the scheduler, check again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from streampca.blocks import Partition
from streampca.engine.scheduler import Compute, Scheduler, Write
from streampca.engine.tasks import Array
from streampca.errors import NonFiniteError
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

    def run(self, name: str, statistic: S) -> S:
        """Return the statistic of all rows of the source."""
        with _one_pass(name, self.source, self.observer):
            try:
                result = self.scheduler.fold(statistic, self.source, self.partition, self.observer)
            except NonFiniteError as error:
                raise first_nonfinite(self.source, self.partition, error) from None
        self.passes.append(name)
        return cast("S", result)

    def over(self, source: Source, partition: Partition) -> Engine:
        """Return an engine over another view of the data, whose passes count with this one's."""
        return Engine(source, partition, self.scheduler, self.observer, self.passes)

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
) -> None:
    """Compute something of every block and write it at its first row; ``anywhere``: any process may write."""
    with _one_pass(name, source, observer):
        scheduler.each(compute, write, anywhere, source, partition, observer)


def first_nonfinite(source: Source, partition: Partition, found: NonFiniteError) -> NonFiniteError:
    """Return the first NaN or infinite entry: shards run side by side, so one a little before may have been overtaken."""
    shards = [shard for shard in partition.shards() if shard[0] <= found.row][-_OVERTAKEN:]
    for start, stop in (block for shard in shards for block in partition.blocks(*shard)):
        rows = source.read(slice(start, min(stop, found.row)))
        place = find_nonfinite(rows)
        if place is not None:
            return NonFiniteError(float(rows[place]), *place).at(start, source.info.feature_names)
    return found


@contextmanager
def _one_pass(name: str, source: Source, observer: Observer) -> Iterator[None]:
    source.check_unchanged()
    observer.pass_started(name, source.info.n_rows, source.info.bytes_decoded)
    try:
        yield
    finally:
        source.release()  # so that the file can be written again
    source.check_unchanged()
    observer.pass_finished(name)
