from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from streampca.sinks import Sink, open_sink
from tests.sinks.conformance import SinkTests, table


def write_from_afar(sink: Sink, start: int, block: np.ndarray) -> None:
    sink.write(start, block)


class TestZarrSink(SinkTests):
    suffix = ".zarr"

    def load(self, path: Path) -> np.ndarray:
        return np.asarray(zarr.open_array(path, mode="r")[...])

    def load_attributes(self, path: Path) -> dict[str, Any]:
        return dict(zarr.open_array(path, mode="r").attrs)

    def test_chunks_and_codecs(self, path: Path) -> None:
        self.write(path, table(9))
        metadata = json.loads((path / "zarr.json").read_text())
        assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [4, 3]
        assert [codec["name"] for codec in metadata["codecs"]] == ["bytes", "zstd", "crc32c"]

    def test_zeros_are_stored_too(self, path: Path) -> None:
        self.write(path, np.zeros((9, 3)))
        assert sorted(each.name for each in (path / "c").iterdir()) == ["0", "1", "2"]

    def test_other_processes_write(self, path: Path) -> None:
        data = table(8)
        with open_sink(path, 8, 3, "f8", chunk_rows=4) as sink, ProcessPoolExecutor(1, get_context("spawn")) as pool:
            assert sink.parallel
            for start in (4, 0):
                pool.submit(write_from_afar, sink, start, data[start : start + 4]).result()
        np.testing.assert_array_equal(self.load(path), data)
