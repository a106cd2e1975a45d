"""The floor of reading: every stored chunk decoded once into reused buffers, with nothing around it.

Written without streampca's readers. A *job* is a list of pieces and a function that fills a buffer from one; threads share the list.
"""

from __future__ import annotations

import ctypes
import os
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import meter
from benchmarks.dataset import BLOCK_BYTES
from benchmarks.runners import Work
from benchmarks.task import Task

Bytes = np.ndarray
Fill = Callable[[Any, Bytes, Bytes], None]  # piece, room for stored bytes, output
Decoder = Callable[[Bytes, Bytes], None]  # stored bytes, output


@dataclass(frozen=True)
class Job:
    """What has to be decoded. ``stored`` is the size of the largest piece in the file, ``decoded`` that of its output."""

    pieces: list[Any]
    fill: Fill
    stored: int
    decoded: int
    detail: str


def direct(task: Task) -> Work:
    """Decode with as many threads as there are cores."""
    return _work(task, meter.cores())


def one_thread(task: Task) -> Work:
    """Decode with one thread, which may be the faster where there is nothing to decode."""
    return _work(task, 1)


def zarrs(task: Task) -> Work:
    """Read blocks of a Zarr array through the zarrs pipeline, which has threads of its own."""
    import zarr
    import zarrs as _  # noqa: F401 - fails here if it is not installed
    from zarr.buffer.cpu import NDBuffer

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    array = zarr.open_array(task.path, mode="r")
    rows, n_rows = task.data.block_rows, task.data.n_rows
    block = np.zeros((rows, task.data.n_features), np.float32)

    def work() -> dict[str, Any]:
        for start in range(0, n_rows, rows):
            stop = min(start + rows, n_rows)
            array.get_basic_selection((slice(start, stop), slice(None)), out=NDBuffer.from_numpy_array(block[: stop - start]))
        return {"detail": "zarrs pipeline"}

    return work


def _work(task: Task, threads: int) -> Work:
    job = JOBS[task.format](task)
    rooms = [(np.zeros(job.stored, np.uint8), np.zeros(max(BLOCK_BYTES, job.decoded), np.uint8)) for _ in range(threads)]

    def work() -> dict[str, Any]:
        todo, failures = iter(job.pieces), []
        helpers = [threading.Thread(target=_fill_buffers, args=(job, todo, *room, failures)) for room in rooms]
        for helper in helpers:
            helper.start()
        for helper in helpers:
            helper.join()
        if failures:
            raise failures[0]
        return {"detail": f"{job.detail}, {threads} thread{'s' * (threads > 1)}"}

    return work


def _fill_buffers(job: Job, todo: Any, stored: Bytes, block: Bytes, failures: list[Exception]) -> None:
    """Decode pieces, one after the other, into the places of a block."""
    places = [block[start : start + job.decoded] for start in range(0, len(block) - job.decoded + 1, job.decoded)]
    try:
        for index, piece in enumerate(todo):
            job.fill(piece, stored, places[index % len(places)])
    except Exception as error:
        failures.append(error)


# ------------------------------------------------------------------------------------------ HDF5


def _hdf5_contiguous(task: Task) -> Job:
    import h5py

    with h5py.File(task.path) as file:
        offset, n_bytes = file["X"].id.get_offset(), file["X"].nbytes
    file_number = os.open(task.path, os.O_RDONLY)
    pieces = [(offset + start, min(BLOCK_BYTES, n_bytes - start)) for start in range(0, n_bytes, BLOCK_BYTES)]
    return Job(pieces, partial(_read_plain, file_number), 0, BLOCK_BYTES, "preadv")


def _read_plain(file_number: int, piece: tuple[int, int], stored: Bytes, out: Bytes) -> None:
    offset, size = piece
    _read(file_number, out[:size], offset)


def _hdf5_chunked(decoder: Callable[[], tuple[Decoder, str]], task: Task) -> Job:
    import h5py

    pieces: list[tuple[int, int]] = []
    with h5py.File(task.path) as file:
        decoded = int(np.prod(file["X"].chunks)) * file["X"].dtype.itemsize
        file["X"].id.chunk_iter(lambda info: pieces.append((info.byte_offset, info.size)))
    decode, detail = decoder()
    fill = partial(_read_chunk, os.open(task.path, os.O_RDONLY), decode)
    return Job(pieces, fill, max(size for _, size in pieces), decoded, detail)


def _read_chunk(file_number: int, decode: Decoder, piece: tuple[int, int], stored: Bytes, out: Bytes) -> None:
    offset, size = piece
    raw = stored[:size]
    _read(file_number, raw, offset)
    decode(raw, out)


def _read(file_number: int, out: Bytes, offset: int) -> None:
    done = os.preadv(file_number, [out.data], offset)
    if done != len(out):
        raise OSError(f"{done} of {len(out)} bytes were read at {offset}")


# ------------------------------------------------------------------------------------------ Zarr


def _zarr_chunks(pattern: str, decoder: Callable[[], tuple[Decoder, str]], task: Task) -> Job:
    n_chunks = -(-task.data.n_rows // task.data.chunk_rows)
    paths = [str(Path(task.path, pattern.format(index))) for index in range(n_chunks)]
    decode, detail = decoder()
    largest = max(Path(path).stat().st_size for path in paths)
    return Job(paths, partial(_read_file, decode), largest, task.data.chunk_rows * task.data.row_bytes, detail)


def _read_file(decode: Decoder, path: str, stored: Bytes, out: Bytes) -> None:
    file_number = os.open(path, os.O_RDONLY)
    try:
        size = os.readv(file_number, [stored.data])
    finally:
        os.close(file_number)
    decode(stored[:size], out)


# ------------------------------------------------------------------------------------------ decoders


def _gzip() -> tuple[Decoder, str]:
    """Return the fastest inflate and unshuffle (of four-byte items) that are installed."""
    try:
        from isal import isal_zlib
    except ImportError:
        inflater, name = zlib.decompressobj, "zlib"
    else:
        inflater, name = isal_zlib.decompressobj, "isal"  # faster than its decompress()
    unshuffle, how = _unshuffle()

    def decode(raw: Bytes, out: Bytes) -> None:
        unshuffle(np.frombuffer(inflater().decompress(raw, len(out) + 1), np.uint8), out)

    return decode, f"{name} + {how} unshuffle"


def _unshuffle() -> tuple[Decoder, str]:
    try:
        import hdf5plugin

        function = ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH, "libh5blosc2.so"))).blosc2_unshuffle
    except (ImportError, OSError, AttributeError):
        from numcodecs.shuffle import Shuffle

        return Shuffle(4).decode, "numcodecs"

    def unshuffle(source: Bytes, out: Bytes) -> None:
        places = ctypes.c_void_p(source.ctypes.data), ctypes.c_void_p(out.ctypes.data)
        function(ctypes.c_int32(4), ctypes.c_int32(len(out)), *places)

    return unshuffle, "blosc2"


def _blosc() -> tuple[Decoder, str]:
    from numcodecs import blosc

    return blosc.decompress, "numcodecs Blosc"


def _zstd() -> tuple[Decoder, str]:
    from numcodecs import zstd

    return zstd.decompress, "numcodecs zstd"


JOBS: dict[str, Callable[[Task], Job]] = {
    "hdf5-none": _hdf5_contiguous,
    "hdf5-gzip": partial(_hdf5_chunked, _gzip),
    "hdf5-blosc": partial(_hdf5_chunked, _blosc),
    "zarr3-zstd": partial(_zarr_chunks, "c/{}/0", _zstd),
    "zarr2-blosc": partial(_zarr_chunks, "{}.0", _blosc),
}
