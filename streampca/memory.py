"""Bytes: reading and writing them as text, and asking the machine how many there are."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from streampca.errors import UsageError

KIB, MIB, GIB = 2**10, 2**20, 2**30
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{p}ib": 1024 ** (i + 1) for i, p in enumerate("kmgtp")}
_UNITS |= {f"{p}b": 1000 ** (i + 1) for i, p in enumerate("kmgtp")}
_UNITS |= {p: 1024 ** (i + 1) for i, p in enumerate("kmgtp")}


def parse_bytes(size: str | int | float) -> int:
    """Return a number of bytes from ``"2GiB"``, ``"512 MB"``, ``"1e9"`` or a plain number.

    >>> parse_bytes("2GiB"), parse_bytes("1.5 kB"), parse_bytes(4096)
    (2147483648, 1500, 4096)
    """
    text = str(size).strip().lower()
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)", text)
    if not match or match[2] not in _UNITS:
        raise UsageError(f"cannot read {size!r} as a memory size: write for example '2GiB', '512MB' or a number of bytes")
    try:
        n_bytes = int(float(match[1]) * _UNITS[match[2]])
    except (ValueError, OverflowError) as error:
        raise UsageError(f"cannot read {size!r} as a memory size: {error}") from None
    if n_bytes <= 0:
        raise UsageError(f"a memory size must be positive, not {size!r}")
    return n_bytes


def format_bytes(n_bytes: float) -> str:
    """Return bytes for people.

    >>> format_bytes(2**31), format_bytes(1536), format_bytes(10)
    ('2.00 GiB', '1.5 KiB', '10 B')
    """
    for unit, size, digits in (("PiB", 2**50, 2), ("TiB", 2**40, 2), ("GiB", GIB, 2), ("MiB", MIB, 1), ("KiB", KIB, 1)):
        if n_bytes >= size:
            return f"{n_bytes / size:.{digits}f} {unit}"
    return f"{int(n_bytes)} B"


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, its cgroup and its limits."""
    limits = [_meminfo_available(), *_cgroup_headroom()]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        limits.append(max(soft - _statm(0), 0))
    return min(limits)


def total_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def default_budget() -> int:
    """Return the budget when the user gives none: what the process has plus half of what is free."""
    return current_rss() + available_memory() // 2


def current_rss() -> int:
    """Return the resident memory of this process now."""
    return _statm(1)


def peak_rss() -> int:
    """Return the largest resident memory that this process ever had.

    ``VmHWM`` belongs to the program that runs now, while ``ru_maxrss`` also remembers its parent.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) * KIB if match else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def _statm(field: int) -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[field])
    except OSError:  # not Linux: the peak is the best bound at hand
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    return pages * os.sysconf("SC_PAGE_SIZE")


def _meminfo_available() -> int:
    try:
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        match = None
    if match:
        return int(match[1]) * KIB
    return total_memory()


def _cgroup_headroom() -> list[int]:
    """Return what each enclosing cgroup (v2 or v1) still allows; page cache counts as free."""
    headroom = []
    for folder, limit_name, usage_name, cache_key in _cgroup_folders():
        try:
            limit = int((folder / limit_name).read_text())
            usage = int((folder / usage_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no limit ("max"), or not ours to read
            continue
        headroom.append(max(limit - usage + int(stat.get(cache_key, 0)), 0))
    return headroom


def _cgroup_folders() -> list[tuple[Path, str, str, str]]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = ("memory.max", "memory.current", "inactive_file")
        root = Path("/sys/fs/cgroup")
        if controllers:
            if "memory" not in controllers.split(","):
                continue
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = root / "memory"
        folder = root / path.lstrip("/")
        folders += [(each, *names) for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return folders
