from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from streampca.planning import layout


@pytest.fixture(scope="session")
def local_cluster() -> Iterator[LocalCluster]:
    """Two worker processes on this machine, started once; ``client`` connects to them."""
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", memory_limit="2GiB") as cluster:
        yield cluster


@pytest.fixture
def client(local_cluster: LocalCluster) -> Iterator[Client]:
    """The active client of the shared cluster."""
    with Client(local_cluster) as client:
        client.wait_for_workers(2, timeout=30)
        yield client


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make plans cut small data as large data would be: many blocks, many shards."""
    monkeypatch.setattr(layout.block_choices, "__defaults__", (8 * 1024,))
    monkeypatch.setattr(layout, "BLOCK_ROWS", 32)
    monkeypatch.setattr(layout, "SHARD_BYTES", 32 * 1024)
    monkeypatch.setattr(layout, "MIN_SHARD_BYTES", 16 * 1024)
