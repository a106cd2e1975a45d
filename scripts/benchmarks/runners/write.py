"""The floor of writing: scores to a new Zarr array, by as many threads as there are cores."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks import meter
from benchmarks.runners import Work
from benchmarks.task import Task

CHUNK_BYTES = 16 * 2**20  # of the rows that become one chunk of scores: as in streampca's transform


def zarr_scores(task: Task) -> Work:
    """Write normal deviates, which compress as scores do."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    data, out = task.data, task.options["out"]
    rows = min(CHUNK_BYTES // data.row_bytes, data.n_rows)
    scores = np.random.default_rng(0).standard_normal((rows, data.k), dtype=np.float32)
    shutil.rmtree(out, ignore_errors=True)

    def put(array: Any, start: int) -> None:
        stop = min(start + rows, data.n_rows)
        array[start:stop] = scores[: stop - start]

    def work() -> None:
        array = zarr.create_array(
            out, shape=(data.n_rows, data.k), chunks=(rows, data.k), dtype="f4", compressors=[ZstdCodec(level=1), Crc32cCodec()]
        )
        with ThreadPoolExecutor(meter.cores()) as pool:
            list(pool.map(lambda start: put(array, start), range(0, data.n_rows, rows)))

    return work
