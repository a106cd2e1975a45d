from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.engine.tasks import block_weights
from streampca.sources import ArraySource, Weighted


class Counted(ArraySource):
    reads = 0

    def _read(self, start, stop, out):
        Counted.reads += 1
        return super()._read(start, stop, out)


@given(edges=st.lists(st.integers(0, 99), min_size=2, max_size=12, unique=True), at_once=st.integers(1, 120))
def test_each_block_gets_its_own(edges: list[int], at_once: int) -> None:
    edges.sort()
    blocks = list(pairwise(edges))
    source = Weighted(ArraySource(np.zeros((100, 2))), np.arange(100.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streampca.engine.tasks.ROWS_AT_ONCE", at_once)
        got = list(block_weights(source, blocks))
    assert len(got) == len(blocks)
    for (start, stop), weights in zip(blocks, got, strict=True):
        np.testing.assert_array_equal(weights, np.arange(start, stop))


def test_weights_of_many_blocks_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [(start, start + 5) for start in range(10, 90, 5)]
    source = Weighted(ArraySource(np.zeros((100, 2))), Counted(np.arange(100.0)[:, None]))
    for at_once, reads in [(2**20, 1), (40, 2), (42, 2), (3, 16)]:
        monkeypatch.setattr("streampca.engine.tasks.ROWS_AT_ONCE", at_once)
        Counted.reads = 0
        np.testing.assert_array_equal(np.concatenate([w for w in block_weights(source, blocks) if w is not None]), np.arange(10, 90))
        assert Counted.reads == reads


def test_without_weights_there_are_none() -> None:
    assert list(block_weights(ArraySource(np.zeros((10, 2))), [(0, 5), (5, 10)])) == [None, None]
