"""Zarr v3 output: the array at the root of the store, one chunk per block of rows, zstd and a crc32c checksum.

Any process that sees the folder may write its own chunks. No handle is kept or pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.sinks.base import Array, Layout, Sink


@dataclass(frozen=True)
class ZarrSink(Sink):
    """Rows of a Zarr array; ``zarr.open(path)`` gives the array."""

    parallel: ClassVar[bool] = True

    @classmethod
    def create(cls, layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Self:
        """Create the array with its attributes; ``dataset`` is not used, as the array is the store itself."""
        zarr.create_array(
            layout.path,
            shape=(layout.n_rows, layout.n_columns),
            dtype=layout.dtype,
            chunks=(layout.chunk_rows, layout.n_columns),
            filters=None,
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            fill_value="NaN" if layout.dtype.kind == "f" else 0,  # a chunk that is lost later must not read as zeros
            attributes=dict(attributes),
            zarr_format=3,
        )
        return cls(**vars(layout))

    def discard(self) -> None:
        """Do nothing: no handle is open."""

    def _write(self, start: int, block: Array) -> None:
        _open(self.path)[start : start + block.shape[0]] = block

    def _written_blocks(self) -> int:
        folder = self.path / "c"
        return sum(file.name.isdecimal() for file in folder.iterdir()) if folder.is_dir() else 0


@lru_cache(maxsize=4)  # the path of an unfinished output is used once and has a random name
def _open(path: Path) -> zarr.Array[Any]:
    return zarr.open_array(path, mode="r+", zarr_format=3, config={"write_empty_chunks": True})
