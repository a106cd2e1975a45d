"""HDF5 output: one chunked dataset with fletcher32 checksums, written by the process that created it.

HDF5 crashes the interpreter if it cannot write what it has cached (full disk). So the space is reserved first,
no chunk is cached, and a file that fails is closed into anonymous memory.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Self

import h5py
import numpy as np

from streampca.errors import OutputError, UsageError
from streampca.memory import MIB
from streampca.sinks.base import Array, Layout, LocalSink
from streampca.staging import output_error, preallocate

_LIBVER = ("v108", "v110")  # 1.8 lifts the limit of 64 KiB for attributes (feature names)
_INDEX_BYTES = 128  # of the file's index, per chunk, generously


@dataclass
class _Handle:
    """The open file and dataset, and the lock that all writers take.

    The dataset stays open too: to close it is to write, and a failure there could not be caught.
    """

    file: h5py.File
    dataset: h5py.Dataset
    lock: Lock = field(default_factory=Lock)


@dataclass(frozen=True)
class Hdf5Sink(LocalSink):
    """Rows of an HDF5 dataset."""

    dataset: str = "scores"  # its name in the file
    _handle: _Handle | None = field(default=None, repr=False, compare=False)

    @classmethod
    def create(cls, layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Self:
        """Create file and dataset, with the space for all rows reserved."""
        layout.path.touch()
        preallocate(layout.path, layout.n_chunks * (layout.chunk_rows * layout.row_bytes + _INDEX_BYTES) + MIB)
        file = h5py.File(layout.path, "w", libver=_LIBVER, rdcc_nbytes=0)
        try:
            created = _create_dataset(file, layout, attributes, dataset)
        except BaseException:
            _close_discarding(file)
            raise
        return cls(**vars(layout), dataset=dataset, _handle=_Handle(file, created))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without the open file, which stays in its process."""
        return {**self.__dict__, "_handle": None}

    def _write(self, start: int, block: Array) -> None:
        handle = self._open_handle()
        with handle.lock:
            handle.dataset.write_direct(block, dest_sel=np.s_[start : start + block.shape[0]])
        self._note(start, block)

    def close(self) -> None:
        """Flush and close the file; raise if that fails or some rows were never written."""
        super().close()
        handle = self._open_handle()
        with handle.lock:
            try:
                handle.file.flush()
                handle.file.close()
            except (OSError, RuntimeError, ValueError) as error:
                _close_discarding(handle.file)
                raise _failure(error, self.path) from error
        os.truncate(self.path, self.path.stat().st_size)  # gives back what was reserved beyond the end

    def discard(self) -> None:
        """Close the file without writing to it."""
        if self._handle is not None:
            with self._handle.lock:
                _close_discarding(self._handle.file)

    def _open_handle(self) -> _Handle:
        if self._handle is None:
            raise UsageError("an HDF5 output is written only by the process that created it: use a .zarr output for many processes")
        return self._handle


def _create_dataset(file: h5py.File, layout: Layout, attributes: Mapping[str, Any], name: str) -> h5py.Dataset:
    try:
        dataset = file.create_dataset(
            name,
            shape=(layout.n_rows, layout.n_columns),
            dtype=layout.dtype,
            chunks=(layout.chunk_rows, layout.n_columns),
            fletcher32=True,
            track_times=False,
        )
        for key, value in attributes.items():
            dataset.attrs[key] = _attribute(value)
        file.flush()
        return dataset
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise _failure(error, layout.path) from error


def _failure(error: Exception, path: Path) -> OutputError:
    """Return the error for the user; HDF5 reports a full disk in several ways."""
    if isinstance(error, OSError):
        return output_error(error, path)
    return OutputError(f"cannot write {path}: {error}")


def _attribute(value: Any) -> Any:
    """Return a value as HDF5 stores it: numbers, text and lists of text as such, all else as JSON text."""
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return np.array(value, dtype=h5py.string_dtype())
    return json.dumps(value)


def _close_discarding(file: h5py.File) -> None:
    """Close a file whatever happens: point its descriptor at a scratch file, where every write succeeds."""
    if not file:
        return
    with suppress(Exception):
        descriptor = file.id.get_vfd_handle()
        scratch = _scratch_descriptor()
        os.dup2(scratch, descriptor)
        os.close(scratch)
    with suppress(Exception):
        file.close()


def _scratch_descriptor() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("streampca-discard")
    with tempfile.TemporaryFile() as stream:
        return os.dup(stream.fileno())
