"""Where rows go: one file per format, chosen by the suffix of the path.

``open_sink`` is the only way in: it checks the target and the free space first, and the output appears only
when it is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from streampca.errors import InterruptedRunError, UsageError
from streampca.memory import GIB, MIB, format_bytes
from streampca.sinks.base import Layout, Sink
from streampca.sinks.unfinished import Unfinished
from streampca.staging import StrPath, check_free_space, check_target, staged

__all__ = ["Sink", "Unfinished", "check_sink", "open_sink"]

# suffix -> (module, class); imported when used, as zarr and h5py are slow to load
_SINKS = {
    ".zarr": ("streampca.sinks.zarr_sink", "ZarrSink"),
    ".h5": ("streampca.sinks.hdf5_sink", "Hdf5Sink"),
    ".hdf5": ("streampca.sinks.hdf5_sink", "Hdf5Sink"),
    ".npy": ("streampca.sinks.npy_sink", "NpySink"),
}


def check_sink(path: StrPath, n_bytes: int = 0, *, overwrite: bool = False) -> None:
    """Raise if ``n_bytes`` of rows cannot go to ``path``: unknown suffix, refused target, full disk. Create nothing.

    >>> check_sink("scores.csv")
    Traceback (most recent call last):
    ...
    streampca.errors.UsageError: cannot write 'scores.csv': the suffix '.csv' is not one of .zarr, .h5, .hdf5, .npy
    """
    _sink_name(path)
    check_target(path, overwrite)
    check_free_space(path, n_bytes + MIB)


@contextmanager
def open_sink(
    path: StrPath,
    n_rows: int,
    n_columns: int,
    dtype: DTypeLike,
    *,
    chunk_rows: int,
    feature_names: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    dataset: str = "scores",
    overwrite: bool = False,
    unfinished: Unfinished | None = None,
) -> Iterator[Sink]:
    """Yield a sink for a table of ``n_rows`` x ``n_columns``; the output is there when the block ends without error.

    Parameters
    ----------
    path
        The output: ``.zarr``, ``.h5``, ``.hdf5`` or ``.npy``.
    n_rows, n_columns, dtype
        Shape and type of the table.
    chunk_rows
        Rows per stored chunk, and the unit in which blocks are written.
    feature_names
        Names of the columns, stored as the attribute ``feature_names`` (not in NPY).
    attributes
        Further JSON attributes (not in NPY).
    dataset
        Name of the dataset in an HDF5 file.
    overwrite
        Whether an existing output is replaced, once the new one is complete.
    unfinished
        Where to keep it when the run is interrupted, and perhaps what an earlier run has left there.

    Yields
    ------
    Sink
        Takes ``write(start, block)``.

    Raises
    ------
    UsageError
        An unknown suffix, or a shape that cannot be stored.
    OutputError
        The target exists, cannot be written, or the disk is full.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "z.npy"
    >>> with open_sink(path, 3, 2, "f4", chunk_rows=2) as sink:
    ...     sink.write(2, np.ones((1, 2)))
    ...     sink.write(0, np.zeros((2, 2)))
    >>> np.load(path).tolist()
    [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    """
    kind = _sink_class(path)
    all_attributes = _attributes(n_columns, feature_names, attributes)
    layout = _layout(Path(path), n_rows, n_columns, np.dtype(dtype).newbyteorder("="), chunk_rows)
    check_sink(path, layout.n_bytes, overwrite=overwrite)
    at = unfinished.staged_at if unfinished is not None and kind.resumable else None
    with staged(path, overwrite, at, name="scores") as partial:
        layout = replace(layout, path=partial)
        sink = (
            kind.create(layout, all_attributes, dataset) if unfinished is None else unfinished.begin(kind, layout, all_attributes, dataset)
        )
        try:
            yield sink
            sink.close()
            if unfinished is not None:
                unfinished.about_to_publish(partial)
        except BaseException as error:
            if unfinished is not None and isinstance(error, InterruptedRunError):
                unfinished.note()
            sink.discard()
            raise


def _sink_name(path: StrPath) -> tuple[str, str]:
    suffix = Path(path).suffix.lower()
    if suffix not in _SINKS:
        raise UsageError(f"cannot write {str(path)!r}: the suffix {suffix!r} is not one of {', '.join(_SINKS)}")
    return _SINKS[suffix]


def _sink_class(path: StrPath) -> type[Sink]:
    module, name = _sink_name(path)
    found: type[Sink] = getattr(import_module(module), name)
    return found


def _attributes(n_columns: int, feature_names: Sequence[str] | None, attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all attributes as plain JSON values."""
    merged = dict(attributes or {})
    if feature_names is not None:
        if len(feature_names) != n_columns:
            raise UsageError(f"{len(feature_names)} feature names were given for {n_columns} columns")
        merged["feature_names"] = [str(name) for name in feature_names]
    try:
        plain: dict[str, Any] = json.loads(json.dumps(merged, allow_nan=False, default=_plain_scalar))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the attributes of an output must be JSON values (finite numbers, text, lists, mappings): {error}") from error
    return plain


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not one")


def _layout(path: Path, n_rows: int, n_columns: int, dtype: np.dtype[Any], chunk_rows: int) -> Layout:
    if min(n_rows, n_columns, chunk_rows) < 1 or dtype.kind not in "biuf":
        raise UsageError(f"cannot write {n_rows} x {n_columns} values of type {dtype} in chunks of {chunk_rows} rows")
    layout = Layout(path, n_rows, n_columns, dtype, min(chunk_rows, n_rows))
    chunk_bytes = layout.chunk_rows * layout.row_bytes
    if chunk_bytes > GIB:
        raise UsageError(f"chunks of {chunk_rows} rows are {format_bytes(chunk_bytes)}, more than 1 GiB: give fewer chunk_rows")
    return layout
