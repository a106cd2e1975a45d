"""Decoders of Zarr's codecs, by name, from the same compiled libraries as those of HDF5's filters."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
from isal import isal_zlib
from numcodecs import lz4

from streampca.sources.filters import INT, POINTER, Bytes, Raw, Step, blosc_step, c_function, copy, expect, inflate_step, zstd_step

_GZIP_WINDOW = 31  # zlib's code for a gzip header and trailer, with the largest window


def codec_step(name: str, options: dict[str, Any]) -> Step | None:
    """Return how to undo a codec of Zarr version 2 or 3, or None if it is not known here."""
    makers: dict[str, Callable[[], Step | None]] = {
        "zstd": lambda: zstd_step(()),
        "blosc": lambda: blosc_step(()),
        "gzip": lambda: inflate_step("gzip", functools.partial(isal_zlib.decompressobj, wbits=_GZIP_WINDOW)),
        "zlib": lambda: inflate_step("zlib", isal_zlib.decompressobj),
        "lz4": _lz4_step,
        "crc32c": lambda: Step("crc32c", lambda raw, out: copy(_checked(raw, len(out)), out), _checked, added=4),
    }
    return makers[name]() if name in makers else None


def _lz4_step() -> Step | None:
    decompress = c_function(lz4.__file__, "LZ4_decompress_safe", INT, POINTER, POINTER, INT, INT)
    return None if decompress is None else Step("lz4", functools.partial(_unlz4, decompress))


def _unlz4(decompress: Any, raw: Raw, out: Bytes) -> None:
    """Undo numcodecs' LZ4: the size, little-endian, then one block."""
    (n_bytes,) = struct.unpack_from("<I", raw, 0)
    expect(n_bytes, len(out))
    block = np.frombuffer(raw, np.uint8)[4:]
    expect(decompress(block.ctypes.data, out.ctypes.data, len(block), len(out)), len(out))


def _checked(raw: Raw, size: int) -> memoryview:
    """Return the bytes before the checksum, which is verified."""
    expect(len(raw) - 4, size, "there are")
    data = memoryview(raw)[:size]
    (stored,) = struct.unpack_from("<I", raw, size)
    found = google_crc32c.value(bytes(data))
    if stored != found:
        raise ValueError(f"its crc32c checksum is {found:08x}, but {stored:08x} is stored")
    return data
