"""Features of rows as a source: every statistic and solver then runs on them unchanged.

The features of a block are computed in the thread that asks for it, from slabs of bounded size; none are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from streampca import buffers
from streampca.errors import DataError, NonFiniteError
from streampca.sources.base import Array, SourceInfo, digest
from streampca.sources.views import View, slab_bytes, slab_rows, slabs


class Features(Protocol):
    """A picklable map from rows to features; NaN and infinite entries raise ``NonFiniteError``."""

    @property
    def n_features_in(self) -> int:
        """Number of columns of the rows."""

    @property
    def n_features_out(self) -> int:
        """Number of features."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the features."""

    @property
    def digest(self) -> str:
        """Of all that the features depend on."""

    def transform(self, block: Array, out: Array | None = None) -> Array:
        """Return the features of a block, in ``out`` if given."""

    def workspace(self, rows: int) -> int:
        """Return the bytes that transforming so many rows needs beside the block and the features."""


@dataclass(frozen=True)
class Mapped(View):
    """The features of the rows of a source.

    A NaN or infinite entry is an error that names its row and column in the source, not in the features.
    """

    features: Features = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        width = self.source.info.n_features
        if width != self.features.n_features_in:
            raise DataError(
                f"{self.source.info.description} has {width} columns, but the features are made of {self.features.n_features_in}"
            )
        super().__post_init__()

    def _describe(self, base: SourceInfo, fingerprint: str) -> SourceInfo:
        return mapped_info(base, self.features, fingerprint)

    def _mark(self, fingerprint: str) -> str:
        return digest("mapped", fingerprint, self.features.digest)

    def _read(self, start: int, stop: int, out: Array | None) -> Array:
        info, base = self.info, self.source.info
        block: Array = np.empty((stop - start, info.n_features), info.dtype) if out is None else out
        cuts = slabs(base, start, stop)
        with _slab(base, max(b - a for a, b in cuts)) as slab:
            for a, b in cuts:
                rows = self.source.read(slice(a, b), slab)
                _transform(self.features, a, base.feature_names, rows, block[a - start : b - start])
        return block

    def lazy_rows(self, start: int, stop: int) -> Any | None:
        """Return the features as Dask computes them, if the source is a Dask array."""
        lazy = self.source.lazy_rows(start, stop)
        if lazy is None:
            return None
        info, function = self.info, partial(_transform, self.features, start, self.source.info.feature_names)
        return lazy.map_blocks(function, dtype=info.dtype, chunks=((stop - start,), (info.n_features,)), meta=np.empty((0, 0), info.dtype))


def mapped_info(base: SourceInfo, features: Features, fingerprint: str = "") -> SourceInfo:
    """Return the facts of the features of a source's rows, from their shapes alone."""
    return replace(
        base,
        n_features=features.n_features_out,
        dtype=features.dtype,
        feature_names=None,
        fingerprint=fingerprint,
        in_memory=False,
        prefetches=True,  # reading ahead would only compete for the processor, which computes here
        read_scratch=base.read_scratch + slab_bytes(base) + features.workspace(min(slab_rows(base), base.n_rows)),
        chunk_features=0,
        description=f"{features.n_features_out} features of {base.description}",
    )


def _transform(features: Features, start: int, names: tuple[str, ...] | None, rows: Array, out: Array | None = None) -> Array:
    try:
        return features.transform(rows, out)
    except NonFiniteError as error:
        raise error.at(start, names) from None


@contextmanager
def _slab(base: SourceInfo, rows: int) -> Iterator[Array | None]:
    """Lend a buffer for so many rows of the source; none if its reads are views."""
    if base.in_memory:
        yield None
        return
    n_bytes = rows * base.row_bytes
    buffer = buffers.borrow(n_bytes)
    try:
        yield buffer[:n_bytes].view(base.dtype).reshape(rows, base.n_features)
    finally:
        buffers.give_back(buffer)
