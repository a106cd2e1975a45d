"""One pass: check that the data is what was opened, fold it on the scheduler, check again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

from streampca.blocks import Partition
from streampca.engine.scheduler import Compute, Scheduler, Write
from streampca.events import Observer
from streampca.sources.base import Source
from streampca.statistics.base import Statistic

S = TypeVar("S", bound=Statistic)


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
            result = self.scheduler.fold(statistic, self.source, self.partition, self.observer)
        self.passes.append(name)
        return cast("S", result)


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
