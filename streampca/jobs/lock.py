"""One run at a time per output: a hidden file beside it says who is at work; the kernel's lock on it ends with the process.

A holder that died on this machine is taken over. One on another machine cannot be asked: its file is believed until it is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from streampca.errors import LockedError
from streampca.staging import parent_folders


def lock_file(output: str | os.PathLike[str]) -> Path:
    """Return where the lock of an output is.

    >>> lock_file("/data/m.zarr").name
    '.m.zarr.streampca-lock'
    """
    target = Path(os.path.realpath(output))
    return target.with_name(f".{target.name}.streampca-lock")


@contextmanager
def locked(*outputs: str) -> Iterator[None]:
    """Hold the locks of some outputs within the block, or raise ``LockedError`` at once."""
    with ExitStack() as stack:
        for output in sorted(outputs):
            stack.enter_context(parent_folders(output))
            stack.enter_context(_held(output))
        yield


def refuse_if_locked(*outputs: str) -> None:
    """Raise ``LockedError`` if another run is at work on an output. Creates nothing."""
    for output in outputs:
        path = lock_file(output)
        if path.exists():
            with _held(output):
                pass


@contextmanager
def _held(output: str) -> Iterator[None]:
    path = lock_file(output)
    descriptor = _take(path, output)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is still held: whoever waits for this file will find that it is another one
        os.close(descriptor)


def _take(path: Path, output: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if _lock(descriptor, path, output):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path, output: str) -> bool:
    """Lock an open file and write who holds it; return False if it is no longer the file of that name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(output, _holder(descriptor), path) from None
    with suppress(FileNotFoundError):
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            holder = _holder(descriptor)
            if holder and holder.get("host") != socket.gethostname():
                raise _refusal(output, holder, path)
            _sign(descriptor)
            return True
    return False


def _holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _sign(descriptor: int) -> None:
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)
    os.fsync(descriptor)


def _refusal(output: str, holder: dict[str, Any], path: Path) -> LockedError:
    here = holder.get("host") in (None, socket.gethostname())
    remedy = "wait for it, or choose another output" if here else f"wait for it; if that run is dead, remove {path}"
    who = f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown host')}, since {holder.get('started', '?')}"
    return LockedError(f"another run is at work on {output} ({who}): {remedy}")
