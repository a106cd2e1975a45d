"""Preloaded by workers of a cluster: they take their time over each block, to be killed in the middle of a pass."""

from __future__ import annotations

from typing import Any

from tests.cli.small_shards import read_slowly


def dask_setup(worker: Any) -> None:
    """Called by the worker that preloads this: to import it, as pytest does, changes nothing."""
    read_slowly(0.05)
