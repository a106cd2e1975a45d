from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster


@pytest.fixture(scope="session")
def two_processes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of a cluster of two processes on this machine, which is not the default one of this process."""
    try:
        yield request.getfixturevalue("cluster_client")
    except pytest.FixtureLookupError:
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client
