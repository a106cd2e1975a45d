"""NPY output: one plain file of the final size, written at computed offsets.

The format holds neither names nor attributes nor checksums; ``numpy.load(path, mmap_mode="r")`` reads it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.lib import format as npy

from streampca.sinks.base import Array, Layout, LocalSink
from streampca.staging import preallocate, sync


@dataclass(frozen=True)
class NpySink(LocalSink):
    """Rows of an NPY file."""

    resumable: ClassVar[bool] = True
    offset: int = 0  # of the first row: bytes of the header

    @classmethod
    def create(cls, layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Self:
        """Write the header and reserve the space; ``attributes`` and ``dataset`` have no place in the format."""
        header = _header(layout)
        layout.path.write_bytes(header)
        preallocate(layout.path, len(header) + layout.n_bytes)
        os.truncate(layout.path, len(header) + layout.n_bytes)
        return cls(**vars(layout), offset=len(header))

    @classmethod
    def reopen(cls, layout: Layout, written: list[tuple[int, int]]) -> Self:
        """Return the sink of an unfinished file."""
        sink = cls(**vars(layout), offset=len(_header(layout)))
        for start, stop in written:
            sink._note_rows(start, stop)
        return sink

    def flush(self, rows: list[tuple[int, int]]) -> None:
        """Bring the file to the disk."""
        sync(self.path)

    def discard(self) -> None:
        """Do nothing: no handle is open."""

    def _write(self, start: int, block: Array) -> None:
        view = block.reshape(-1).view(np.uint8).data
        position = self.offset + start * self.n_columns * self.dtype.itemsize
        descriptor = os.open(self.path, os.O_WRONLY)
        try:
            while view:
                written = os.pwrite(descriptor, view, position)
                view, position = view[written:], position + written
        finally:
            os.close(descriptor)
        self._note(start, block)


def _header(layout: Layout) -> bytes:
    stream = io.BytesIO()
    description = {"descr": npy.dtype_to_descr(layout.dtype), "fortran_order": False, "shape": (layout.n_rows, layout.n_columns)}
    npy.write_array_header_1_0(stream, description)
    return stream.getvalue()
