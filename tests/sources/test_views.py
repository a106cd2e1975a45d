from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.blocks import Segment
from streampca.errors import UsageError
from streampca.sources import ArraySource, Columns, Rows, WithNames, open_source
from streampca.sources.views import _seen_segments
from tests.sources.conformance import QUICK, Case, SourceTests, assert_reads, numbers


def write(path: Path, data: np.ndarray, chunk_rows: int = 6) -> Path:
    other = path.with_suffix(".tmp")
    with h5py.File(other, "w") as file:
        file.create_dataset("X", data=data, chunks=(chunk_rows, 2)).attrs["columns"] = [f"f{i}" for i in range(data.shape[1])]
    return other.rename(path)


class TestColumns(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(41, 5), folder / "x.h5"
        write(path, data)
        return Case(lambda: open_source(path, columns=[3, "f1", -1]), data[:, [3, 1, 4]], lambda: write(path, data + 1))


class TestRowRange(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(61, 5), folder / "x.h5"
        write(path, data)
        return Case(lambda: open_source(path, rows=slice(7, -9)), data[7:-9], lambda: write(path, data + 1))


class TestStride(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(161, 5), folder / "x.h5"
        write(path, data)
        return Case(lambda: open_source(path, rows="5:150:4"), data[5:150:4], lambda: write(path, data + 1))


class TestColumnsOfSomeRowsOfTurnedData(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(8, 80, "f4"), folder / "x.h5"
        write(path, data)
        view = data.T[3:70:9][:, 1:8:2]
        return Case(lambda: open_source(path, samples_axis=1, rows=(3, 70, 9), columns="1:8:2"), view, lambda: write(path, data + 1))


class TestNames(SourceTests):
    def make(self, folder: Path) -> Case:
        data = numbers(20, 2)
        return Case(lambda: open_source(data, feature_names=["a", "b"]), data)


@QUICK
@given(
    chunk_rows=st.integers(1, 12),
    phase=st.integers(0, 11),
    heights=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    data=st.data(),
)
def test_cuts_of_the_view_are_cuts_of_the_source(chunk_rows: int, phase: int, heights: list[int], data: st.DataObject) -> None:
    segments, at = [], 0
    for height in heights:
        segments.append(Segment(at, at + height, chunk_rows, phase % chunk_rows))
        at += height
    start = data.draw(st.integers(0, at - 1))
    wanted = range(start, data.draw(st.integers(start + 1, at)), data.draw(st.integers(1, 15)))
    cuts = {0, at}
    for segment in segments:
        cuts |= {segment.start, *range(segment.start - segment.phase, segment.stop, chunk_rows)}
    seen = list(_seen_segments(tuple(segments), wanted))
    assert [s.start for s in seen] == [0, *(s.stop for s in seen)][:-1]
    assert seen[-1].stop == len(wanted)
    for segment in seen:
        origin = segment.start - segment.phase
        for cut in range(origin + segment.chunk_rows, segment.stop, segment.chunk_rows):
            # a source cut lies after the wanted row before it, and at or before the wanted row after it
            assert any(wanted[cut - 1] < c <= wanted[cut] for c in cuts if cut > segment.start) or cut <= segment.start


@QUICK
@given(start=st.integers(0, 99), length=st.integers(1, 100), step=st.integers(1, 30))
def test_rows_of_any_stride(tmp_path: Path, start: int, length: int, step: int) -> None:
    data = numbers(100, 3)
    path = tmp_path / "x.h5"
    if not path.exists():
        write(path, data, chunk_rows=8)
    stop = min(start + length, 100)
    for source in (open_source(path), ArraySource(data)):
        assert_reads(Rows(source, start, stop, step), data[start:stop:step])


def test_far_rows_are_read_one_by_one() -> None:
    class Counted(ArraySource):
        rows_read = 0

        def _read(self, start, stop, out):
            Counted.rows_read += stop - start
            return super()._read(start, stop, out)

    data = numbers(2000, 200, ">f8")  # not native, so that reads are not free views
    assert_reads(Rows(Counted(data), 0, 2000, 500), data[::500])
    assert Counted.rows_read < 40


def test_slabs_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.sources.views.SLAB", 100)
    data = numbers(50, 6, ">f8")
    assert_reads(Columns(ArraySource(data), (5, 0)), data[:, [5, 0]])
    assert_reads(Rows(ArraySource(data), 1, 50, 3), data[1::3])
    assert Columns(ArraySource(data), (5, 0)).info.read_scratch == 2 * 48


def test_view_facts(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.h5", numbers(40, 5)))
    columns = Columns(source, (4, 2))
    assert columns.info.feature_names == ("f4", "f2")
    assert columns.info.read_scratch > source.info.read_scratch
    assert "2 of 5 columns" in columns.info.description
    assert columns.missing_chunks() == 0
    rows = Rows(source, 8, 30)
    assert rows.info.segments == (Segment(0, 22, 6, 2),)
    assert rows.details()["format"] == "hdf5"
    prints = {each.info.fingerprint for each in (source, columns, rows, Rows(source, 8, 30, 2), Columns(source, (2, 4)))}
    assert len(prints) == 5
    assert ArraySource(np.ones((5, 2))).info.in_memory
    assert Rows(ArraySource(np.ones((5, 2))), 0, 4, 2).info.in_memory
    assert WithNames(source, tuple("abcde")).info.fingerprint == source.info.fingerprint


@pytest.mark.parametrize(
    ("columns", "indices"),
    [
        ([0, 2], (0, 2)),
        ([-1, 0], (3, 0)),
        (["d", 1], (3, 1)),
        (slice(1, None), (1, 2, 3)),
        ("::2", (0, 2)),
        ("1:3", (1, 2)),
        ("b", (1,)),
        ("a, d", (0, 3)),
        ("3,b", (3, 1)),
        (np.array([2, 1]), (2, 1)),
        (np.array([True, False, False, True]), (0, 3)),
    ],
)
def test_ways_to_choose_columns(columns: Any, indices: tuple[int, ...]) -> None:
    data = numbers(6, 4)
    source = open_source(data, columns=columns, feature_names=list("abcd"))
    assert isinstance(source, Columns)
    assert source.indices == indices
    assert_reads(source, data[:, list(indices)])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["alpa"], "no column 'alpa'. Did you mean 'alpha'"),
        ([4], "no column 4: the 2 columns are numbered 0 to 1"),
        ([-3], "no column -3"),
        ([1, 1], "column 1 was selected more than once"),
        ([1, -1], "more than once"),
        ([], "no column was selected"),
        ([0.5], "not by 0.5"),
        ([True], "needs 2 entries"),
    ],
)
def test_wrong_columns(columns: list, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_source(np.ones((3, 2)), columns=columns, feature_names=["alpha", "beta"])


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UsageError, match="has no feature names"):
        open_source(np.ones((3, 2)), columns=["a"])
    with pytest.raises(UsageError, match="3 feature names were given for 2 features"):
        open_source(np.ones((3, 2)), feature_names=list("abc"))
    with pytest.raises(UsageError, match="'a' was given more than once"):
        open_source(np.ones((3, 2)), feature_names=list("aa"))
    with pytest.raises(UsageError, match="no column 7"):
        Columns(ArraySource(np.ones((3, 2))), (7,))


@pytest.mark.parametrize("rows", [slice(2, 8), (2, 8), [2, 8, 1], "2:8", " 2 : -2 ", np.array([2, 8])])
def test_ways_to_choose_rows(rows: Any) -> None:
    data = numbers(10, 2)
    assert_reads(open_source(data, rows=rows), data[2:8])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("5:5", "select nothing of the 10 rows"),
        ("::-1", "step must be at least 1, not -1"),
        ("a:b", "cannot read rows='a:b'"),
        ((1,), "cannot read rows"),
    ],
)
def test_wrong_rows(rows: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_source(np.ones((10, 2)), rows=rows)
    with pytest.raises(UsageError):
        Rows(ArraySource(np.ones((10, 2))), 0, 10, 0)
