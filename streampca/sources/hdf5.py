"""HDF5 files (also netCDF-4, AnnData and MATLAB 7.3): the only source that imports h5py.

This module opens files, finds the dataset and inspects it; the reading itself is ``read_cells``, one small function.
Nothing outside the file's own folder is ever read through it: links, external storage and virtual sources are checked.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py

from streampca.errors import ChangedDataError, CorruptDataError, DataError, MissingExtraError, StreamPCAError
from streampca.memory import MIB, format_bytes
from streampca.sources import files
from streampca.sources.base import Array, SourceInfo, digest
from streampca.sources.choose import Candidate, no_such_dataset, only_table
from streampca.sources.handles import HandleCache
from streampca.sources.hdf5_raw import RawDataset, open_raw, raw_pipeline
from streampca.sources.names import NAME_KEYS, as_names, sibling_keys
from streampca.sources.stored import Cells, StoredSource, Table, not_applied, stored_table

CHUNK_CACHE = 1 * MIB  # HDF5's cache per open dataset; HDF5 2.0 would take 8 MiB
_MOST_LINKS = 32
_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf", 32001: "blosc"}
_FILTERS |= {32004: "lz4", 32008: "bitshuffle", 32015: "zstd", 32026: "blosc2"}


class Handle(NamedTuple):
    """An open file and its dataset, kept together: the dataset closes with the file."""

    file: h5py.File
    dataset: h5py.Dataset
    raw: RawDataset | None = None  # reads without h5py's lock, where it can
    reader: str = ""  # which of the two, and why


_HANDLES: HandleCache[Handle] = HandleCache()


@dataclass(frozen=True)
class HDF5Source(StoredSource):
    """The rows of one dataset of an HDF5 file."""

    path: str
    key: str

    def current_fingerprint(self) -> str:
        """Return the fingerprint of the file as it is now."""
        return _fingerprint(self.path, self.key, self.table)

    def missing_chunks(self) -> int:
        """Return how many chunks are not allocated (or virtual sources absent), and so read as the fill value."""
        return _missing_chunks(self._handle().dataset, self.path)

    def details(self) -> dict[str, Any]:
        """Return storage facts."""
        handle = self._handle()
        return {**_details(handle.dataset, self.table), "reader": handle.reader}

    def release(self) -> None:
        """Close the file in this process."""
        _HANDLES.drop((self.path, self.key))

    def _describe_as(self, table: Table) -> SourceInfo:
        return _describe(self._handle(), self.path, table)

    def _fill(self, cells: Cells, out: Array) -> None:
        handle = self._handle()
        try:
            read_cells(handle, *self.table.in_storage(cells, out))
        except (OSError, RuntimeError, ValueError) as error:
            raise self.undecodable(cells, error) from error

    def _handle(self) -> Handle:
        return _HANDLES.get((self.path, self.key), files.stamp(self.path), self._open)

    def _open(self) -> Handle:
        handle = _with_raw(open_dataset(self.path, self.key), self.path)
        shape = tuple(handle.dataset.shape)
        if not self.table.fits(shape, handle.dataset.dtype):
            raise ChangedDataError(
                f"{self.info.description} changed: it was {self.table.shape} {self.table.dtype} when it was opened, "
                f"now it is {shape} {handle.dataset.dtype}: run again when nothing writes to it"
            )
        return handle


def open_hdf5(path: str, dataset: str | None = None, samples_axis: int = 0) -> HDF5Source:
    """Open a dataset of an HDF5 file, the only 2-D numeric one if none is named, and pin what is there."""
    handle = open_dataset(path, dataset)
    try:
        dset = handle.dataset
        where = f"{path}::{dset.name}"
        table = stored_table(dset.shape, _dtype(dset, where), dset.chunks, samples_axis, where)
        return HDF5Source(table=table, pinned=_describe(handle, path, table), path=path, key=dset.name)
    finally:
        handle.file.close()


def read_cells(handle: Handle, cells: Cells, out: Array) -> None:
    """Fill ``out`` (native) with stored cells, past h5py's lock where that is possible."""
    whole_rows = handle.dataset.chunks is not None or cells[1:] == (slice(0, handle.dataset.shape[-1]),)
    if handle.raw is not None and whole_rows:
        handle.raw.fill(cells, out)
    else:
        handle.dataset.read_direct(out, source_sel=cells)


# ------------------------------------------------------------------------------------------ opening, finding


def open_dataset(path: str, key: str | None) -> Handle:
    """Open a file and find the dataset in it. Refuses what is not safe or cannot be decoded."""
    file = _open_file(path)
    try:
        dataset = _find(file, key, path)
        check_storage(dataset, Path(path), set())
        _check_filters(dataset, path)
    except StreamPCAError:
        file.close()
        raise
    except (KeyError, RuntimeError, OSError, ValueError) as error:
        file.close()
        raise CorruptDataError(f"{path} ({_size(path)}) is damaged: {error}") from error
    return Handle(file, dataset)


def _with_raw(handle: Handle, path: str) -> Handle:
    raw, reader = open_raw(handle.dataset, path, _filters(handle.dataset))
    return handle._replace(raw=raw, reader=reader)


def _open_file(path: str) -> h5py.File:
    status = files.stat(path)
    try:
        return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)
    except OSError as error:
        raise _unreadable(path, status.st_size, error) from error


def _unreadable(path: str, size: int, error: OSError) -> DataError:
    """Return what HDF5 says about a file that it cannot open, in words that help."""
    text = str(error)
    if isinstance(error, BlockingIOError) or "unable to lock file" in text or "already open" in text:
        return DataError(
            f"{path} is open for writing in another process, or its writer did not close it: wait until it is closed "
            f"(if the writer crashed: h5clear -s {path}; if the file system has no locks: HDF5_USE_FILE_LOCKING=FALSE)"
        )
    if isinstance(error, (PermissionError, IsADirectoryError)):
        return DataError(f"{path} cannot be read as an HDF5 file: {type(error).__name__}")
    ends = re.search(r"truncated file: eof = (\d+).*stored_eof = (\d+)", text)
    if ends:
        return CorruptDataError(f"{path} is truncated: it has {ends[1]} bytes, but its header says {ends[2]} (eof / stored_eof)")
    if "signature not found" in text:
        return CorruptDataError(f"{path} ({size} bytes) is not an HDF5 file, or its beginning is damaged")
    return CorruptDataError(f"{path} ({size} bytes) cannot be opened as an HDF5 file: {text}")


def _find(file: h5py.File, key: str | None, path: str) -> h5py.Dataset:
    if key is None and (file.attrs.get("encoding-type") == "anndata" or (path.endswith(".h5ad") and "X" in file)):
        key = "X"
    node = follow(file, key or "/", path)
    if node is None:
        raise no_such_dataset(key or "/", _candidates(file), path)
    if isinstance(node, h5py.Group):
        where = path if node.name == "/" else f"{path}::{node.name}"
        _refuse_sparse(node, where)
        node = file[only_table(_candidates(node), where)]
    if not isinstance(node, h5py.Dataset):
        raise DataError(f"{path}::{key} is a {type(node).__name__}, not a dataset")
    return node


def follow(file: h5py.File, key: str, path: str) -> Any | None:
    """Return the object at ``key``, or None. Goes link by link, so that no other file is ever opened on the way."""
    place: Any = file["/"]
    pending = [part for part in reversed(key.split("/")) if part not in ("", ".")]
    soft_links = 0
    while pending:
        name = pending.pop()
        link = place.get(name, getlink=True) if isinstance(place, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise DataError(f"{path}::{key} leads through an external link to {link.filename}::{link.path}: open that file by its own name")
        if isinstance(link, h5py.HardLink):
            place = place[name]
            continue
        soft_links += 1
        if soft_links > _MOST_LINKS:
            raise DataError(f"{path}::{key} goes through more than {_MOST_LINKS} soft links: they run in a circle")
        if link.path.startswith("/"):
            place = file["/"]
        pending += [part for part in reversed(link.path.split("/")) if part not in ("", ".")]
    return place


def _candidates(group: h5py.Group) -> list[Candidate]:
    """Return the datasets below a group, reached by hard links only."""
    found: list[Candidate] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and not name.startswith("#"):  # MATLAB keeps its own things in #refs#
            dtype = _dtype_or_none(node)
            found.append(Candidate(node.name, node.shape or (), str(dtype or "unknown type"), dtype is not None and dtype.kind in "biuf"))

    group.visititems(visit)
    return found


def _refuse_sparse(group: h5py.Group, where: str) -> None:
    encoding = group.attrs.get("encoding-type", group.attrs.get("h5sparse_format", ""))
    if str(encoding)[:3] in ("csr", "csc"):
        raise DataError(f"{where} is a sparse matrix ({encoding}), but only dense tables can be read: store it as a dense dataset")


def _dtype_or_none(dataset: h5py.Dataset) -> Any | None:
    try:
        return dataset.dtype
    except TypeError:  # no NumPy equivalent
        return None


def _dtype(dataset: h5py.Dataset, where: str) -> Any:
    dtype = _dtype_or_none(dataset)
    if dtype is None:
        raise DataError(f"{where} has an HDF5 type that NumPy does not know: choose a numeric dataset")
    return dtype


# ------------------------------------------------------------------------------------------ safety


def check_storage(dataset: h5py.Dataset, path: Path, seen: set[tuple[Path, str]]) -> None:
    """Refuse a dataset whose data lies outside the folder of its file."""
    where = f"{path}::{dataset.name}"
    if dataset.external:
        names = ", ".join(sorted({str(name) for name, *_ in dataset.external}))
        raise DataError(f"{where} keeps its data in external files ({names}), which are not read: copy it into the HDF5 file (h5repack)")
    if not dataset.is_virtual:
        return
    for source in {(each.file_name, each.dset_name) for each in dataset.virtual_sources()}:
        _check_virtual_source(path, where, source, seen)


def _check_virtual_source(path: Path, where: str, source: tuple[str, str], seen: set[tuple[Path, str]]) -> None:
    name, key = source
    folder = path.resolve().parent
    target = path.resolve() if name == "." else (folder / name).resolve()
    elsewhere = not target.exists() and Path(name).exists()  # HDF5 looks in the current folder next
    if not target.is_relative_to(folder) or elsewhere:
        raise DataError(f"{where} is a virtual dataset with a source outside its folder ({name}): move it to {folder}, or copy the data")
    if (target, key) in seen or not target.is_file() or not h5py.is_hdf5(target):
        return
    seen.add((target, key))
    with h5py.File(target, "r") as file:
        node = follow(file, key, str(target))
        if isinstance(node, h5py.Dataset):
            check_storage(node, target, seen)


def _check_filters(dataset: h5py.Dataset, path: str) -> None:
    """Load the plugins of filters that HDF5 does not have, or say which are missing."""
    missing = [code for code, *_ in _filters(dataset) if not h5py.h5z.filter_avail(code)]
    if not missing:
        return
    with contextlib.suppress(ImportError):
        importlib.import_module("hdf5plugin")
    names = [_FILTERS.get(code, str(code)) for code in missing if not h5py.h5z.filter_avail(code)]
    if names:
        raise MissingExtraError(f"{path}::{dataset.name} is compressed with {', '.join(names)}: pip install 'streampca[codecs]'")


# ------------------------------------------------------------------------------------------ facts


def _describe(handle: Handle, path: str, table: Table) -> SourceInfo:
    dataset = handle.dataset
    staging = table.staging_bytes if table.samples_axis else 0
    direct = raw_pipeline(dataset, _filters(dataset))[0] is not None and (table.chunks is not None or table.samples_axis == 0)
    return SourceInfo(
        n_rows=table.n_rows,
        n_features=table.n_features,
        dtype=table.native,
        segments=table.segments(),
        bytes_stored=int(dataset.nbytes if dataset.is_virtual else dataset.id.get_storage_size()),
        fingerprint=_fingerprint(path, dataset.name, table),
        feature_names=_feature_names(handle, path, table),
        prefetches=direct,
        read_scratch=CHUNK_CACHE + 3 * table.chunk_bytes + staging,
        chunk_features=table.chunk_features,
        description=f"{path}::{dataset.name}",
    )


def _fingerprint(path: str, key: str, table: Table) -> str:
    """Return a digest that survives moving the folder but not writing to the file."""
    status = files.stat(path)
    facts = (table.shape, table.dtype.str, table.chunks, table.samples_axis)
    return digest("hdf5", Path(path).name, key, status.st_size, status.st_mtime_ns, *facts)


def _missing_chunks(dataset: h5py.Dataset, path: str) -> int:
    if dataset.is_virtual:
        folder = Path(path).resolve().parent
        return sum(each.file_name != "." and not (folder / each.file_name).exists() for each in dataset.virtual_sources())
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0 and dataset.size > 0)
    expected: int = math.prod(-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
    return max(expected - int(dataset.id.get_num_chunks()), 0)


def _details(dataset: h5py.Dataset, table: Table) -> dict[str, Any]:
    filters = [{"name": _FILTERS.get(code, name.decode()), "options": list(options)} for code, _, options, name in _filters(dataset)]
    stored = dataset.id.get_storage_size()
    return {
        "format": "hdf5",
        "dataset": dataset.name,
        "layout": "virtual" if dataset.is_virtual else "chunked" if table.chunks else "contiguous",
        "chunks": table.chunks,
        "filters": filters,
        "checksum": _checksum({str(each["name"]) for each in filters}),
        "fill_value": dataset.fillvalue.item() if hasattr(dataset.fillvalue, "item") else dataset.fillvalue,
        "compression_ratio": round(dataset.nbytes / stored, 3) if stored else None,
        "not_applied": not_applied(dataset.attrs),
    }


def _checksum(filters: set[str]) -> str:
    if "fletcher32" in filters:
        return "fletcher32"
    return "gzip's adler32 is checked when decoding" if "gzip" in filters else "unprotected"


def _filters(dataset: h5py.Dataset) -> list[tuple[int, int, tuple[int, ...], bytes]]:
    """Return code, flags, options and name of each filter, in the order of writing."""
    plist = dataset.id.get_create_plist()
    return [plist.get_filter(index) for index in range(plist.get_nfilters())]


def _size(path: str) -> str:
    return format_bytes(files.stat(path).st_size)


# ------------------------------------------------------------------------------------------ names


def _feature_names(handle: Handle, path: str, table: Table) -> tuple[str, ...] | None:
    for values in _name_values(handle, path, table):
        names = as_names(values, table.n_features)
        if names is not None:
            return names
    return None


def _name_values(handle: Handle, path: str, table: Table) -> Iterator[Any]:
    """Yield what may be the feature names: attributes, a sibling dataset, AnnData's index, a dimension scale."""
    file, dataset = handle.file, handle.dataset
    yield from (dataset.attrs[key] for key in NAME_KEYS if key in dataset.attrs)
    folder, _, name = dataset.name.rpartition("/")
    for key in sibling_keys(name):
        yield _strings(_follow_quietly(file, f"{folder}/{key}", path), table.n_features)
    if dataset.name == "/X" or dataset.name.startswith("/layers/"):
        var = _follow_quietly(file, "/var", path)
        index = var.attrs.get("_index", "_index") if isinstance(var, h5py.Group) else None
        yield _strings(_follow_quietly(file, f"/var/{index}", path), table.n_features) if index else None
    for scale in dataset.dims[1 - table.samples_axis].values() if table.ndim == 2 else ():
        yield _strings(scale, table.n_features)


def _follow_quietly(file: h5py.File, key: str, path: str) -> Any | None:
    try:
        return follow(file, key, path)
    except DataError:  # names behind an external link are not read; the data can be
        return None


def _strings(node: Any, length: int) -> Any | None:
    """Return the strings of a plain 1-D string dataset of this length, else None."""
    if not isinstance(node, h5py.Dataset) or node.shape != (length,) or node.external or node.is_virtual:
        return None
    dtype = _dtype_or_none(node)
    return node[()] if dtype is not None and h5py.check_string_dtype(dtype) is not None else None
