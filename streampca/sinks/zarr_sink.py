"""Zarr v3 output: the array at the root of the store, one chunk per block of rows, zstd and a crc32c checksum.

zarr writes the metadata; the chunks are written here. Any process that sees the folder may write its own. No handle is kept or pickled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import google_crc32c
import numpy as np
import zarr
from numcodecs import zstd
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.sinks.base import Array, Layout, Sink
from streampca.staging import sync

_LEVEL = 1


@dataclass(frozen=True)
class ZarrSink(Sink):
    """Rows of a Zarr array; ``zarr.open(path)`` gives the array."""

    parallel: ClassVar[bool] = True
    resumable: ClassVar[bool] = True

    @classmethod
    def create(cls, layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Self:
        """Create the array with its attributes; ``dataset`` is not used, as the array is the store itself."""
        zarr.create_array(
            layout.path,
            shape=(layout.n_rows, layout.n_columns),
            dtype=layout.dtype,
            chunks=(layout.chunk_rows, layout.n_columns),
            filters=None,
            compressors=[ZstdCodec(level=_LEVEL), Crc32cCodec()],
            fill_value=_fill_value(layout.dtype),
            attributes=dict(attributes),
            zarr_format=3,
        )
        return cls(**vars(layout))

    @classmethod
    def reopen(cls, layout: Layout, written: list[tuple[int, int]]) -> Self:
        """Return the sink of an unfinished store; chunks that are not in the list are written again."""
        return cls(**vars(layout))

    def flush(self, rows: list[tuple[int, int]]) -> None:
        """Bring the chunks of some rows to the disk."""
        for start, stop in rows:
            for index in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
                file = self._file(index)
                sync(file)
                sync(file.parent)
        sync(self.path / "c")

    def discard(self) -> None:
        """Do nothing: no handle is open."""

    def _write(self, start: int, block: Array) -> None:
        for first in range(0, len(block), self.chunk_rows):
            self._write_chunk((start + first) // self.chunk_rows, block[first : first + self.chunk_rows])

    def _write_chunk(self, index: int, rows: Array) -> None:
        """Encode and write one chunk in this thread: zarr's event loop would have all threads wait for each other."""
        if len(rows) < self.chunk_rows:  # chunks are stored whole
            rows = np.pad(rows, ((0, self.chunk_rows - len(rows)), (0, 0)), constant_values=_fill_value(self.dtype))
        data = zstd.compress(np.ascontiguousarray(rows, self.dtype.newbyteorder("<")), _LEVEL)
        file = self._file(index)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data + struct.pack("<I", google_crc32c.value(data)))

    def _file(self, index: int) -> Path:
        return self.path / "c" / str(index) / "0"

    def _written_blocks(self) -> int:
        folder = self.path / "c"
        return sum(file.name.isdecimal() for file in folder.iterdir()) if folder.is_dir() else 0


def _fill_value(dtype: np.dtype[Any]) -> float:
    """Return NaN where there is one: a chunk that is lost later must not read as zeros."""
    return float("nan") if dtype.kind == "f" else 0
