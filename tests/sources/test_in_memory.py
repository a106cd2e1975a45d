from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streampca.errors import DataError
from streampca.sources import ArraySource, open_source
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers


class TestArray(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(29, 4)
        return Case(lambda: ArraySource(data), data)


class TestBigEndian(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(29, 4, ">i4")
        return Case(lambda: ArraySource(data), data)


def test_blocks_are_views_that_cannot_be_written() -> None:
    data = numbers(10, 3)
    source = ArraySource(data)
    block = source.read(slice(2, 5))
    assert source.info.in_memory
    assert source.info.read_scratch == 0
    assert np.shares_memory(block, data)
    with pytest.raises(ValueError, match="read-only"):
        block[0, 0] = 1
    data[0, 0] = 1  # the user's own array stays writable
    assert not ArraySource(data.astype(">f8")).info.in_memory


def test_fingerprint_follows_contents() -> None:
    data = numbers(10, 3)
    prints = {ArraySource(each).info.fingerprint for each in (data, data + 1, data[:9], data.astype("f4"), data[:, :2])}
    assert len(prints) == 5
    assert ArraySource(np.asfortranarray(data)).info.fingerprint == ArraySource(data).info.fingerprint


def test_masked_entries_become_nan() -> None:
    data = np.ma.masked_greater(np.array([[1.0, 5.0]]), 4)
    assert_reads(ArraySource(data), np.array([[1.0, np.nan]]))
    assert_reads(ArraySource(np.ma.masked_array([[1, 2]])), np.array([[1, 2]]))
    with pytest.raises(DataError, match="masked entries"):
        ArraySource(np.ma.masked_greater(np.array([[1, 5]]), 4))


@pytest.mark.parametrize("data", [np.ones(3), np.ones((1, 2, 3)), np.ones((0, 2)), np.array([["a"]]), np.ones((1, 1), complex)])
def test_what_is_no_table_is_refused(data: np.ndarray) -> None:
    with pytest.raises(DataError):
        open_source(data)
