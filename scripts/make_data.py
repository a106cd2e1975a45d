#!/usr/bin/env python3
"""Write a table of random rows, low rank plus noise, to an HDF5, Zarr or NPY file of any size in little memory.

The rows depend on the seed, the shape and the dtype alone: not on the format, the chunks or the compression.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

MIB = 2**20
BLOCK_BYTES = 4 * MIB  # one block of rows in float64: what is drawn and written at a time
LARGEST = 16 * MIB  # of a chunk, and of the loadings: this and the next keep the process below 200 MB
MOST_FEATURES = 200_000
COMPRESSIONS = {
    ".h5": ("gzip", "lzf", "zstd", "blosc", "none"),
    ".zarr": ("zstd", "gzip", "blosc", "none"),
    ".npy": ("none",),
}  # the first is the default
NOISE = 0.1


class Rows:
    """Rows of ``z @ loadings + noise + offset``, drawn in blocks whose height depends on the width alone."""

    def __init__(self, n_features: int, rank: int, dtype: str, offset: float, seed: int) -> None:
        self.n_features, self.dtype, self.offset, self.seed = n_features, np.dtype(dtype), offset, seed
        self.work = np.dtype("float32" if self.dtype == "float32" else "float64")
        directions, _ = np.linalg.qr(np.random.default_rng([seed, 0]).standard_normal((n_features, rank)))
        deviations = 10.0 / np.arange(1, rank + 1)  # of the components: a spectrum that decays
        self.loadings = (directions * deviations).T.astype(self.work)
        self.block_rows = max(1, BLOCK_BYTES // (8 * n_features))
        self._block = lru_cache(maxsize=1)(self._draw)

    def _draw(self, block: int) -> np.ndarray:
        rng = np.random.default_rng([self.seed, 1, block])
        x = rng.standard_normal((self.block_rows, self.n_features), dtype=self.work)
        x *= NOISE
        x += rng.standard_normal((self.block_rows, len(self.loadings)), dtype=self.work) @ self.loadings
        x += self.work.type(self.offset)
        return x.astype(self.dtype, copy=False)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return rows ``start:stop``."""
        out = np.empty((stop - start, self.n_features), self.dtype)
        for block in range(start // self.block_rows, -(-stop // self.block_rows)):
            first = block * self.block_rows
            low, high = max(start, first), min(stop, first + self.block_rows)
            out[low - start : high - start] = self._block(block)[low - first : high - first]
        return out


def slabs(n_rows: int, chunk_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges of whole chunks, about one block each.

    >>> list(slabs(10, 4, BLOCK_BYTES))
    [(0, 4), (4, 8), (8, 10)]
    """
    step = chunk_rows * max(1, BLOCK_BYTES // (chunk_rows * row_bytes))
    for start in range(0, n_rows, step):
        yield start, min(start + step, n_rows)


def write_hdf5(path: Path, rows: Rows, args: argparse.Namespace, names: list[str]) -> None:
    import h5py

    options: dict[str, object] = {"chunks": (args.chunk_rows, args.features)}
    if args.compression in ("gzip", "lzf"):
        options |= {"compression": args.compression, "shuffle": True}
    elif args.compression in ("zstd", "blosc"):
        import hdf5plugin

        options |= hdf5plugin.Zstd() if args.compression == "zstd" else hdf5plugin.Blosc(cname="zstd")
    elif not args.chunked:
        options = {}  # contiguous
    with h5py.File(path, "w") as file:
        x = file.create_dataset(args.dataset, (args.rows, args.features), rows.dtype, **options)
        for start, stop in slabs(args.rows, args.chunk_rows, args.features * rows.dtype.itemsize):
            x[start:stop] = rows.read(start, stop)
        file.create_dataset("feature_names", data=names, dtype=h5py.string_dtype())


def write_zarr(path: Path, rows: Rows, args: argparse.Namespace, names: list[str]) -> None:
    import zarr
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    codecs = {"none": None, "gzip": GzipCodec(), "zstd": ZstdCodec(), "blosc": BloscCodec(cname="zstd")}
    zarr.config.set({"async.concurrency": 2, "threading.max_workers": 2})
    group = zarr.open_group(path, mode="w")
    chunks = (args.chunk_rows, args.features)
    x = group.create_array(
        args.dataset, shape=(args.rows, args.features), dtype=rows.dtype, chunks=chunks, compressors=codecs[args.compression]
    )
    for start, stop in slabs(args.rows, args.chunk_rows, args.features * rows.dtype.itemsize):
        x[start:stop] = rows.read(start, stop)
    group.create_array("feature_names", data=np.array(names, dtype=np.dtypes.StringDType()))


def write_npy(path: Path, rows: Rows, args: argparse.Namespace, names: list[str]) -> None:
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (args.rows, args.features)}
    with path.open("wb") as file:  # not a memory map, whose pages would count as this process's memory
        np.lib.format.write_array_header_2_0(file, header)
        for start, stop in slabs(args.rows, rows.block_rows, args.features * rows.dtype.itemsize):
            file.write(rows.read(start, stop).data)


WRITERS: dict[str, Callable[[Path, Rows, argparse.Namespace, list[str]], None]] = {
    ".h5": write_hdf5,
    ".zarr": write_zarr,
    ".npy": write_npy,
}


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def parse_size(text: str) -> int:
    """Return the bytes that a text such as ``4GB`` or ``512MiB`` means.

    >>> parse_size("4GB"), parse_size("1.5 KiB")
    (4000000000, 1536)
    """
    match = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 4GB or 512MiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


def positive(text: str) -> int:
    """Return a whole number above zero."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write: .h5, .hdf5, .zarr or .npy")
    parser.add_argument("--rows", type=positive, default=200_000)
    parser.add_argument("--size", type=parse_size, help="decoded size, such as 4GB, instead of --rows")
    parser.add_argument("--features", type=positive, default=64)
    parser.add_argument("--rank", type=positive, default=8, help="directions that stand out of the noise")
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float32")
    parser.add_argument("--chunk-rows", type=positive, help="rows of one chunk; unless given, chunks of about 1 MiB")
    parser.add_argument("--compression", choices=sorted(set(sum(COMPRESSIONS.values(), ()))), help="unless given, the format's usual one")
    parser.add_argument("--offset", type=float, default=0.0, help="added to every entry")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dataset", default="X", help="name of the dataset in an HDF5 or Zarr file")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    args = parser.parse_args(argv)

    args.format = {".hdf5": ".h5"}.get(args.out.suffix, args.out.suffix)
    if args.format not in WRITERS:
        parser.error(f"{args.out}: the name must end in .h5, .hdf5, .zarr or .npy")
    args.compression = args.compression or COMPRESSIONS[args.format][0]
    if args.compression not in COMPRESSIONS[args.format]:
        parser.error(f"{args.format} files take --compression {', '.join(COMPRESSIONS[args.format])}; not {args.compression}")
    row_bytes = args.features * np.dtype(args.dtype).itemsize
    if args.size is not None:
        args.rows = max(1, args.size // row_bytes)
    args.chunked = args.chunk_rows is not None
    args.chunk_rows = min(args.rows, args.chunk_rows or max(1, MIB // row_bytes))
    args.rank = min(args.rank, args.features)
    if args.features > MOST_FEATURES:
        parser.error(f"--features {args.features:,} is too many; the limit is {MOST_FEATURES:,}")
    for what, size in (("one chunk", args.chunk_rows * row_bytes), ("the loadings (rank x features)", 8 * args.rank * args.features)):
        if size > LARGEST:
            parser.error(f"{what} would be {size:,} bytes; the limit is {LARGEST:,}")
    if args.out.exists() and not args.overwrite:
        parser.error(f"{args.out} exists already; --overwrite replaces it")
    return args


def main(argv: list[str] | None = None) -> int:
    """Write the file under a temporary name, and give it its own when it is complete."""
    args = parse(argv)
    rows = Rows(args.features, args.rank, args.dtype, args.offset, args.seed)
    names = [f"feature_{j:0{len(str(args.features - 1))}d}" for j in range(args.features)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    staged = args.out.with_name(f".{args.out.stem}.{os.getpid()}{args.out.suffix}")
    try:
        WRITERS[args.format](staged, rows, args, names)
        if args.out.is_dir():  # a folder cannot be renamed onto another
            remove(args.out)
        staged.replace(args.out)
    finally:
        remove(staged)
    print(f"{args.out}: {args.rows:,} x {args.features:,} {args.dtype}, compression {args.compression}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
