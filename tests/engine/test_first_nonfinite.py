"""The first bad entry is named, also when a later shard comes across one before."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

import streampca as sp
from streampca.blocks import regular
from streampca.engine import Engine
from streampca.engine.threads import Threads
from streampca.errors import NonFiniteError
from streampca.sources.base import Array, Source, SourceInfo
from streampca.statistics import Scatter


class SlowStart(Source):
    """A source whose first shard is the last to be read."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def info(self) -> SourceInfo:
        return self.source.info

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        if start < 10:
            time.sleep(0.3)
        return self.source._read(start, stop, out)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_first_entry_is_named(tmp_path: Path, value: float) -> None:
    rows = np.ones((100, 3))
    rows[7, 2] = rows[7, 1] = rows[55, 0] = value
    np.save(tmp_path / "x.npy", rows)
    engine = Engine(SlowStart(sp.open_source(tmp_path / "x.npy")), regular(100, 5, 10), Threads(2))
    with pytest.raises(NonFiniteError, match="row 7, column 1"):
        engine.run("scatter", Scatter(3))
