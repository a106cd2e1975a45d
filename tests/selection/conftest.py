from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Many small matrices: more BLAS threads would mostly wait for each other."""
    with threadpool_limits(1):
        yield
