"""Blocks that a cluster has already computed, seen as a source by the task that receives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.blocks import Segment
from streampca.sources.base import Array, Source, SourceInfo
from streampca.sources.in_memory import without_mask


@dataclass(frozen=True, eq=False)
class Parts(Source):
    """Consecutive blocks in memory, with the rows that they are of the whole source."""

    parts: list[Array]
    blocks: list[tuple[int, int]]
    names: tuple[str, ...] | None

    @property
    def info(self) -> SourceInfo:
        """Facts, with row numbers of the whole source."""
        first, stop = self.parts[0], self.blocks[-1][1]
        dtype = np.dtype(first.dtype).newbyteorder("=")
        return SourceInfo(stop, first.shape[1], dtype, (Segment(0, stop),), 0, "", self.names, in_memory=True)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        part = self.parts[self.blocks.index((start, stop))]
        if not isinstance(part, np.ndarray) and hasattr(part, "todense"):
            part = part.todense()
        return without_mask(part).astype(self.info.dtype, copy=False)
