from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from streampca.errors import DataError, UsageError
from streampca.sources import ArraySource, ManySource, WithNames, open_source
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers


def write(path: Path, data: np.ndarray, names: list[str] | None = None, chunk_rows: int = 4) -> None:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("X", data=data, chunks=(min(chunk_rows, len(data)), data.shape[1]))
        if names:
            dataset.attrs["feature_names"] = names


class TestFiles(SourceTests):
    def make(self, folder: Path) -> Case:
        parts = [numbers(n, 3, seed=n) for n in (10, 1, 13, 4)]
        for i, part in enumerate(parts):
            write(folder / f"{i}.h5", part, chunk_rows=3 + i)

        def rewrite() -> None:
            write(folder / "new", parts[2] + 1)
            (folder / "new").rename(folder / "2.h5")

        return Case(lambda: open_source(folder / "*.h5"), np.concatenate(parts), rewrite)


class TestArrays(SourceTests):
    def make(self, folder: Path) -> Case:
        parts = [numbers(n, 3, "i4") for n in (5, 20)]
        return Case(lambda: open_source([ArraySource(part) for part in parts]), np.concatenate(parts))


def test_facts(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", np.ones((10, 3)), ["x", "y", "z"])
    write(tmp_path / "b.h5", np.ones((7, 3)))
    source = open_source([tmp_path / "a.h5", str(tmp_path / "b.h5")])
    assert isinstance(source, ManySource)
    assert source.info.feature_names == ("x", "y", "z")
    assert [(s.start, s.stop, s.chunk_rows) for s in source.info.segments] == [(0, 10, 4), (10, 17, 4)]
    assert "2 files" in source.info.description
    assert source.details()["files"] == 2
    assert source.info.bytes_stored == sum(part.info.bytes_stored for part in source.sources)
    assert source.sources[0].info.feature_names is source.info.feature_names  # one tuple, however many files


def test_missing_chunks_add_up(tmp_path: Path) -> None:
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("X", (10, 2), "f4", chunks=(5, 2))
    assert open_source(tmp_path / "*.h5").missing_chunks() == 4


def test_what_differs_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", np.ones((4, 3)), ["x", "y", "z"])
    write(tmp_path / "names.h5", np.ones((4, 3)), ["x", "q", "z"])
    write(tmp_path / "width.h5", np.ones((4, 2)), ["x", "y"])
    write(tmp_path / "dtype.h5", np.ones((4, 3), "f4"))
    for other, message in [
        ("names", r"feature 1 is called 'y' in .*a\.h5.*, but 'q' in .*names\.h5"),
        ("width", r"a\.h5.* has 3 features, but .*width\.h5.* has 2"),
        ("dtype", r"a\.h5.* holds float64, but .*dtype\.h5.* holds float32"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source([tmp_path / "a.h5", tmp_path / f"{other}.h5"])
    with pytest.raises(UsageError, match="empty"):
        ManySource(())


def test_names_of_parts_that_are_no_files() -> None:
    named = WithNames(ArraySource(np.ones((2, 2))), ("a", "b"))
    assert ManySource((ArraySource(np.ones((2, 2))), named)).info.feature_names == ("a", "b")


@pytest.mark.timeout(60)
def test_thousands_of_parts_are_quick() -> None:
    parts = tuple(ArraySource(np.full((3, 2), float(i))) for i in range(5000))
    source = ManySource(parts)
    for row in range(0, 15000, 100):
        assert source.read(slice(row, row + 1))[0, 0] == row // 3
    assert_reads(source, np.repeat(np.arange(5000.0), 3)[:, None] * np.ones(2))
