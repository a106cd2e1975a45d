"""Make the tables: one stream of random blocks goes to every format that is missing and to the exact answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dataset import Dataset
from benchmarks.exact import Answer, answer_of
from benchmarks.rows import KINDS

INEXACT = ("missing", "blobs", "night", "sparse")  # kinds whose principal components nobody asks for


def blocks(data: Dataset) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows, a block at a time, each with the number of its first row."""
    start = 0
    for block in KINDS[data.kind](data):
        yield start, _keep_bits(block, data.bits)[: data.n_rows - start]
        start += len(block)


def _keep_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """Clear the last bits of each mantissa, in place."""
    bytes_of = x.view(np.uint32)
    bytes_of &= np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)
    return x


def ensure(data: Dataset, formats: tuple[str, ...]) -> None:
    """Write what is missing of the table in these formats, and its exact answer."""
    missing = [name for name in formats if not data.path(name).exists()]
    asked = data.kind not in INEXACT and not data.exact.exists()
    if not missing and not asked:
        return
    print(f"making {data.folder.name}: {', '.join(missing) or 'the exact answer'}", flush=True)
    data.folder.mkdir(parents=True, exist_ok=True)
    with answer_of(data) if asked else nullcontext() as exact:
        _write(data, missing, exact)
        if exact is not None:
            exact.save(data.exact, data.k)


def _write(data: Dataset, formats: list[str], exact: Answer | None) -> None:
    """Send the rows to the files, which get their names when they are complete, and to the exact answer."""
    staged = {name: data.path(name).with_name(f"unfinished-{data.path(name).name}") for name in formats}
    with ExitStack() as stack:
        writers = [stack.enter_context(_Writer(name, path, data)) for name, path in staged.items()]
        for start, block in blocks(data):
            for writer in writers:
                writer.write(start, block)
            if exact is not None:
                exact.add(block)
    for name, path in staged.items():
        path.replace(data.path(name))


class _Writer:
    """A table being written in one format; chunks of about 1 MiB, whole rows."""

    def __init__(self, name: str, path: Path, data: Dataset) -> None:
        _remove(path)
        self._file: Any = None
        self._array = self._zarr(name, path, data) if name.startswith("zarr") else self._hdf5(name, path, data)

    def _hdf5(self, name: str, path: Path, data: Dataset) -> Any:
        import h5py

        chunks = (data.chunk_rows, data.n_features)
        options: dict[str, Any] = {}
        if name == "hdf5-gzip":
            options = {"chunks": chunks, "compression": "gzip", "compression_opts": 4, "shuffle": True}
        elif name == "hdf5-blosc":
            import hdf5plugin

            options = {"chunks": chunks, **hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=1)}
        self._file = h5py.File(path, "w")
        return self._file.create_dataset("X", (data.n_rows, data.n_features), "f4", **options)

    def _zarr(self, name: str, path: Path, data: Dataset) -> Any:
        import zarr
        from numcodecs import Blosc
        from zarr.codecs import ZstdCodec

        version = 3 if name.startswith("zarr3") else 2
        compressor = ZstdCodec() if version == 3 else Blosc(cname="zstd", clevel=5, shuffle=Blosc.SHUFFLE)
        shape, chunks = (data.n_rows, data.n_features), (data.chunk_rows, data.n_features)
        return zarr.create_array(path, shape=shape, chunks=chunks, dtype="f4", compressors=compressor, zarr_format=version)

    def write(self, start: int, block: np.ndarray) -> None:
        self._array[start : start + len(block)] = block

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
