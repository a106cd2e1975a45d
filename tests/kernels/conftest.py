from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture(autouse=True, scope="package")
def one_blas_thread() -> Iterator[None]:
    """Small problems: more threads would wait for each other."""
    with threadpool_limits(1, user_api="blas"):
        yield
