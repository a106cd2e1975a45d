"""What every sink must do: subclass ``SinkTests``, give a suffix and a way to read the result back."""

from __future__ import annotations

import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streampca.errors import OutputError, UsageError
from streampca.sinks import Sink, open_sink

NAMES = ["pc1", "pc2", "Größe"]


def table(n_rows: int, n_columns: int = 3, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(n_rows).normal(size=(n_rows, n_columns)).astype(dtype)


def write_all(sink: Sink, data: np.ndarray) -> None:
    """Write all blocks from two threads, last block first."""
    starts = range(0, len(data), sink.chunk_rows)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda start: sink.write(start, data[start : start + sink.chunk_rows]), reversed(starts)))


FULL_DISK = """
import sys
import numpy as np
from streampca import sinks, staging
from streampca.errors import OutputError

path, when = sys.argv[1:]
if when != "checked":  # as if another process filled the disk after the check
    sinks.check_free_space = lambda *a: None
if when == "writing":  # as on a file system that cannot reserve space
    staging._libc_function = lambda name: None
try:
    with sinks.open_sink(path, 4000, 100, "f8", chunk_rows=10, overwrite=True) as sink:
        for start in range(0, 4000, 10):
            sink.write(start, np.random.default_rng(0).normal(size=(10, 100)))
except OutputError as error:
    print(error)
    sys.exit(error.exit_code)
"""


class SinkTests(ABC):
    suffix: ClassVar[str]

    @abstractmethod
    def load(self, path: Path) -> np.ndarray: ...

    def load_attributes(self, path: Path) -> dict[str, Any]:
        pytest.skip("the format holds no attributes")

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / f"out{self.suffix}"

    def write(self, path: Path, data: np.ndarray, **options: Any) -> None:
        with open_sink(path, data.shape[0], data.shape[1], data.dtype, chunk_rows=4, **options) as sink:
            write_all(sink, data)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("n_rows", [1, 4, 37, 40])
    def test_blocks_in_any_order_from_two_threads_give_the_array(self, path: Path, n_rows: int, dtype: Any) -> None:
        data = table(n_rows, dtype=dtype)
        self.write(path, data)
        found = self.load(path)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, data)
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    def test_many_chunks_in_one_block(self, path: Path) -> None:
        data = table(11)
        with open_sink(path, 11, 3, "f8", chunk_rows=2) as sink:
            sink.write(6, data[6:])
            sink.write(0, data[:6])
        np.testing.assert_array_equal(self.load(path), data)

    def test_values_are_kept_bit_by_bit(self, path: Path) -> None:
        data = np.array([[0.0, -0.0], [np.nan, np.inf], [5e-324, -np.inf], [0.0, 0.0]])
        with open_sink(path, 4, 2, "f8", chunk_rows=1) as sink:
            write_all(sink, data)
        assert self.load(path).tobytes() == data.tobytes()

    def test_blocks_are_cast_and_any_memory_order_is_taken(self, path: Path) -> None:
        data = np.asfortranarray(table(8))
        with open_sink(path, 8, 3, ">f4", chunk_rows=4) as sink:
            write_all(sink, data)
        np.testing.assert_array_equal(self.load(path), data.astype("f4"))

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_an_exception_leaves_nothing(self, path: Path, error: type[BaseException]) -> None:
        deep = path.parent / "new" / "folders" / path.name
        data = table(8)
        with pytest.raises(error), open_sink(deep, 8, 3, "f8", chunk_rows=4) as sink:
            sink.write(0, data[:4])
            raise error
        assert list(path.parent.iterdir()) == []

    def test_unwritten_rows_are_an_error(self, path: Path) -> None:
        with pytest.raises(OutputError, match="only 1 of 2 blocks"), open_sink(path, 8, 3, "f8", chunk_rows=4) as sink:
            sink.write(4, table(4))
        assert list(path.parent.iterdir()) == []

    def test_an_existing_target_is_refused_and_untouched(self, path: Path) -> None:
        data = table(8)
        self.write(path, data)
        with pytest.raises(OutputError, match="overwrite") as caught:
            self.write(path, data + 1)
        assert caught.value.exit_code == 73
        np.testing.assert_array_equal(self.load(path), data)

    def test_overwrite_replaces_only_when_complete(self, path: Path) -> None:
        old, new = table(8), table(9)
        self.write(path, old)
        with pytest.raises(ValueError, match="stop"), open_sink(path, 9, 3, "f8", chunk_rows=4, overwrite=True) as sink:
            write_all(sink, new)
            np.testing.assert_array_equal(self.load(path), old)
            raise ValueError("stop")
        np.testing.assert_array_equal(self.load(path), old)
        self.write(path, new, overwrite=True)
        np.testing.assert_array_equal(self.load(path), new)
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    def test_parents_are_created(self, path: Path) -> None:
        data = table(5)
        deep = path.parent / "a" / "b" / path.name
        self.write(deep, data)
        np.testing.assert_array_equal(self.load(deep), data)

    def test_attributes(self, path: Path) -> None:
        self.write(path, table(5), feature_names=NAMES, attributes={"k": np.int64(3), "model": "m.zarr"})
        found = self.load_attributes(path)
        assert list(found["feature_names"]) == NAMES
        assert (found["k"], found["model"]) == (3, "m.zarr")

    def test_many_feature_names(self, path: Path) -> None:
        names = [f"feature number {i} with a long name" for i in range(6000)]
        with open_sink(path, 1, 6000, "f4", chunk_rows=1, feature_names=names) as sink:
            sink.write(0, np.ones((1, 6000)))
        assert list(self.load_attributes(path)["feature_names"]) == names

    @pytest.mark.parametrize(
        ("start", "shape"),
        [(2, (4, 3)), (0, (3, 3)), (8, (4, 3)), (-4, (4, 3)), (0, (4, 2)), (0, (4,))],
        ids=["unaligned", "part of a chunk", "past the end", "negative", "columns", "1-D"],
    )
    def test_wrong_blocks_are_refused(self, path: Path, start: int, shape: tuple[int, ...]) -> None:
        with pytest.raises(UsageError), open_sink(path, 9, 3, "f8", chunk_rows=4) as sink:
            sink.write(start, np.zeros(shape))

    def test_a_sink_is_a_picklable_value(self, path: Path) -> None:
        data = table(8)
        with open_sink(path, 8, 3, "f8", chunk_rows=4) as sink:
            copy = pickle.loads(pickle.dumps(sink))
            assert copy == sink
            write_all(copy if sink.parallel else sink, data)
        np.testing.assert_array_equal(self.load(path), data)

    @pytest.mark.parametrize("when", ["checked", "reserving", "writing"])
    def test_a_full_disk_is_a_clean_error(self, path: Path, when: str, small_disk: Callable[[str], list[str]]) -> None:
        """The previous output stays, nothing is left behind, and HDF5 does not crash at exit."""
        target, root = f"$0/out{self.suffix}", Path(__file__).parents[2]
        script = f"""mkdir "{target}" && touch "{target}/zarr.json" && "$1" -W error -c "$2" "{target}" {when}
            code=$?; cd "$0" && find . -mindepth 1 | sort; exit $code"""
        command = [*small_disk(script), str(path.parent), sys.executable, FULL_DISK]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
        assert (done.returncode, done.stderr) == (73, ""), done
        message, *files = done.stdout.splitlines()
        assert ("are free" if when == "checked" else "No space left on device") in message
        assert files == [f"./out{self.suffix}", f"./out{self.suffix}/zarr.json"]
