"""Outputs appear complete or not at all: written beside the target under a hidden name, then renamed onto it.

Everything that streampca writes for the user goes through ``staged``. Standard library only; nothing here
knows what is inside an output, except that a folder is replaced only if it looks like a Zarr store.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from streampca.errors import InterruptedRunError, OutputError
from streampca.failpoints import failpoint
from streampca.memory import format_bytes

StrPath = str | os.PathLike[str]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_ZARR_MARKERS = ("zarr.json", ".zgroup", ".zarray")
_LONGEST_NAME = 220  # bytes; file systems allow 255, and the hidden name is a little longer
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2  # linux/fs.h
_AT_FDCWD = -100
_FALLOC_KEEP_SIZE = 1  # linux/falloc.h


def check_target(path: StrPath, overwrite: bool = False) -> None:
    """Raise if an output cannot go to ``path``; create nothing.

    Parameters
    ----------
    path
        Where the finished output shall be. A symbolic link stands for what it points to.
    overwrite
        Whether an existing output may be replaced.

    Raises
    ------
    OutputError
        The target exists, is not something to replace, or its folder cannot be written.

    Examples
    --------
    >>> check_target("/tmp/streampca-doctest-no-such-file.npy")
    """
    target = _resolve(path)
    if os.path.lexists(target):
        _check_replaceable(target, overwrite)
    if len(os.fsencode(target.name)) > _LONGEST_NAME:
        raise OutputError(f"the name of the output {target} is longer than {_LONGEST_NAME} bytes: choose a shorter one")
    folder = _nearest_existing(target.parent)
    if not folder.is_dir():
        raise OutputError(f"cannot write {target}: {folder} is a file, not a folder; choose another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {target}: no permission to create files in {folder}; choose another path or change its mode")


def _check_replaceable(target: Path, overwrite: bool) -> None:
    if not overwrite:
        raise OutputError(f"{target} exists already: choose another path, or replace it with overwrite=True (--overwrite)")
    mode = target.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OutputError(f"{target} is neither a file nor a folder and is never replaced: choose another path")
    if stat.S_ISDIR(mode) and (os.path.ismount(target) or not _is_store(target)):
        raise OutputError(
            f"{target} is a folder that is not a Zarr store, and overwrite never deletes such a folder: "
            "choose another path or remove it yourself"
        )


def _is_store(folder: Path) -> bool:
    """Say whether a folder is empty or a Zarr store."""
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError as error:
        raise OutputError(f"cannot replace {folder}: {error.strerror}") from error
    return not names or any(marker in names for marker in _ZARR_MARKERS)


def check_free_space(path: StrPath, n_bytes: int) -> None:
    """Raise if fewer than ``n_bytes`` are free on the file system where ``path`` is or will be.

    >>> check_free_space("/tmp/no/such/folder/yet.npy", 1)
    """
    folder = _nearest_existing(_resolve(path).parent)
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise OutputError(
            f"writing {os.fspath(path)} needs {n_bytes} bytes ({format_bytes(n_bytes)}), but {free} bytes ({format_bytes(free)}) are free "
            f"on the file system of {folder}: free some space or choose another path"
        )


def preallocate(path: StrPath, n_bytes: int) -> None:
    """Reserve ``n_bytes`` for a file without changing its size, so that a full disk shows before the work.

    Does nothing where the file system or the platform has no such call.

    Raises
    ------
    OutputError
        The space is not there.
    """
    fallocate = _libc_function("fallocate")
    if fallocate is None or n_bytes <= 0:
        return
    descriptor = os.open(path, os.O_RDWR)
    try:
        code = _call(fallocate, descriptor, _FALLOC_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(n_bytes))
    finally:
        os.close(descriptor)
    if code in (*_FULL, errno.EFBIG):
        raise OutputError(f"cannot reserve {n_bytes} bytes ({format_bytes(n_bytes)}) for {os.fspath(path)}: {os.strerror(code)}")


@contextmanager
def staged(path: StrPath, overwrite: bool = False, at: Path | None = None, name: str | None = None) -> Iterator[Path]:
    """Yield a hidden path beside ``path``; what is there at the end is moved onto ``path`` in one step.

    Parameters
    ----------
    path
        The output; missing parent folders are created (and removed again on failure).
    overwrite
        Whether an existing output is replaced. It stays complete and in place until the new one is.
    at
        Where to stage it instead, on the same file system; what is there when the run is interrupted is kept, to go on with.
    name
        What the output is called in failpoints.

    Yields
    ------
    Path
        A path that does not exist yet, in the folder of the target: make a file or a folder there.

    Raises
    ------
    OutputError
        The target is refused (see ``check_target``), or the disk is full or forbidden. On any
        exception the hidden file or folder is removed.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with staged(folder / "a.txt") as partial:
    ...     _ = partial.write_text("complete")
    >>> os.listdir(folder)
    ['a.txt']
    """
    target = _resolve(path)
    check_target(target, overwrite)
    partial = at or _hidden_sibling(target, "partial")
    created: list[Path] = []
    try:
        _make_folders(target.parent, created)
        yield partial
        _sync_tree(partial)
        failpoint(f"{name}-before-rename")
        _publish(partial, target, overwrite)
        failpoint(f"{name}-renamed")
    except BaseException as error:
        if at is None or not isinstance(error, InterruptedRunError):
            _remove(partial)
        _remove_empty(created)
        if isinstance(error, OSError) and _is_about_output(error, target.parent):
            raise output_error(error, target) from error
        raise


def output_error(error: OSError, path: StrPath) -> OutputError:
    """Return the ``OutputError`` that tells of a failed write to ``path``, with the remedy.

    >>> output_error(OSError(errno.ENOSPC, "No space left on device"), "a.npy")
    OutputError('cannot write a.npy: No space left on device; free some space or choose another path')
    """
    if isinstance(error, OutputError):
        return error
    reason = os.strerror(error.errno) if error.errno else str(error)
    remedy = {
        **dict.fromkeys(_FULL, "free some space or choose another path"),
        **dict.fromkeys(_FORBIDDEN, "choose another path or change the mode of its folder"),
        errno.EROFS: "choose a path on a file system that can be written",
    }.get(error.errno or 0, "choose another path")
    return OutputError(f"cannot write {os.fspath(path)}: {reason}; {remedy}")


def write_text(path: StrPath, text: str) -> None:
    """Write a small text file in one step, replacing an older one.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.json"
    >>> write_text(path, "{}"), path.read_text()
    (None, '{}')
    """
    with staged(path, overwrite=True) as partial:
        partial.write_text(text)


def work_folder(path: StrPath) -> Path:
    """Return the hidden folder beside an output where a run keeps what it needs to go on after an interruption.

    >>> work_folder("/data/m.zarr").name
    '.m.zarr.streampca-run'
    """
    target = _resolve(path)
    return target.with_name(f".{target.name}.streampca-run")


def remove_tree(path: Path) -> None:
    """Remove a file or folder, if it is there. Never raises."""
    _remove(path)


@contextmanager
def parent_folders(path: StrPath) -> Iterator[Path]:
    """Create the folders above an output, and remove those that are empty again at the end; yield the resolved output."""
    target = _resolve(path)
    created: list[Path] = []
    try:
        _make_folders(target.parent, created)
        yield target
    except OSError as error:
        if _is_about_output(error, target.parent):
            raise output_error(error, target) from error
        raise
    finally:
        _remove_empty(created)


def remove_partials(path: StrPath) -> int:
    """Remove what killed runs left beside ``path``, and return how many such files or folders there were.

    Call it only while nothing else writes to ``path`` (under the lock of the job).
    """
    target = _resolve(path)
    prefix = f".{target.name}.partial-"
    found = [name for name in _listdir(target.parent) if name.startswith(prefix)]
    for name in found:
        _remove(target.with_name(name))
    return len(found)


def _listdir(folder: Path) -> list[str]:
    try:
        return [each.name for each in folder.iterdir()]
    except OSError:
        return []


def _resolve(path: StrPath) -> Path:
    return Path(os.path.realpath(path))


def _nearest_existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if os.path.lexists(each))


def _hidden_sibling(target: Path, word: str) -> Path:
    return target.with_name(f".{target.name}.{word}-{secrets.token_hex(6)}")


def _make_folders(folder: Path, created: list[Path]) -> None:
    """Create a folder and its parents, noting each new one, outermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process was faster: then it is not ours to remove
            each.mkdir()
            created.append(each)


def _remove_empty(created: list[Path]) -> None:
    for folder in reversed(created):
        with suppress(OSError):
            folder.rmdir()


def _remove(path: Path) -> None:
    """Remove a file or folder if it is there; workers that still write a last chunk get a second chance."""
    for _ in range(3):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            return


def _is_about_output(error: OSError, folder: Path) -> bool:
    """Say whether an error is about writing; a forbidden *input* must not be taken for a forbidden output."""
    if isinstance(error, OutputError):
        return False
    if error.errno in (*_FULL, errno.EROFS):
        return True
    name = error.filename
    return error.errno in _FORBIDDEN and isinstance(name, str | os.PathLike) and Path(os.path.realpath(name)).is_relative_to(folder)


def _sync_tree(path: Path) -> None:
    """Flush a file, or every file of a folder and then its folders, to the disk."""
    if path.is_dir():
        for folder, _, names in os.walk(path, topdown=False):
            for name in names:
                sync(Path(folder) / name)
            sync(folder)
    else:
        sync(path)


def sync(path: StrPath) -> None:
    """Flush one file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


def _publish(partial: Path, target: Path, overwrite: bool) -> None:
    """Move the finished output onto the target, which may have appeared meanwhile."""
    check_target(target, overwrite)
    if not os.path.lexists(target):
        _rename_new(partial, target)
    elif partial.is_file() and target.is_file():
        partial.replace(target)
    else:
        _replace(partial, target)
    sync(target.parent)


def _rename_new(partial: Path, target: Path) -> None:
    code = _renameat2(partial, target, _RENAME_NOREPLACE)
    if code == errno.EEXIST:
        raise OutputError(f"{target} was created by another run meanwhile: choose another path, or use overwrite=True (--overwrite)")
    if code in _UNSUPPORTED:
        partial.rename(target)
    elif code:
        raise OSError(code, os.strerror(code), os.fspath(partial))


def _replace(partial: Path, target: Path) -> None:
    """Replace a folder: swap both names at once where the kernel can, else with two renames."""
    if _renameat2(partial, target, _RENAME_EXCHANGE) == 0:
        _remove(partial)  # now the old output
        return
    aside = _hidden_sibling(target, "old")
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    _remove(aside)


def _renameat2(source: Path, target: Path, flags: int) -> int:
    """Rename with flags; return 0 or the error number."""
    function = _libc_function("renameat2")
    if function is None:
        return errno.ENOSYS
    return _call(function, _AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags))


@cache
def _libc_function(name: str) -> Any | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), name, None)


def _call(function: Any, *arguments: Any) -> int:
    """Call a function of the C library; return 0 or its error number."""
    return 0 if function(*arguments) == 0 else ctypes.get_errno()
