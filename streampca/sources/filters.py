"""Decoders of HDF5's filters, outside HDF5 and its lock: each turns the bytes of a chunk back by one step of its pipeline.

The work is done by compiled libraries that let other threads run meanwhile (isal, numcodecs, and functions of h5py's and
hdf5plugin's own libraries). Every output is bounded by the size that the dataset declares.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc, lz4, zstd
from numcodecs.fletcher32 import Fletcher32
from numcodecs.shuffle import Shuffle
from numpy.typing import NDArray

with contextlib.suppress(ImportError):  # an extra: several times faster than zlib
    from isal import isal_zlib

Bytes = NDArray[np.uint8]
Raw = bytes | memoryview
Decoder = Callable[[Raw, Bytes], None]  # stored bytes in, exactly the output array filled

DEFLATE, SHUFFLE, FLETCHER32, LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD = 1, 2, 3, 32000, 32001, 32004, 32008, 32015
_CHECKSUM_BYTES = 4
_LZ4_HEADER, _BITSHUFFLE_HEADER = 12, 12


class OversizedError(ValueError):
    """A chunk would decode to more bytes than its dataset declares."""


@dataclass(frozen=True)
class Step:
    """One filter of a pipeline: how to undo it, and how many bytes come out."""

    name: str
    decode: Decoder
    size: int


@dataclass(frozen=True)
class Pipeline:
    """The filters of a dataset, in the order of writing."""

    steps: tuple[Step, ...]

    def decode(self, raw: Raw, filter_mask: int, out: Bytes) -> None:
        """Fill ``out``, a whole chunk, from stored bytes; bit i of the mask says that filter i was not applied."""
        steps = [step for index, step in enumerate(self.steps) if not filter_mask >> index & 1]
        for position in range(len(steps) - 1, -1, -1):
            step = steps[position]
            buffer = out if position == 0 else np.empty(step.size, np.uint8)
            step.decode(raw, buffer)
            raw = buffer.data
        if not steps:
            _copy(raw, out)

    @property
    def names(self) -> list[str]:
        """Names of the decoders, in the order of writing."""
        return [step.name for step in self.steps]


def make_pipeline(filters: list[tuple[int, tuple[int, ...]]], chunk_bytes: int, lzf_library: str) -> Pipeline | None:
    """Return the pipeline that undoes filters given as (code, options), or None if one of them is not known here."""
    steps: list[Step] = []
    size = chunk_bytes
    for code, options in filters:
        made = _step(code, options, lzf_library)
        if made is None or (steps and steps[-1].name in _COMPRESSORS and code != FLETCHER32):
            return None  # the size between two compressors is not known
        name, decode = made
        steps.append(Step(name, decode, size))
        size += _CHECKSUM_BYTES if code == FLETCHER32 else 0
    return Pipeline(tuple(steps))


_COMPRESSORS = ("deflate", "deflate (isal)", "lzf", "blosc", "lz4", "bitshuffle", "zstd")


def _step(code: int, options: tuple[int, ...], lzf_library: str) -> tuple[str, Decoder] | None:
    if code == DEFLATE:
        return ("deflate (isal)", _inflate_isal) if "isal_zlib" in globals() else ("deflate", _inflate_zlib)
    if code == SHUFFLE:
        return "shuffle", functools.partial(_unshuffle, options[0] if options else 1)
    if code == BITSHUFFLE:
        known = len(options) >= 5 and options[4] in (0, 2, 3) and _plugin("bshuf") is not None
        return ("bitshuffle", functools.partial(_unbitshuffle, options[2], options[3], options[4])) if known else None
    if code == LZF:
        return "lzf", functools.partial(_unlzf, lzf_library)
    plain = {FLETCHER32: ("fletcher32", _verify_fletcher32), BLOSC: ("blosc", _unblosc), LZ4: ("lz4", _unlz4), ZSTD: ("zstd", _unzstd)}
    return plain.get(code)


def _copy(raw: Raw, out: Bytes) -> None:
    if len(raw) != len(out):
        raise ValueError(f"{len(raw)} bytes where the chunk has {len(out)}")
    out[:] = np.frombuffer(raw, np.uint8)


def _inflate_isal(raw: Raw, out: Bytes) -> None:
    _inflate(isal_zlib.decompressobj(), raw, out)


def _inflate_zlib(raw: Raw, out: Bytes) -> None:
    _inflate(zlib.decompressobj(), raw, out)


def _inflate(inflater: Any, raw: Raw, out: Bytes) -> None:
    """Inflate one byte more than can be right, so that the end, with its checksum, is always reached."""
    data = inflater.decompress(raw, len(out) + 1)
    if len(data) > len(out):
        raise OversizedError(f"it inflates to more than the {len(out)} bytes of a chunk")
    if not inflater.eof:
        raise ValueError("the compressed data ends too early")
    _copy(data, out)


def _unshuffle(item_bytes: int, raw: Raw, out: Bytes) -> None:
    """Gather the bytes of each item; what is left of the last incomplete item is stored as it is."""
    if len(raw) != len(out):
        raise ValueError(f"{len(raw)} shuffled bytes where {len(out)} are expected")
    whole = len(out) // item_bytes * item_bytes
    source = np.frombuffer(raw, np.uint8)
    library = _plugin("blosc2")
    if library is not None and item_bytes > 1:
        library.blosc2_unshuffle(ctypes.c_int32(item_bytes), ctypes.c_int32(whole), _pointer(source), _pointer(out))
    else:
        Shuffle(item_bytes).decode(source[:whole], out[:whole])
    out[whole:] = source[whole:]


def _verify_fletcher32(raw: Raw, out: Bytes) -> None:
    data = Fletcher32().decode(raw)  # raises if the sum is wrong
    _copy(bytes(data) if isinstance(data, bytes) else np.asarray(data).data, out)


def _unlzf(library: str, raw: Raw, out: Bytes) -> None:
    source = np.frombuffer(raw, np.uint8)
    done = _library(library).lzf_decompress(_pointer(source), ctypes.c_uint(len(source)), _pointer(out), ctypes.c_uint(len(out)))
    if done != len(out):
        raise ValueError("the LZF data is damaged")


def _unblosc(raw: Raw, out: Bytes) -> None:
    if len(raw) < 16:
        raise ValueError("the Blosc header is cut off")
    n_bytes, _, c_bytes = struct.unpack_from("<III", raw, 4)
    _check_declared(n_bytes, out)
    if c_bytes > len(raw):
        raise ValueError(f"the Blosc data has {len(raw)} of {c_bytes} bytes")
    blosc.decompress(raw, out)


def _unzstd(raw: Raw, out: Bytes) -> None:
    zstd.decompress(raw, out)


def _unlz4(raw: Raw, out: Bytes) -> None:
    """Undo HDF5's LZ4: the size, the block size, then blocks with their stored sizes, all big-endian."""
    n_bytes, block_bytes = struct.unpack_from(">QI", raw, 0)
    _check_declared(n_bytes, out)
    view, place = memoryview(raw), _LZ4_HEADER
    for start in range(0, n_bytes, max(block_bytes, 1)):
        part = out[start : min(start + block_bytes, n_bytes)]
        (stored,) = struct.unpack_from(">I", raw, place)
        block = view[place + 4 : place + 4 + stored]
        if stored == len(part):
            _copy(bytes(block), part)
        else:
            lz4.decompress(struct.pack("<I", len(part)) + bytes(block), part)
        place += 4 + stored


def _unbitshuffle(item_bytes: int, block_items: int, compression: int, raw: Raw, out: Bytes) -> None:
    """Undo bitshuffle, with the LZ4 (2) or Zstandard (3) compression of its blocks, or none (0)."""
    library, source, items = _plugin("bshuf"), np.frombuffer(raw, np.uint8), len(out) // max(item_bytes, 1)
    if library is None or items * item_bytes != len(out):
        raise ValueError("the bitshuffle options do not fit the chunk")
    if compression == 0:
        if len(source) != len(out):
            raise ValueError("the bitshuffled data has the wrong size")
        done = _bitshuffle_function(library, "bshuf_bitunshuffle")(_pointer(source), _pointer(out), items, item_bytes, block_items)
    else:
        n_bytes, block_bytes = struct.unpack_from(">QI", raw, 0)
        _check_declared(n_bytes, out)
        _check_bitshuffle_blocks(raw, len(out), block_bytes, item_bytes)
        function = _bitshuffle_function(library, {2: "bshuf_decompress_lz4", 3: "bshuf_decompress_zstd"}[compression])
        done = function(_pointer(source[_BITSHUFFLE_HEADER:]), _pointer(out), items, item_bytes, block_bytes // item_bytes)
    if done < 0:
        raise ValueError(f"the bitshuffled data is damaged (code {done})")


def _check_bitshuffle_blocks(raw: Raw, n_bytes: int, block_bytes: int, item_bytes: int) -> None:
    """Walk the stored block sizes first: the library believes them and would read past the end."""
    if block_bytes < 8 * item_bytes or block_bytes % (8 * item_bytes):
        raise ValueError(f"blocks of {block_bytes} bytes are not possible")
    leftover = n_bytes % (8 * item_bytes)
    place = _BITSHUFFLE_HEADER
    for _ in range(-(-(n_bytes - leftover) // block_bytes)):
        (stored,) = struct.unpack_from(">I", raw, place)
        place += 4 + stored
    if place + leftover > len(raw):
        raise ValueError("the bitshuffled data ends too early")


def _check_declared(n_bytes: int, out: Bytes) -> None:
    if n_bytes > len(out):
        raise OversizedError(f"it says that it decodes to {n_bytes} bytes, but a chunk has {len(out)}")
    if n_bytes < len(out):
        raise ValueError(f"it says that it decodes to {n_bytes} bytes, but a chunk has {len(out)}")


def _pointer(array: Bytes) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _bitshuffle_function(library: ctypes.CDLL, name: str) -> Any:
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
    return prototype((name, library))


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


@functools.cache
def _plugin(name: str) -> ctypes.CDLL | None:
    """Return one of hdf5plugin's libraries, or None if it is not installed."""
    spec = importlib.util.find_spec("hdf5plugin")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "plugins" / f"libh5{name}.so"
    with contextlib.suppress(OSError):
        return ctypes.CDLL(str(path)) if path.exists() else None
    return None
