from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streampca.errors import OutputError, UsageError
from streampca.sinks import open_sink
from tests.sinks.conformance import SinkTests, table


class TestHdf5Sink(SinkTests):
    suffix = ".h5"

    def load(self, path: Path) -> np.ndarray:
        with h5py.File(path) as file:
            return np.asarray(file["scores"][...])

    def load_attributes(self, path: Path) -> dict[str, Any]:
        with h5py.File(path) as file:
            return dict(file["scores"].attrs)

    def test_layout(self, path: Path) -> None:
        self.write(path, table(9), dataset="results/z")
        with h5py.File(path) as file:
            assert file["results/z"].chunks == (4, 3)
            assert file["results/z"].fletcher32
            assert file["results/z"].compression is None

    def test_other_attributes_are_json_text(self, path: Path) -> None:
        self.write(path, table(4), attributes={"plan": {"passes": 2}, "sizes": [1, 2]})
        found = self.load_attributes(path)
        assert (found["plan"], found["sizes"]) == ('{"passes": 2}', "[1, 2]")

    def test_a_copy_in_another_process_does_not_write(self, path: Path) -> None:
        with pytest.raises(UsageError, match="process that created it"), open_sink(path, 4, 3, "f8", chunk_rows=4) as sink:
            pickle.loads(pickle.dumps(sink)).write(0, table(4))

    @pytest.mark.parametrize("name", ["", "a\0b"])
    def test_an_impossible_dataset_name(self, path: Path, name: str) -> None:
        with pytest.raises((OutputError, UsageError)), open_sink(path, 4, 3, "f8", chunk_rows=4, dataset=name):
            pass
        assert list(path.parent.iterdir()) == []

    def test_reserved_space_is_given_back(self, path: Path) -> None:
        self.write(path, table(9))
        assert path.stat().st_blocks * 512 < 100_000
