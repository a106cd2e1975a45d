"""Cells of a chunked table from its raw chunks: which chunks, which part of each, and where it goes.

Readers of a format only load one chunk; a chunk that lies whole in the wanted block is decoded straight into it.
"""

from __future__ import annotations

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from streampca.sources.base import Array
from streampca.sources.filters import Bytes
from streampca.sources.stored import Cells

Place = tuple[int, ...]
_MOST_BYTES = 2**30  # of one system call: they stop at 2 GiB


class ChunkError(ValueError):
    """A stored chunk cannot be decoded. The source adds the file and the rows."""


class RawChunks(ABC):
    """A stored table whose chunks are loaded one by one, in the reading thread."""

    def __init__(self, shape: tuple[int, ...], chunks: tuple[int, ...], stored: np.dtype[Any], fill_value: Any) -> None:
        self._shape, self._chunks, self._stored, self._fill_value = shape, chunks, stored, fill_value

    @abstractmethod
    def _load(self, place: Place, flat: Bytes) -> bool:
        """Fill ``flat``, the bytes of a whole chunk, or return False if the chunk is absent."""

    def fill(self, cells: Cells, out: Array) -> None:
        """Fill ``out`` (native, of the selection's shape) with stored cells."""
        for place in self._places(cells):
            self._fill_from_chunk(place, cells, out)

    def _next(self, cells: Cells) -> Cells | None:
        """Return the cells that will be wanted next: as many after these, along the axis that is not covered whole."""
        whole = [(cell.start, cell.stop) == (0, n) for cell, n in zip(cells, self._shape, strict=True)]
        if whole.count(False) != 1:
            return None
        axis = whole.index(False)
        start, stop = cells[axis].stop, min(2 * cells[axis].stop - cells[axis].start, self._shape[axis])
        return None if start >= stop else (*cells[:axis], slice(start, stop), *cells[axis + 1 :])

    def _places(self, cells: Cells) -> Iterator[Place]:
        """Return the places, in the grid of chunks, of those that hold the cells."""
        ranges = [range(cell.start // chunk, -(-cell.stop // chunk)) for cell, chunk in zip(cells, self._chunks, strict=True)]
        return itertools.product(*ranges)

    def _fill_from_chunk(self, place: Place, cells: Cells, out: Array) -> None:
        """Fill the part of ``out`` that one chunk covers."""
        starts = [p * chunk for p, chunk in zip(place, self._chunks, strict=True)]
        source, target = [], []
        for start, chunk, n, cell in zip(starts, self._chunks, self._shape, cells, strict=True):
            low, high = max(start, cell.start), min(start + chunk, n, cell.stop)
            source.append(slice(low - start, high - start))
            target.append(slice(low - cell.start, high - cell.start))
        destination = out[tuple(target)]
        direct = destination.shape == self._chunks and destination.flags.c_contiguous and self._stored.isnative
        chunk_array = destination if direct else np.empty(self._chunks, self._stored)
        if not self._load_or_refuse(place, starts, chunk_array.reshape(-1).view(np.uint8)):
            destination[...] = self._fill_value
        elif not direct:
            destination[...] = chunk_array[tuple(source)]

    def _load_or_refuse(self, place: Place, starts: list[int], flat: Bytes) -> bool:
        try:
            return self._load(place, flat)
        except MemoryError:
            raise
        except Exception as error:  # decoders differ in what they raise
            raise ChunkError(f"the chunk at ({', '.join(map(str, starts))}): {error}") from error


def read_exactly(file: int, offset: int, out: Array) -> None:
    """Fill ``out`` (C-contiguous) with the bytes of a file from ``offset`` on."""
    view = out.reshape(-1).view(np.uint8).data
    while len(view):
        done = os.preadv(file, [view[:_MOST_BYTES]], offset)
        if done == 0:
            raise ValueError(f"the file ends {len(view)} bytes too early")
        view, offset = view[done:], offset + done
