from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streampca.sources.base import Source

ROOT = Path(__file__).parents[2]
CHILD = """
import pickle, sys
while True:
    try:
        source = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(source.read(slice(None)), sys.stdout.buffer)
    sys.stdout.buffer.flush()
"""


@pytest.fixture(scope="session")
def read_elsewhere() -> Iterator[Callable[[Source], np.ndarray]]:
    """Give a function that reads all rows of a source in another, freshly started process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        to_child, from_child = child.stdin, child.stdout
        assert to_child is not None
        assert from_child is not None

        def read(source: Source) -> np.ndarray:
            pickle.dump(source, to_child)
            to_child.flush()
            return pickle.load(from_child)

        yield read
        to_child.close()
