"""Runs one pass of a statistic over a source on a Dask scheduler: same shards, same order, same bits everywhere."""

from streampca.engine.ledger import Kept, Ledger, Total, Written
from streampca.engine.process import in_pass
from streampca.engine.run import Engine, map_rows
from streampca.engine.scheduler import Scheduler, choose_scheduler, connect, cpu_count, live_states

__all__ = [
    "Engine",
    "Kept",
    "Ledger",
    "Scheduler",
    "Total",
    "Written",
    "choose_scheduler",
    "connect",
    "cpu_count",
    "in_pass",
    "live_states",
    "map_rows",
]
