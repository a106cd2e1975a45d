"""Preloaded by workers of a cluster: they take their time over each block, to be killed in the middle of a pass."""

from __future__ import annotations

from tests.cli.small_shards import read_slowly

read_slowly(0.05)
