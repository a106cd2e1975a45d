"""The sink: a table on disk that takes blocks of rows in any order.

A sink is a frozen, picklable value (where the unfinished output is, and its shape). ``open_sink`` creates it under a
hidden name and moves the finished output into place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streampca.errors import OutputError, UsageError
from streampca.staging import output_error

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Where a sink is created, and its shape."""

    path: Path
    n_rows: int
    n_columns: int
    dtype: np.dtype[Any]  # native byte order
    chunk_rows: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.n_columns * self.dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of all rows."""
        return self.n_rows * self.row_bytes

    @property
    def n_chunks(self) -> int:
        """Number of chunks of rows."""
        return -(-self.n_rows // self.chunk_rows)


@dataclass(frozen=True)
class Sink(Layout, ABC):
    """Rows to be written. Subclasses give ``create``, ``_write`` and ``_written_blocks``.

    ``parallel`` says who may write: any process that sees the path, or only the one that created the sink.
    """

    parallel: ClassVar[bool] = False
    resumable: ClassVar[bool] = False  # whether another process can go on writing: then there are ``reopen`` and ``flush``

    @classmethod
    @abstractmethod
    def create(cls, layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Self:
        """Create the unfinished output, of its full size, and return its sink."""

    @classmethod
    def reopen(cls, layout: Layout, written: list[tuple[int, int]]) -> Self:
        """Return the sink of an unfinished output in which some rows are written."""
        raise NotImplementedError

    def flush(self, rows: list[tuple[int, int]]) -> None:
        """Bring written rows to the disk."""
        raise NotImplementedError

    @abstractmethod
    def discard(self) -> None:
        """Let go of an output that will not be finished. Never raises."""

    @abstractmethod
    def _write(self, start: int, block: Array) -> None:
        """Write rows of the right shape and dtype (C order)."""

    @abstractmethod
    def _written_blocks(self) -> int:
        """Return how many blocks of ``chunk_rows`` rows have been written."""

    def write(self, start: int, block: Array) -> None:
        """Write rows ``start: start + len(block)``.

        Safe from several threads for disjoint rows.

        Parameters
        ----------
        start
            The first row, a multiple of ``chunk_rows``.
        block
            Whole chunks of rows; only the last block of the table may be shorter.
        """
        self._check_block(start, block.shape)
        if block.shape[0] == 0:
            return
        try:
            self._write(start, np.asarray(block, self.dtype, order="C"))
        except OSError as error:
            raise output_error(error, self.path) from error

    def close(self) -> None:
        """Finish the output; raise if some rows were never written."""
        written = self._written_blocks()
        if written < self.n_chunks:
            raise OutputError(f"{self.path}: only {written} of {self.n_chunks} blocks of {self.chunk_rows} rows were written; run again")

    def _check_block(self, start: int, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] != self.n_columns:
            raise UsageError(f"a block of shape {shape} does not fit an output of {self.n_columns} columns")
        stop = start + shape[0]
        if not 0 <= start <= stop <= self.n_rows:
            raise UsageError(f"rows {start}:{stop} are outside an output of {self.n_rows} rows")
        if start % self.chunk_rows or (stop % self.chunk_rows and stop != self.n_rows):
            raise UsageError(f"rows {start}:{stop} are not whole chunks of {self.chunk_rows} rows, which is how this output is written")


@dataclass(frozen=True)
class LocalSink(Sink):
    """A sink that only the creating process writes; it remembers which blocks are there."""

    _blocks: set[int] = field(default_factory=set, repr=False, compare=False)

    def _note(self, start: int, block: Array) -> None:
        """Remember a block that has been written."""
        self._note_rows(start, start + block.shape[0])

    def _note_rows(self, start: int, stop: int) -> None:
        self._blocks.update(range(start // self.chunk_rows, -(-stop // self.chunk_rows)))

    def _written_blocks(self) -> int:
        return len(self._blocks)
