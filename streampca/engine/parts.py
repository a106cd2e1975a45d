"""Blocks that a cluster has already computed, seen as a source by the task that receives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streampca.blocks import Segment
from streampca.sources.base import Array, Floats, Source, SourceInfo
from streampca.sources.in_memory import without_mask
from streampca.sources.weighted import checked_weights


@dataclass(frozen=True, eq=False)
class Parts(Source):
    """Consecutive blocks in memory, with the rows that they are of the whole source."""

    parts: list[Array]
    blocks: list[tuple[int, int]]
    names: tuple[str, ...] | None
    columns: list[Array] | None = None  # the weights of each block

    @property
    def info(self) -> SourceInfo:
        """Facts, with row numbers of the whole source."""
        first, stop = self.parts[0], self.blocks[-1][1]
        dtype = np.dtype(first.dtype).newbyteorder("=")
        weighted = self.columns is not None
        return SourceInfo(stop, first.shape[1], dtype, (Segment(0, stop),), 0, "", self.names, in_memory=True, weighted=weighted)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        return _plain(self.parts[self.blocks.index((start, stop))]).astype(self.info.dtype, copy=False)

    def _weights(self, start: int, stop: int) -> Floats:
        within = [_plain(column) for (a, b), column in zip(self.blocks, self.columns or (), strict=True) if start <= a and b <= stop]
        return checked_weights(np.concatenate(within), start, "the Dask array of weights")


def _plain(part: Array) -> Array:
    """Return a computed block as a plain array: sparse and masked ones too."""
    if not isinstance(part, np.ndarray) and hasattr(part, "todense"):
        part = part.todense()
    return without_mask(part)
