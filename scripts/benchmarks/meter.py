"""Gauges of this process: peak memory, bytes read, processors."""

from __future__ import annotations

import os
from pathlib import Path


def peak_rss() -> int | None:
    """Return the highest resident memory so far, in bytes (Linux)."""
    value = _field("/proc/self/status", "VmHWM")
    return None if value is None else int(value.split()[0]) * 1024


def bytes_read() -> int | None:
    """Return the bytes that read calls have returned so far (Linux)."""
    value = _field("/proc/self/io", "rchar")
    return None if value is None else int(value)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping (Linux)."""
    value = _field("/proc/meminfo", "MemAvailable")
    return None if value is None else int(value.split()[0]) * 1024


def _field(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:")), None)
