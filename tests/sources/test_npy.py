from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from streampca.errors import CorruptDataError, DataError
from streampca.sources import open_source
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers


def save(path: Path, data: np.ndarray) -> str:
    np.save(path, data)
    return str(path)


class TestC(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(33, 4), folder / "x.npy"
        save(path, data)
        return Case(lambda: open_source(path), data, lambda: np.save(path, data[:-1]))


class TestFortranBigEndian(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = np.asfortranarray(numbers(33, 4, ">f4")), folder / "x.npy"
        save(path, data)
        return Case(lambda: open_source(path), data, lambda: np.save(path, data[:-1]))


class TestSamplesAreColumns(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(4, 33, "i2"), folder / "x.npy"
        save(path, data)
        return Case(lambda: open_source(path, samples_axis=1), data.T, lambda: np.save(path, data[:, :-1]))


@pytest.mark.parametrize("dtype", ["?", "i1", "u8", "f2", "f8", "g", ">i4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1])
def test_dtypes_orders_axes(tmp_path: Path, dtype: str, order: str, axis: int) -> None:
    data = np.array(numbers(19, 3, dtype), order=order)  # type: ignore[call-overload]
    source = open_source(save(tmp_path / "x.npy", data), samples_axis=axis)
    assert_reads(source, data.T if axis else data)
    assert source.info.bytes_stored == (tmp_path / "x.npy").stat().st_size
    assert (source.info.read_scratch == 0) == ((order == "C") == (axis == 0))


def test_long_header_version(tmp_path: Path) -> None:
    data = numbers(5, 3)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, data, version=(2, 0))
    assert_reads(open_source(tmp_path / "x.npy"), data)


def test_truncated(tmp_path: Path) -> None:
    path = Path(save(tmp_path / "x.npy", numbers(50, 4)))
    whole = path.read_bytes()
    for size in (0, 5, 9, 60, 127):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match=rf"x\.npy \({size} bytes\) is not a \.npy file or its header is damaged"):
            open_source(path)
    path.write_bytes(whole[:500])
    with pytest.raises(CorruptDataError, match=rf"truncated: it has 500 bytes, but shape \(50, 4\) of float64 needs {len(whole)}"):
        open_source(path)


def test_shrunk_while_reading(tmp_path: Path) -> None:
    path = Path(save(tmp_path / "x.npy", numbers(5000, 4)))
    source = open_source(path)
    os.truncate(path, 4096)
    with pytest.raises(CorruptDataError, match="rows 4000 to 4999 cannot be read"):
        source.read(slice(4000, 5000))


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="pickled Python objects, which are never loaded"):
        open_source(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("data", "message"),
    [(np.ones(3), "1 dimension"), (np.ones((2, 2), complex), "complex"), (np.array([["a"]]), "strings"), (np.ones((0, 2)), "empty")],
)
def test_what_is_no_table_is_refused(tmp_path: Path, data: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_source(save(tmp_path / "x.npy", data))


def test_records_with_any_names(tmp_path: Path) -> None:
    np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.dtype([("λ", "f4")]), (2, 2), version=(3, 0))
    with pytest.raises(DataError, match="records"):
        open_source(tmp_path / "x.npy")


def test_it_has_no_datasets(tmp_path: Path) -> None:
    save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match="no dataset 'X'"):
        open_source(tmp_path / "x.npy::X")
