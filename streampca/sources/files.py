"""Local files: absolute paths, the stamp that tells whether one was replaced, and errors for one that is not there.

Only the standard library is used here.
"""

from __future__ import annotations

import os
from pathlib import Path

from streampca.errors import DataError, SourceNotFoundError, did_you_mean

Stamp = tuple[int, int, int]  # inode, size, mtime_ns


def absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as absolute text, with ``~`` expanded.

    >>> absolute("/data/../data/x.h5")
    '/data/x.h5'
    """
    return os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - Path.absolute() keeps "..", resolve() follows links


def stat(path: str) -> os.stat_result:
    """Return the file's status, or raise an error that names the nearest file there is."""
    try:
        return Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise not_found(path) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def stamp(path: str) -> Stamp:
    """Return what differs when a file was written to or replaced by another of the same name."""
    status = stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def not_found(path: str) -> SourceNotFoundError:
    """Return the error for a path that does not exist, naming the nearest one in its folder."""
    folder = Path(path).parent
    if not folder.is_dir():
        return SourceNotFoundError(f"no such file: {path} (there is no folder {folder})")
    try:
        there = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        there = []
    return SourceNotFoundError(f"no such file: {path}.{did_you_mean(Path(path).name, there)}")
