"""Sources: where rows come from. ``open_source`` opens anything there is a reader for, ``open_array`` as a Dask array.

A new reader is one module here and one line in ``REGISTRY``. Readers are imported when the first file of
their kind is opened, so that importing this package stays cheap.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from streampca.errors import DataError, SourceNotFoundError, UsageError
from streampca.sources import files
from streampca.sources.base import Source, SourceInfo, two_dimensional
from streampca.sources.in_memory import ArraySource
from streampca.sources.labelled import is_labelled, rows_and_names
from streampca.sources.many import ManySource
from streampca.sources.selection import ColumnsLike, RowsLike, column_indices, row_slice
from streampca.sources.stored import StoredSource
from streampca.sources.views import Columns, Rows, WithNames
from streampca.sources.weighted import Weighted

__all__ = [
    "REGISTRY",
    "ArraySource",
    "Columns",
    "ManySource",
    "Reader",
    "Rows",
    "Source",
    "SourceInfo",
    "Weighted",
    "WithNames",
    "is_stored",
    "open_array",
    "open_source",
]

Opener = Callable[[str, str | None, int], Source]
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


@dataclass(frozen=True)
class Reader:
    """A file format: how its files are called, how they begin, and who opens them."""

    name: str
    suffixes: tuple[str, ...]
    opener: Opener
    magic: bytes = b""
    markers: tuple[str, ...] = ()  # a folder with one of these files is of this format


def _hdf5(path: str, dataset: str | None, samples_axis: int) -> Source:
    from streampca.sources.hdf5 import open_hdf5

    return open_hdf5(path, dataset, samples_axis)


def _npy(path: str, dataset: str | None, samples_axis: int) -> Source:
    from streampca.sources.npy import open_npy

    return open_npy(path, dataset, samples_axis)


def _zarr(uri: str, dataset: str | None, samples_axis: int) -> Source:
    from streampca.sources.zarr_store import open_zarr

    return open_zarr(uri, dataset, samples_axis)


REGISTRY = (
    Reader("HDF5", (".h5", ".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".h5ad", ".mat"), _hdf5, magic=b"\x89HDF\r\n\x1a\n"),
    Reader("NumPy", (".npy",), _npy, magic=b"\x93NUMPY"),
    Reader("Zarr", (".zarr", ".zip"), _zarr, markers=("zarr.json", ".zarray", ".zgroup")),
)


def open_source(
    data: Any,
    dataset: str | None = None,
    samples_axis: int = 0,
    columns: ColumnsLike | None = None,
    rows: RowsLike | None = None,
    feature_names: Sequence[str] | None = None,
    weights: Any = None,
) -> Source:
    """Open a table of samples x features, wherever it is, without reading its rows.

    Parameters
    ----------
    data
        A path, a glob (``"runs/*.h5"``), a list of paths, a URL of a Zarr store, each with ``::name`` for the dataset
        if wanted; a NumPy or Dask array; a DataArray of xarray; or a source.
    dataset : str, optional
        The dataset in the file. Not needed if there is one 2-D numeric dataset only.
    samples_axis : {0, 1}
        1 if the stored array is features x samples.
    columns
        Columns to keep: numbers, names, a slice, or text such as ``"0:100"``.
    rows
        Rows to keep: a slice, ``(start, stop)``, ``(start, stop, step)`` or text such as ``"::10"``.
    feature_names
        Names of all features (before ``columns`` are chosen), instead of those in the file.
    weights
        How often each row counts: an array, a path with its dataset (``"w.h5::w"``), a source, or ``"::w"`` for a dataset of
        the same file(s). One number, at least 0, for each row that is stored; ``rows`` selects them with their rows.

    >>> source = open_source(np.arange(12.0).reshape(4, 3), columns=[2, 0], rows="1:3")
    >>> source.read(slice(None))
    array([[5., 3.],
           [8., 6.]])
    """
    if samples_axis not in (0, 1):
        raise UsageError(f"samples_axis must be 0 (samples are rows) or 1 (samples are columns), not {samples_axis!r}")
    if is_labelled(data):
        if samples_axis:
            raise UsageError("the dimensions of a DataArray say where its samples are: leave out samples_axis, or use .transpose()")
        data, names = rows_and_names(data)
        feature_names = names if feature_names is None else feature_names
    if _comes_from(data, "dask"):
        _no_dataset(dataset)
        from streampca.sources.dask_array import open_dask

        if weights is None:
            return open_dask(data, samples_axis, rows, columns, feature_names)
        source = open_dask(data, samples_axis, None, None, None)
    else:
        source = _open(data, dataset, samples_axis)
    return _viewed(_weighted(source, data, weights), columns, rows, feature_names)


def open_array(
    data: Any,
    dataset: str | None = None,
    samples_axis: int = 0,
    columns: ColumnsLike | None = None,
    rows: RowsLike | None = None,
    feature_names: Sequence[str] | None = None,
    block_rows: int | None = None,
) -> Any:
    """Return the rows of any source as a lazy Dask array; see :func:`streampca.sources.dask_array.open_array`.

    >>> open_array(np.ones((10, 3))).shape
    (10, 3)
    """
    from streampca.sources import dask_array

    return dask_array.open_array(data, dataset, samples_axis, columns, rows, feature_names, block_rows)


# ------------------------------------------------------------------------------------------ objects


def is_stored(data: Any) -> bool:
    """Return whether data is a path, several, a source, or an open h5py dataset or Zarr array: read block by block, not held in memory.

    >>> is_stored(["a.h5", "b.h5"]), is_stored([[1.0, 2.0]])
    (True, False)
    """
    if isinstance(data, (str, os.PathLike, Source)) or _is_list_of_files(data):
        return True
    return _comes_from(data, "h5py") or (_comes_from(data, "zarr") and _folder_of(data) is not None)


def _open(data: Any, dataset: str | None, samples_axis: int) -> Source:
    if isinstance(data, (str, os.PathLike)):
        return _only_tables(_open_text(os.fspath(data), dataset, samples_axis))
    if _is_list_of_files(data):
        return ManySource(tuple(_open(each, dataset, samples_axis) for each in data))
    if _comes_from(data, "h5py", "zarr"):
        return _only_tables(_open_stored_object(data, samples_axis))
    _no_dataset(dataset)
    if isinstance(data, Source):
        if samples_axis:
            raise UsageError("this source is open already: give samples_axis=1 when it is opened from its path")
        return data
    return _open_in_memory(data, samples_axis)


def _open_in_memory(data: Any, samples_axis: int) -> Source:
    if hasattr(data, "tocsr"):
        raise DataError(f"a sparse matrix ({type(data).__name__}) was given, but only dense tables can be read: use .toarray()")
    labels = list(data.columns) if hasattr(data, "columns") and hasattr(data, "to_numpy") else []
    values = data if isinstance(data, np.ndarray) else np.asarray(data.to_numpy() if labels else data)
    source = ArraySource(values.T if samples_axis else values)
    if labels and not samples_axis and all(isinstance(label, str) for label in labels):
        return WithNames(source, tuple(labels))
    return source


def _is_list_of_files(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and bool(data) and all(isinstance(each, (str, os.PathLike, Source)) for each in data)


def _only_tables(source: Source) -> Source:
    """Refuse 1-D arrays, which the readers open as one column: only weights may be stored so."""
    for each in source.sources if isinstance(source, ManySource) else (source,):
        if isinstance(each, StoredSource) and each.table.ndim != 2:
            two_dimensional(each.table.shape[: each.table.ndim], each.info.description)
    return source


def _open_stored_object(data: Any, samples_axis: int) -> Source:
    """Open an h5py dataset or Zarr array by the place it is stored at, so that it can be read in any process."""
    if hasattr(data, "file") and hasattr(data, "shape"):
        return _hdf5(files.absolute(data.file.filename), data.name, samples_axis)
    folder = _folder_of(data)
    if folder is not None:
        return _zarr(files.absolute(folder), data.path or None, samples_axis)
    raise UsageError(f"cannot tell where {data!r} is stored: give its path or URL instead")


def _folder_of(array: Any) -> Path | None:
    """Return the local folder of a Zarr array's store, if it has one."""
    root = getattr(getattr(array, "store", None), "root", None)
    return root if isinstance(root, Path) else None


def _viewed(source: Source, columns: ColumnsLike | None, rows: RowsLike | None, feature_names: Sequence[str] | None) -> Source:
    if feature_names is not None:
        source = WithNames(source, tuple(map(str, feature_names)))
    if rows is not None:
        wanted = row_slice(rows)
        if wanted.step is not None and wanted.step < 1:
            raise UsageError(f"rows are taken in order: the step must be at least 1, not {wanted.step}")
        source = Rows(source, *wanted.indices(source.info.n_rows))
    if columns is not None:
        source = Columns(source, column_indices(columns, source.info.n_features, source.info.feature_names))
    return source


def _weighted(source: Source, data: Any, weights: Any) -> Source:
    """Return the source with the weights that were given, if any."""
    if weights is None:
        return source
    if not isinstance(weights, str) or not weights.startswith("::"):
        return Weighted(source, _open_weights(weights))
    by = _open_weights(_beside(data, weights))
    if isinstance(source, ManySource) and isinstance(by, ManySource):
        for rows, column in zip(source.sources, by.sources, strict=True):
            Weighted(rows, column)  # refuses a file with more or fewer weights than rows, even if another makes up for it
    return Weighted(source, by)


def _open_weights(weights: Any) -> Any:
    """Open what Weighted does not take as it is: files, stored arrays and Dask arrays, of one or two dimensions."""
    if isinstance(weights, (str, os.PathLike)):
        return _open_text(os.fspath(weights), None, 0)
    if _is_list_of_files(weights):
        return ManySource(tuple(_open_weights(each) for each in weights))
    if _comes_from(weights, "h5py", "zarr"):
        return _open_stored_object(weights, 0)
    if _comes_from(weights, "dask"):
        from streampca.sources.dask_array import open_dask

        return open_dask(weights[:, None] if weights.ndim == 1 else weights, 0, None, None, None)
    return weights


def _beside(data: Any, name: str) -> Any:
    """Return the path, or paths, of a dataset in the same file(s) as the data.

    >>> _beside(["a.h5::X", "b.h5"], "::w")
    ['a.h5::w', 'b.h5::w']
    """
    if isinstance(data, (str, os.PathLike)):
        return _split(os.fspath(data), None)[0] + name
    if _is_list_of_files(data) and not any(isinstance(each, Source) for each in data):
        return [_beside(each, name) for each in data]
    raise UsageError(
        f"weights={name!r} names a dataset beside the data, but the data was not given by its path: give a path::name, or an array"
    )


def _comes_from(data: Any, *packages: str) -> bool:
    return type(data).__module__.partition(".")[0] in packages


def _no_dataset(dataset: str | None) -> None:
    if dataset is not None:
        raise UsageError(f"dataset={dataset!r} was given, but only files have datasets")


# ------------------------------------------------------------------------------------------ paths


def _open_text(text: str, dataset: str | None, samples_axis: int) -> Source:
    path, dataset = _split(text, dataset)
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    if _URL.match(path):
        return _open_url(path, dataset, samples_axis)
    path = files.absolute(path)
    if glob.has_magic(path) and not Path(path).exists():
        return _open_glob(path, dataset, samples_axis)
    return _open_path(path, dataset, samples_axis)


def _split(text: str, dataset: str | None) -> tuple[str, str | None]:
    """Take ``::name`` off a path.

    >>> _split("runs/*.h5::/group/X", None)
    ('runs/*.h5', '/group/X')
    """
    path, colons, name = text.rpartition("::")
    if not colons:
        return text, dataset
    if not name:
        return path, dataset
    if dataset is not None and dataset.strip("/") != name.strip("/"):
        raise UsageError(f"two datasets were named: {name!r} after :: and dataset={dataset!r}")
    return path, name


def _open_url(url: str, dataset: str | None, samples_axis: int) -> Source:
    if glob.has_magic(url):
        raise UsageError(f"patterns are matched in local folders only: give a list of URLs instead of {url}")
    suffix = Path(urlsplit(url).path).suffix.lower()
    for reader in REGISTRY:
        if suffix in reader.suffixes and reader.opener is not _zarr:
            raise DataError(f"{url} is a {reader.name} file, which is read from local disks only: copy it, or store it as Zarr")
    return _zarr(url, dataset, samples_axis)


def _open_glob(pattern: str, dataset: str | None, samples_axis: int) -> Source:
    paths = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    if not paths:
        raise SourceNotFoundError(f"no file matches {pattern}")
    opened = tuple(_open_path(path, dataset, samples_axis) for path in paths)
    return opened[0] if len(opened) == 1 else ManySource(opened)


def _open_path(path: str, dataset: str | None, samples_axis: int) -> Source:
    files.stat(path)
    return _reader(path).opener(path, dataset, samples_axis)


def _reader(path: str) -> Reader:
    """Return the reader of a path: by its suffix, else by what is in it."""
    suffix = Path(path).suffix.lower()
    for reader in REGISTRY:
        if suffix in reader.suffixes:
            return reader
    for reader in REGISTRY:
        if _looks_like(path, reader):
            return reader
    known = "; ".join(f"{reader.name} ({' '.join(reader.suffixes)})" for reader in REGISTRY)
    raise DataError(f"{path} is in no format that can be read. These can: {known}")


def _looks_like(path: str, reader: Reader) -> bool:
    if Path(path).is_dir():
        return any(Path(path, marker).exists() for marker in reader.markers)
    if not reader.magic:
        return False
    with Path(path).open("rb") as file:
        return file.read(len(reader.magic)) == reader.magic
