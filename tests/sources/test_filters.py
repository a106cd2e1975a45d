from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import h5py
import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs.fletcher32 import Fletcher32
from numcodecs.shuffle import Shuffle
from numcodecs.zstd import Zstd

from streampca.sources import filters
from streampca.sources.filters import make_pipeline

HDF5 = h5py.h5z.__file__
ROOT = Path(__file__).parents[2]
BOMB = 600 * 2**20
CHUNK = 4096


def decode(steps: list[tuple[int, tuple[int, ...]]], raw: bytes, size: int, mask: int = 0) -> bytes:
    pipeline = make_pipeline(steps, size, HDF5)
    assert pipeline is not None
    out = np.full(size, 77, np.uint8)
    pipeline.decode(raw, mask, out)
    return out.tobytes()


# ---------------------------------------------------------------------------------------- pipelines


@settings(deadline=None, max_examples=60)
@given(item=st.integers(1, 20), data=st.binary(min_size=1, max_size=300))
def test_any_item_size_is_unshuffled(item: int, data: bytes) -> None:
    whole = len(data) // item * item
    shuffled = bytes(Shuffle(item).encode(data[:whole])) + data[whole:] if whole else data
    assert decode([(filters.SHUFFLE, (item,))], shuffled, len(data)) == data


@pytest.mark.parametrize("item", [1, 2, 3, 8])
def test_unshuffled_without_hdf5plugin(item: int) -> None:
    data = bytes(range(251))
    out = np.zeros(len(data), np.uint8)
    whole = len(data) // item * item
    filters._unshuffle(None, item, bytes(Shuffle(item).encode(data[:whole])) + data[whole:], out)
    assert out.tobytes() == data


@settings(deadline=None, max_examples=40)
@given(data=st.binary(min_size=1, max_size=2000), mask=st.integers(0, 7))
def test_skipped_filters_change_the_sizes_of_the_others(data: bytes, mask: int) -> None:
    steps = [(filters.FLETCHER32, ()), (filters.SHUFFLE, (4,)), (filters.DEFLATE, (6,))]
    raw = data
    if not mask & 1:
        raw = bytes(Fletcher32().encode(raw))
    if not mask & 2:
        whole = len(raw) // 4 * 4
        raw = (bytes(Shuffle(4).encode(raw[:whole])) if whole else b"") + raw[whole:]
    if not mask & 4:
        raw = zlib.compress(raw)
    assert decode(steps, raw, len(data), mask) == data


def test_a_checksum_after_a_compressor_has_the_size_of_its_data() -> None:
    data = b"numbers " * 50
    steps = [(filters.DEFLATE, (6,)), (filters.SHUFFLE, (2,)), (filters.FLETCHER32, ())]
    packed = zlib.compress(data)
    packed += b"\0" * (len(packed) % 2)
    assert decode(steps, bytes(Fletcher32().encode(bytes(Shuffle(2).encode(packed)))), len(data)) == data


def test_the_checksum_of_hdf5_162_is_accepted() -> None:
    data = bytes(range(200))
    good = bytes(Fletcher32().encode(data))
    swapped = data + bytes([good[-3], good[-4], good[-1], good[-2]])
    assert decode([(filters.FLETCHER32, ())], swapped, len(data)) == data
    with pytest.raises(ValueError, match="fletcher32 checksum is"):
        decode([(filters.FLETCHER32, ())], data + good[:-5:-1], len(data))


@pytest.mark.parametrize(
    "steps",
    [
        [(4, (141, 4))],  # szip
        [(filters.DEFLATE, (6,)), (filters.ZSTD, ())],  # the size between the two is not known
        [(filters.SHUFFLE, ())],
        [(filters.SHUFFLE, (0,))],
        [(filters.BITSHUFFLE, (0, 5, 0, 0, 2))],
        [(filters.BITSHUFFLE, (0, 5, 8, 0, 9))],
        [(filters.DEFLATE, (6,)), (12345, ())],
    ],
)
def test_what_is_left_to_h5py(steps: list[tuple[int, tuple[int, ...]]]) -> None:
    assert make_pipeline(steps, 1000, HDF5) is None


@pytest.mark.parametrize("code", [filters.LZF, filters.FLETCHER32])
def test_a_function_that_is_not_there_is_left_to_h5py(code: int) -> None:
    assert make_pipeline([(code, ())], 1000, zlib.__file__ if hasattr(zlib, "__file__") else ctypes.__file__) is None


# ---------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("inner", [100, 1000])
def test_a_frame_of_another_size_is_refused(inner: int) -> None:
    """Nothing of the output may stay as it was."""
    data = bytes(inner)
    for code, raw in (
        (filters.DEFLATE, zlib.compress(data)),
        (filters.ZSTD, bytes(Zstd().encode(data))),
        (filters.BLOSC, bytes(numcodecs.blosc.compress(data, b"lz4", 5))),
        (filters.LZ4, struct.pack(">QII", inner, inner, inner) + data),
    ):
        assert decode([(code, (0,) * 5)], raw, inner) == data
        with pytest.raises(ValueError, match=r"expected|larger than"):
            decode([(code, (0,) * 5)], raw, 500)


def test_lz4_blocks_that_cannot_be() -> None:
    for block, stored in ((0, 8), (2**31, 8), (8, 2**31), (8, 2**32 - 1), (8, 9)):
        with pytest.raises(ValueError, match=r"not possible|past the end"):
            decode([(filters.LZ4, ())], struct.pack(">QII", 8, block, stored) + bytes(8), 8)


# ---------------------------------------------------------------------------------------- Blosc and threads


def test_blosc_leaves_the_settings_of_numcodecs_alone() -> None:
    before = numcodecs.blosc.use_threads, numcodecs.blosc.get_nthreads()
    data = np.arange(1000.0).tobytes()
    assert decode([(filters.BLOSC, ())], numcodecs.blosc.compress(data, b"zstd", 5), len(data)) == data
    assert (numcodecs.blosc.use_threads, numcodecs.blosc.get_nthreads()) == before


def test_blosc_in_the_main_thread_starts_no_threads() -> None:
    data = np.arange(2_000_000.0).tobytes()
    raw = numcodecs.blosc.Blosc("zstd", 1).encode(data)
    before = len(list(Path("/proc/self/task").iterdir()))
    assert decode([(filters.BLOSC, ())], raw, len(data)) == data
    assert len(list(Path("/proc/self/task").iterdir())) == before


def encoded(code: int, data: bytes) -> bytes:
    if code == filters.BLOSC:
        return bytes(numcodecs.blosc.compress(data, b"zlib", 9))
    if code == filters.ZSTD:
        return bytes(Zstd(1).encode(data))
    return bytes(Fletcher32().encode(data)) if code == filters.FLETCHER32 else zlib.compress(data, 1)


@pytest.mark.parametrize("code", [filters.DEFLATE, filters.BLOSC, filters.ZSTD, filters.FLETCHER32])
def test_other_threads_run_meanwhile(code: int) -> None:
    """With a switch interval of a minute, another thread gets on only if the decoder lets go of Python's lock."""
    data = np.random.default_rng(0).standard_normal(500_000).astype("f4").tobytes()
    raw, ticks, stop = encoded(code, data), [0], threading.Event()
    pipeline, out = make_pipeline([(code, ())], len(data), HDF5), np.empty(len(data), np.uint8)
    assert pipeline is not None
    (step,) = pipeline.steps

    def count() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(1e-4)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    try:
        sys.setswitchinterval(60)
        before = ticks[0]
        for _ in range(20):
            step.give(raw, len(data)) if step.give else step.fill(raw, out)  # without NumPy's copies, which let go of it too
        after = ticks[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert after > before


# ---------------------------------------------------------------------------------------- damage, in another process

BOMBS = f"""
import resource, struct, sys, zlib
import numcodecs.blosc, numpy as np, h5py
from numcodecs.zstd import Zstd
from streampca.sources.filters import BITSHUFFLE, BLOSC, DEFLATE, LZ4, ZSTD, make_pipeline

def deflate():
    packer, block = zlib.compressobj(9), bytes(2**20)
    return b"".join(packer.compress(block) for _ in range({BOMB} >> 20)) + packer.flush()

blosc = bytearray(numcodecs.blosc.compress(bytes({CHUNK}), b"zstd", 9))
struct.pack_into("<I", blosc, 4, {BOMB})
zstd_block = bytes(Zstd(1).encode(bytes(2**17)))
bombs = [(DEFLATE, deflate()), (ZSTD, zstd_block * ({BOMB} >> 17)), (ZSTD, bytes(Zstd(1).encode(bytes(2**24)))), (BLOSC, bytes(blosc))]
bombs += [(code, struct.pack(">QII", {BOMB}, {BOMB}, 8) + bytes(64)) for code in (LZ4, BITSHUFFLE)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for code, raw in bombs:
    out = np.empty({CHUNK}, np.uint8)
    try:
        make_pipeline([(code, (0, 5, 8, 0, 2))], {CHUNK}, h5py.h5z.__file__).decode(raw, 0, out)
    except ValueError:
        continue
    sys.exit(f"{{code}} was not refused")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""

FUZZ = """
import ctypes, mmap, sys
import h5py, numpy as np
from streampca.sources.filters import make_pipeline
from tests.sources.test_hdf5_raw import PIPELINES, stored_chunk

SPAN, PAGE = 16 * mmap.PAGESIZE, mmap.PAGESIZE
libc = ctypes.CDLL(None)

def guarded():
    area = mmap.mmap(-1, SPAN + PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if libc.mprotect(ctypes.c_void_p(address + SPAN), ctypes.c_size_t(PAGE), 0):
        sys.exit("no guard page")
    return np.frombuffer(area, np.uint8, SPAN)

SOURCE, TARGET = guarded(), guarded()

def damaged(rng, raw):
    data, near = bytearray(raw), len(raw) if rng.integers(2) else min(len(raw), 220)
    place, kind = int(rng.integers(near)), rng.integers(5)
    if kind == 0:
        data[place] ^= 1 << rng.integers(8)
    elif kind == 1:
        data[place : place + 4] = bytes([rng.choice([0, 127, 128, 255])]) * len(data[place : place + 4])
    elif kind == 2:
        del data[place:]
    elif kind == 3:
        data[place:] = rng.bytes(len(data) - place)
    else:
        for _ in range(5):
            data[rng.integers(near)] = rng.integers(256)
    return bytes(data)

rng, refused = np.random.default_rng(0), 0
tables = [rng.standard_normal((33, 21)), np.round(rng.standard_normal((33, 21)), 1), np.zeros((33, 21))]
for name in sys.argv[1:]:
    for table in tables:
        filters, mask, raw = stored_chunk(table, PIPELINES[name])
        pipeline, out = make_pipeline(filters, table.nbytes, h5py.h5z.__file__), TARGET[SPAN - table.nbytes :]
        for bad in [raw, *(damaged(rng, raw) for _ in range(150))]:
            source = SOURCE[SPAN - len(bad) :]
            source[:] = np.frombuffer(bad, np.uint8)
            try:
                pipeline.decode(source.data, mask, out)
            except Exception as error:
                refused += 1
                if isinstance(error, MemoryError):
                    sys.exit(f"{name}: {error}")
print(refused)
"""


def run(script: str, *arguments: str) -> int:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_bombs_are_refused_without_their_memory() -> None:
    assert run(BOMBS) < 30 * 1024  # KiB


def test_damaged_chunks_never_read_or_write_past_the_end() -> None:
    """Input and output end at a page that must not be touched."""
    pytest.importorskip("hdf5plugin")
    from tests.sources.test_hdf5_raw import PIPELINES

    direct: list[Any] = [name for name, pipeline in PIPELINES.items() if pipeline.direct and pipeline.filters]
    assert run(FUZZ, *direct) > 50 * len(direct)
