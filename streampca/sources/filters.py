"""Decoders of HDF5's filters, outside HDF5 and its lock: each turns the bytes of a chunk back by one step of its pipeline.

The work is done by compiled libraries that let other threads run meanwhile: isal, numcodecs, and functions of h5py's and
hdf5plugin's own libraries. None is trusted with stored sizes: those are checked first, against the bytes that are there and
against the size that the dataset declares, which bounds every output.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib
from numcodecs import blosc, lz4, zstd
from numcodecs.shuffle import Shuffle
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Raw = bytes | memoryview
Options = tuple[int, ...]

DEFLATE, SHUFFLE, FLETCHER32, LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD, BLOSC2 = 1, 2, 3, 32000, 32001, 32004, 32008, 32015, 32026
_C_INT_MAX = 2**31 - 1
POINTER, INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


@dataclass(frozen=True)
class Step:
    """One filter of a pipeline, and how to undo it."""

    name: str
    fill: Callable[[Raw, Bytes], None]  # stored bytes in, exactly the output array filled
    give: Callable[[Raw, int], Raw] | None = None  # the same for filters that have the result in a buffer of their own
    added: int | None = None  # bytes that writing adds; None: it compresses


@dataclass(frozen=True)
class Pipeline:
    """The filters of a dataset, in the order of writing."""

    steps: tuple[Step, ...]

    def decode(self, raw: Raw, filter_mask: int, out: Bytes) -> None:
        """Fill ``out``, a whole chunk, from stored bytes; bit i of the mask says that filter i was not applied."""
        steps = [step for index, step in enumerate(self.steps) if not filter_mask >> index & 1]
        sizes = _sizes(steps, len(out))
        while len(steps) > 1:
            raw = _undo(steps.pop(), raw, sizes.pop())
        (steps[0].fill if steps else copy)(raw, out)

    @property
    def names(self) -> list[str]:
        """Names of the decoders, in the order of writing."""
        return [step.name for step in self.steps]


def make_pipeline(filters: list[tuple[int, Options]], chunk_bytes: int, hdf5_library: str) -> Pipeline | None:
    """Return the pipeline that undoes filters given as (code, options), or None if they cannot all be undone here."""
    steps = [_step(code, options, hdf5_library) for code, options in filters]
    known = tuple(step for step in steps if step is not None)
    sizes = _sizes(list(known), chunk_bytes)
    guesses = [step for step, size in zip(known, sizes, strict=True) if size is None and step.added is None]
    return None if guesses or len(known) < len(steps) else Pipeline(known)


def _sizes(steps: list[Step], chunk_bytes: int) -> list[int | None]:
    """Return how many bytes undoing each step gives: known until the first compressor, from its data after it."""
    sizes: list[int | None] = []
    size: int | None = chunk_bytes
    for step in steps:
        sizes.append(size)
        size = None if size is None or step.added is None else size + step.added
    return sizes


def _undo(step: Step, raw: Raw, size: int | None) -> Raw:
    """Undo a step that is not the last to be undone."""
    expected = len(raw) - (step.added or 0) if size is None else size
    if expected < 0:
        raise ValueError(f"{len(raw)} bytes are too few")
    if step.give is not None:
        return step.give(raw, expected)
    buffer = np.empty(expected, np.uint8)
    step.fill(raw, buffer)
    return buffer.data


def _step(code: int, options: Options, hdf5_library: str) -> Step | None:
    if code in (LZF, FLETCHER32):
        return (_lzf_step if code == LZF else _fletcher32_step)(hdf5_library)
    makers = {DEFLATE: _deflate_step, SHUFFLE: _shuffle_step, BITSHUFFLE: _bitshuffle_step}
    makers |= {BLOSC: blosc_step, BLOSC2: _blosc2_step, LZ4: _lz4_step, ZSTD: zstd_step}
    return makers[code](options) if code in makers else None


def copy(raw: Raw, out: Bytes) -> None:
    """Fill ``out`` with bytes that need no decoding."""
    expect(len(raw), len(out), "it has")
    out[:] = np.frombuffer(raw, np.uint8)


def expect(n_bytes: int, expected: int, verb: str = "it decodes to") -> None:
    """Refuse a number of bytes other than the expected one."""
    if n_bytes != expected:
        raise ValueError(f"{verb} {n_bytes} bytes where {expected} are expected")


# ------------------------------------------------------------------------------------------ HDF5's own filters


def _deflate_step(options: Options) -> Step:
    return inflate_step("deflate (isal)", isal_zlib.decompressobj)


def inflate_step(name: str, make_inflater: Callable[[], Any]) -> Step:
    """Undo deflate, in whatever wrapping the inflater expects."""
    give = functools.partial(inflate, make_inflater)
    return Step(name, lambda raw, out: copy(give(raw, len(out)), out), give)


def inflate(make_inflater: Callable[[], Any], raw: Raw, size: int) -> bytes:
    """Inflate one byte more than can be right, so that the end, with its checksum, is always reached."""
    inflater = make_inflater()
    data: bytes = inflater.decompress(raw, size + 1)
    if len(data) > size:
        raise ValueError(f"it inflates to more than the {size} bytes that are expected")
    if not inflater.eof:
        raise ValueError("the compressed data ends too early")
    expect(len(data), size)
    return data


def _shuffle_step(options: Options) -> Step | None:
    """Undo by c-blosc2's vectorised function if it is installed."""
    item_bytes = options[0] if options else 0
    if not 1 <= item_bytes <= 255:
        return None
    fast = c_function(_plugin("blosc2"), "blosc2_unshuffle", ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, POINTER, POINTER)
    return Step("shuffle", functools.partial(_unshuffle, fast, item_bytes), added=0)


def _unshuffle(fast: Any | None, item_bytes: int, raw: Raw, out: Bytes) -> None:
    """Gather the bytes of each item; what is left of the last incomplete item is stored as it is."""
    expect(len(raw), len(out), "there are")
    source, whole = np.frombuffer(raw, np.uint8), len(out) // item_bytes * item_bytes
    if fast is not None and item_bytes > 1 and 0 < whole <= _C_INT_MAX:
        fast(item_bytes, whole, source.ctypes.data, out.ctypes.data)
    elif whole:
        Shuffle(item_bytes).decode(source[:whole], out[:whole])
    out[whole:] = source[whole:]


def _fletcher32_step(hdf5_library: str) -> Step | None:
    checksum = c_function(hdf5_library, "H5_checksum_fletcher32", ctypes.c_uint32, POINTER, _SIZE)
    if checksum is None:
        return None
    give = functools.partial(_verified, checksum)
    return Step("fletcher32", lambda raw, out: copy(give(raw, len(out)), out), give, added=4)


def _verified(checksum: Any, raw: Raw, size: int) -> memoryview:
    """Return the bytes before the checksum. As HDF5 does, accept it in the byte order of a fault in HDF5 1.6.2."""
    expect(len(raw) - 4, size, "there are")
    found = checksum(np.frombuffer(raw, np.uint8).ctypes.data, size) if size else 0
    (stored,) = struct.unpack_from("<I", raw, size)
    if stored not in (found, (found & 0xFF00FF) << 8 | (found >> 8 & 0xFF00FF)):
        raise ValueError(f"its fletcher32 checksum is {found:08x}, but {stored:08x} is stored")
    return memoryview(raw)[:size]


def _lzf_step(hdf5_library: str) -> Step | None:
    decompress = c_function(hdf5_library, "lzf_decompress", ctypes.c_uint, POINTER, ctypes.c_uint, POINTER, ctypes.c_uint)
    return None if decompress is None else Step("lzf", functools.partial(_unlzf, decompress))


def _unlzf(decompress: Any, raw: Raw, out: Bytes) -> None:
    expect(decompress(np.frombuffer(raw, np.uint8).ctypes.data, len(raw), out.ctypes.data, len(out)), len(out))


# ------------------------------------------------------------------------------------------ Zstandard, LZ4, bitshuffle


def zstd_step(options: Options) -> Step | None:
    """Undo Zstandard, whatever its options."""
    decompress = c_function(zstd.__file__, "ZSTD_decompress", _SIZE, POINTER, _SIZE, POINTER, _SIZE)
    return None if decompress is None else Step("zstd", functools.partial(_unzstd, decompress))


def _unzstd(decompress: Any, raw: Raw, out: Bytes) -> None:
    done = decompress(out.ctypes.data, len(out), np.frombuffer(raw, np.uint8).ctypes.data, len(raw))
    if done > len(out):  # error codes are sizes near 2**64
        raise ValueError(f"the Zstandard data is damaged, or larger than {len(out)} bytes (code {2**64 - done})")
    expect(done, len(out))


def _lz4_step(options: Options) -> Step | None:
    decompress = c_function(lz4.__file__, "LZ4_decompress_safe", INT, POINTER, POINTER, INT, INT)
    return None if decompress is None else Step("lz4", functools.partial(_unlz4, decompress))


def _unlz4(decompress: Any, raw: Raw, out: Bytes) -> None:
    """Undo HDF5's LZ4: the size, the block size, then blocks with their stored sizes, all big-endian."""
    n_bytes, block_bytes = struct.unpack_from(">QI", raw, 0)
    expect(n_bytes, len(out))
    if not 0 < block_bytes <= _C_INT_MAX:
        raise ValueError(f"blocks of {block_bytes} bytes are not possible")
    source, place = np.frombuffer(raw, np.uint8), 12
    for start in range(0, n_bytes, block_bytes):
        part = out[start : start + block_bytes]
        block = _stored_block(source, place)
        if len(block) == len(part):  # incompressible
            part[:] = block
        else:
            expect(decompress(block.ctypes.data, part.ctypes.data, len(block), len(part)), len(part), "a block decodes to")
        place += 4 + len(block)


def _stored_block(source: Bytes, place: int) -> Bytes:
    """Return the block that follows its size, a big-endian integer."""
    (stored,) = struct.unpack_from(">I", source.data, place)
    if stored > min(len(source) - place - 4, _C_INT_MAX):
        raise ValueError(f"a block of {stored} bytes goes past the end")
    return source[place + 4 : place + 4 + stored]


def _bitshuffle_step(options: Options) -> Step | None:
    """Options: two numbers of the version, bytes of an item, items of a block, compression."""
    item_bytes, block_items, compression = (*options, 0, 0, 0, 0, 0)[2:5]
    name = {0: "bshuf_bitunshuffle", 2: "bshuf_decompress_lz4", 3: "bshuf_decompress_zstd"}.get(compression)
    function = name and c_function(_plugin("bshuf"), name, ctypes.c_int64, POINTER, POINTER, _SIZE, _SIZE, _SIZE)
    if not function or item_bytes == 0:
        return None
    if compression == 0:
        return Step("bitshuffle", functools.partial(_unbitshuffle, function, item_bytes, block_items), added=0)
    return Step("bitshuffle", functools.partial(_unbitshuffle_blocks, function, item_bytes))


def _unbitshuffle(function: Any, item_bytes: int, block_items: int, raw: Raw, out: Bytes) -> None:
    expect(len(raw), len(out), "there are")
    _run_bitshuffle(function, np.frombuffer(raw, np.uint8), out, item_bytes, block_items)


def _unbitshuffle_blocks(function: Any, item_bytes: int, raw: Raw, out: Bytes) -> None:
    """Undo compressed blocks. Their sizes are walked first: the library believes them and would read past the end."""
    n_bytes, block_bytes = struct.unpack_from(">QI", raw, 0)
    expect(n_bytes, len(out))
    group = 8 * item_bytes
    if block_bytes == 0 or block_bytes % group:
        raise ValueError(f"blocks of {block_bytes} bytes are not possible")
    source, place, leftover = np.frombuffer(raw, np.uint8), 12, n_bytes % group
    for _ in range(0, n_bytes - leftover, block_bytes):
        place += 4 + len(_stored_block(source, place))
    if place + leftover > len(source):
        raise ValueError("the bitshuffled data ends too early")
    _run_bitshuffle(function, source[12:], out, item_bytes, block_bytes // item_bytes)


def _run_bitshuffle(function: Any, source: Bytes, out: Bytes, item_bytes: int, block_items: int) -> None:
    if len(out) % item_bytes:
        raise ValueError(f"items of {item_bytes} bytes do not fit a chunk of {len(out)} bytes")
    done = function(source.ctypes.data, out.ctypes.data, len(out) // item_bytes, item_bytes, block_items)
    if done < 0:
        raise ValueError(f"the bitshuffled data is damaged (code {done})")


# ------------------------------------------------------------------------------------------ Blosc


def blosc_step(options: Options) -> Step | None:
    """Use the contextual function: it has no lock, no threads of its own, and no settings that others may have changed."""
    arguments = (INT, POINTER, POINTER, _SIZE, INT)
    for library in (_plugin("blosc"), blosc.__file__):
        decompress = c_function(library, "blosc_decompress_ctx", *arguments)
        if decompress is not None:
            return Step("blosc", functools.partial(_unblosc, decompress))
    return None


def _unblosc(decompress: Any, raw: Raw, out: Bytes) -> None:
    n_bytes, _, stored = struct.unpack_from("<III", raw, 4)
    expect(n_bytes, len(out))
    if not 16 <= stored <= len(raw):
        raise ValueError(f"there are {len(raw)} of the {stored} bytes that its header tells")
    done = decompress(np.frombuffer(raw, np.uint8).ctypes.data, out.ctypes.data, len(out), 1)
    expect(done, len(out))


# ------------------------------------------------------------------------------------------ Blosc2


class _Parameters(ctypes.Structure):
    """``blosc2_dparams``, passed by value; larger than any version of it, the rest being zero."""

    _fields_ = (("n_threads", INT), ("others", POINTER * 15))


@dataclass(frozen=True)
class _Blosc2:
    """c-blosc2's decoder of one chunk, the part of a frame that holds data.

    Frames are taken apart here: the library's own reader of frames follows offsets, loads plugins, and may open files.
    """

    create: Any
    decompress: Any
    free: Any

    def fill(self, raw: Raw, out: Bytes) -> None:
        """Undo a frame that holds one chunk, plain or (b2nd) cut into rectangular blocks."""
        frame = memoryview(raw)
        (header_bytes,) = struct.unpack_from(">i", frame, _FRAME_HEADER_BYTES)
        (stored,) = struct.unpack_from(">q", frame, _FRAME_STORED)
        if bytes(frame[2:10]) != b"b2frame\0" or not 0 <= stored <= len(frame) - header_bytes or header_bytes < _FRAME_STORED + 8:
            raise ValueError("the Blosc2 frame is damaged")
        if stored == 0:
            self._fill_special(frame[header_bytes:], out)
            return
        chunk = frame[header_bytes : header_bytes + stored]
        blocks = _rectangles(frame[:header_bytes], len(out))
        if blocks is None:
            self._fill_chunk(chunk, out)
        else:
            padded = np.empty(blocks.padded_bytes, np.uint8)
            self._fill_chunk(chunk, padded)
            blocks.gather(padded, out)

    def _fill_special(self, index: memoryview, out: Bytes) -> None:
        """Fill with the value that stands in the place of the chunk's offset: zero, if HDF5's filter wrote it."""
        offset = np.empty(8, np.uint8)
        self._fill_chunk(index, offset)
        if offset[7] != _SPECIAL_ZERO:
            raise ValueError(f"the Blosc2 frame holds no data (mark {offset[7]:#x})")
        out[:] = 0

    def _fill_chunk(self, chunk: memoryview, out: Bytes) -> None:
        _check_blosc2_chunk(chunk, len(out))
        context = self.create(_Parameters(1))
        if not context:
            raise MemoryError("c-blosc2 has no memory for a context")
        try:
            done = self.decompress(context, np.frombuffer(chunk, np.uint8).ctypes.data, len(chunk), out.ctypes.data, len(out))
        finally:
            self.free(context)
        expect(done, len(out))


_FRAME_HEADER_BYTES, _FRAME_STORED = 11, 39
_SPECIAL_ZERO = 0x81
_BUILT_IN_FILTERS, _BUILT_IN_FORMATS = 4, 4
_DICTIONARY_OR_REPEATED = 0x71  # what may be set in the last byte of a chunk's header


def _blosc2_step(options: Options) -> Step | None:
    library = _plugin("blosc2")
    create = c_function(library, "blosc2_create_dctx", POINTER, _Parameters)
    decompress = c_function(library, "blosc2_decompress_ctx", INT, POINTER, POINTER, ctypes.c_int32, POINTER, ctypes.c_int32)
    free = c_function(library, "blosc2_free_ctx", None, POINTER)
    if create is None or decompress is None or free is None:
        return None
    return Step("blosc2", _Blosc2(create, decompress, free).fill)


def _check_blosc2_chunk(chunk: memoryview, expected: int) -> None:
    """Refuse a chunk that the library should not see: another size, lazy, or for a codec or filter that is a plugin."""
    if len(chunk) < 32:
        raise ValueError("the header of a Blosc2 chunk is cut off")
    flags, n_bytes, stored = chunk[2], *struct.unpack_from("<i4xi", chunk, 4)
    expect(n_bytes, expected)
    if not 32 <= stored <= len(chunk) <= _C_INT_MAX:
        raise ValueError(f"there are {len(chunk)} of the {stored} bytes that its header tells")
    plain = flags & 5 == 5 and flags >> 5 <= _BUILT_IN_FORMATS and max(chunk[16:22]) <= _BUILT_IN_FILTERS
    if not plain or chunk[30] or chunk[31] & ~_DICTIONARY_OR_REPEATED:
        raise ValueError("it is damaged, or made with a codec or filter that is not a part of Blosc2 itself")


@dataclass(frozen=True)
class _Rectangles:
    """How b2nd lays out a 2-D chunk: whole blocks one after the other, those at the edges padded."""

    chunk: tuple[int, int]
    block: tuple[int, int]
    item_bytes: int

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks along each axis."""
        return -(-self.chunk[0] // self.block[0]), -(-self.chunk[1] // self.block[1])

    @property
    def padded_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.grid[0] * self.block[0] * self.grid[1] * self.block[1] * self.item_bytes

    def gather(self, padded: Bytes, out: Bytes) -> None:
        """Put the items of all blocks in their places."""
        dtype, (high, wide) = np.dtype(f"u{self.item_bytes}"), self.block
        items, table = padded.view(dtype).reshape(*self.grid, high, wide), out.view(dtype).reshape(self.chunk)
        for i in range(self.grid[0]):
            for j in range(self.grid[1]):
                part = table[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                part[...] = items[i, j, : part.shape[0], : part.shape[1]]


def _rectangles(header: memoryview, n_bytes: int) -> _Rectangles | None:
    """Return the layout that a frame's header tells, or None if it is not b2nd."""
    place = bytes(header).find(b"\xa4b2nd\xd2")
    if place < 0:
        return None
    (content,) = struct.unpack_from(">i", header, place + 6)
    dimensions = header[content + 7]
    rows, columns, chunk_rows, chunk_columns, high, wide = struct.unpack_from(">xqxqxxixixxixi", header, content + 9)
    cells = rows * columns
    fits = dimensions == 2 and (rows, columns) == (chunk_rows, chunk_columns) and 0 < high <= rows and 0 < wide <= columns
    if not fits or n_bytes % cells:
        raise ValueError("the b2nd header is damaged, or of another chunk")
    return _Rectangles((rows, columns), (high, wide), n_bytes // cells)


# ------------------------------------------------------------------------------------------ libraries


@functools.cache
def c_function(library: str | None, name: str, result: Any, *arguments: Any) -> Any | None:
    """Return a C function that runs without Python's lock, or None if it is not there."""
    with contextlib.suppress(OSError, AttributeError):
        return ctypes.CFUNCTYPE(result, *arguments)((name, ctypes.CDLL(library))) if library else None
    return None


@functools.cache
def _plugin(name: str) -> str | None:
    """Return the path of one of hdf5plugin's libraries, or None if it is not installed."""
    spec = importlib.util.find_spec("hdf5plugin")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "plugins" / f"libh5{name}.so"
    return str(path) if path.exists() else None
