from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster


@pytest.fixture
def two_processes(local_cluster: LocalCluster) -> Iterator[Client]:
    """A client of two worker processes that is not the active one of this process."""
    with Client(local_cluster, set_as_default=False) as client:
        yield client
