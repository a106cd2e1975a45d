from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.sinks.conformance import SinkTests, table


class TestNpySink(SinkTests):
    suffix = ".npy"

    def load(self, path: Path) -> np.ndarray:
        return np.load(path, allow_pickle=False)

    def test_the_file_is_what_numpy_writes(self, path: Path) -> None:
        data = table(9)
        self.write(path, data)
        np.save(path.with_name("other.npy"), data)
        assert path.read_bytes() == path.with_name("other.npy").read_bytes()
