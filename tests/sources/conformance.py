"""What every source promises. A reader's test file subclasses ``SourceTests`` and says how to make one."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampca.blocks import Partition
from streampca.errors import ChangedDataError, UsageError
from streampca.sources.base import Source

QUICK = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)


@dataclass(frozen=True)
class Case:
    """A source, the rows it must give, and how to change what it reads."""

    reopen: Callable[[], Source]
    expected: np.ndarray
    rewrite: Callable[[], object] | None = None


def numbers(n_rows: int, n_features: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal((n_rows, n_features)).astype(dtype)
    return rng.integers(0, 2 if np.dtype(dtype).kind == "b" else 100, (n_rows, n_features)).astype(dtype)


def assert_reads(source: Source, expected: np.ndarray) -> None:
    """Read all of it, and an unaligned part of it, with and without ``out``."""
    n = len(expected)
    assert source.info.n_rows == n
    assert source.info.n_features == expected.shape[1]
    for rows in (slice(None), slice(n // 3, n - n // 4)):
        for out in (None, np.empty((n + 2, expected.shape[1]), source.info.dtype)):
            got = source.read(rows, out)
            assert got.dtype == source.info.dtype
            assert got.dtype.isnative
            np.testing.assert_array_equal(got, expected[rows])


class SourceTests:
    """The promises. Subclasses define ``make``."""

    def make(self, folder: Path) -> Case:
        raise NotImplementedError

    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return self.make(tmp_path)

    def test_info(self, case: Case) -> None:
        info = case.reopen().info
        assert (info.n_rows, info.n_features) == case.expected.shape
        assert info.dtype == case.expected.dtype.newbyteorder("=")
        assert info.dtype.isnative
        assert info.bytes_decoded == case.expected.nbytes
        assert info.bytes_stored >= 0
        assert info.read_scratch >= 0
        assert 0 <= info.chunk_features <= info.n_features
        assert info.description

    def test_segments_cover_all_rows_in_order(self, case: Case) -> None:
        info = case.reopen().info
        edges = [0, *(segment.stop for segment in info.segments)]
        assert [segment.start for segment in info.segments] == edges[:-1]
        assert edges[-1] == info.n_rows
        assert all(segment.chunk_rows >= 1 and 0 <= segment.phase < segment.chunk_rows for segment in info.segments)
        blocks = Partition(info.segments, 7, 7).blocks(0, info.n_rows)
        np.testing.assert_array_equal(np.concatenate([case.reopen().read(slice(*b)) for b in blocks]), case.expected)

    @QUICK
    @given(data=st.data())
    def test_any_slice_is_numpys_slice(self, case: Case, data: st.DataObject) -> None:
        source, n = case.reopen(), len(case.expected)
        edge = st.none() | st.integers(-n - 3, n + 3)
        rows = slice(data.draw(edge), data.draw(edge))
        out = np.empty((n, source.info.n_features), source.info.dtype) if data.draw(st.booleans()) else None
        got = source.read(rows, out)
        assert got.dtype == source.info.dtype
        assert got.dtype.isnative
        np.testing.assert_array_equal(got, case.expected[rows])

    def test_a_step_is_refused(self, case: Case) -> None:
        with pytest.raises(UsageError, match="step 1, not 2"):
            case.reopen().read(slice(0, 4, 2))

    def test_reading_again_changes_no_earlier_result(self, case: Case) -> None:
        source, half = case.reopen(), len(case.expected) // 2
        first, second = source.read(slice(0, half)), source.read(slice(half, None))
        np.testing.assert_array_equal(first, case.expected[:half])
        np.testing.assert_array_equal(second, case.expected[half:])

    def test_pickled(self, case: Case) -> None:
        source = case.reopen()
        source.read(slice(0, 1))  # an open handle must not travel
        copy = pickle.loads(pickle.dumps(source))
        assert copy.info == source.info
        np.testing.assert_array_equal(copy.read(slice(None)), case.expected)

    def test_in_a_new_process(self, case: Case, read_elsewhere: Callable[[Source], np.ndarray]) -> None:
        source = case.reopen()
        source.read(slice(0, 1))
        np.testing.assert_array_equal(read_elsewhere(source), case.expected)

    def test_in_a_forked_process(self, case: Case) -> None:
        source = case.reopen()
        source.read(slice(0, 1))
        pid = os.fork()
        if pid == 0:
            same = False
            try:
                same = bool(np.array_equal(source.read(slice(None)), case.expected, equal_nan=True))
            finally:
                os._exit(0 if same else 1)
        np.testing.assert_array_equal(source.read(slice(None)), case.expected)
        assert os.waitpid(pid, 0)[1] == 0

    def test_in_four_threads(self, case: Case) -> None:
        source, n = case.reopen(), len(case.expected)
        cuts = [(a, min(a + 3, n)) for a in range(n)] * 2

        def read(cut: tuple[int, int]) -> bool:
            out = np.empty((3, source.info.n_features), source.info.dtype)
            return bool(np.array_equal(source.read(slice(*cut), out), case.expected[slice(*cut)], equal_nan=True))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(read, cuts))

    def test_fingerprint_is_stable(self, case: Case) -> None:
        source = case.reopen()
        source.check_unchanged()
        assert case.reopen().info.fingerprint == source.info.fingerprint == source.current_fingerprint()

    def test_fingerprint_changes_with_the_data(self, case: Case) -> None:
        if case.rewrite is None:
            pytest.skip("the data of this source does not change")
        source = case.reopen()
        source.read(slice(0, 2))
        source.release()
        time.sleep(0.02)  # file times tick every few milliseconds
        case.rewrite()
        assert case.reopen().info.fingerprint != source.info.fingerprint
        with pytest.raises(ChangedDataError, match="changed while"):
            source.check_unchanged()

    def test_release_and_read_again(self, case: Case) -> None:
        source = case.reopen()
        for _ in range(2):
            np.testing.assert_array_equal(source.read(slice(0, 3)), case.expected[:3])
            source.release()

    def test_details_are_plain(self, case: Case) -> None:
        source = case.reopen()
        assert isinstance(dict(source.details()), dict)
        assert source.missing_chunks() == 0
