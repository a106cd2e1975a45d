"""What this machine has: versions, BLAS and its threads, codecs, memory, disk, scheduler; what is missing and its cost."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib.util import find_spec
from typing import Any

from threadpoolctl import threadpool_info

from streampca.engine import choose_scheduler
from streampca.errors import StreamPCAError
from streampca.jobs.config import SchedulerConfig
from streampca.jobs.manifest import package_version
from streampca.jobs.run import scheduler_of
from streampca.memory import available_memory, format_bytes, total_memory

PACKAGES = ("streampca", "numpy", "scipy", "scikit-learn", "dask", "distributed", "h5py", "zarr", "numcodecs", "isal")
_LITTLE_DISK = 10**9  # bytes

# What may be missing: the module, what it gives, what it costs to be without, and how to get it.
EXTRAS = (
    (
        "hdf5plugin",
        "HDF5 files with Blosc2, bitshuffle and other filters that are not part of HDF5 itself cannot be read, and shuffled chunks are "
        "decoded more slowly",
        "pip install 'streampca[codecs]'",
    ),
    ("jinja2", "no HTML report can be written", "pip install 'streampca[report]'"),
    ("matplotlib", "no pictures can be drawn (streampca plot, sp.plot)", "pip install 'streampca[report]'"),
)


def doctor(scheduler: SchedulerConfig) -> dict[str, Any]:
    """Return what was found, and under ``problems`` what is missing or wrong, each with its cost and remedy."""
    where, unreachable = _scheduler(scheduler)
    blas = _blas()
    missing = [f"{name} is not installed: {cost}. {remedy}" for name, cost, remedy in EXTRAS if find_spec(name) is None]
    return {
        "python": f"{sys.version.partition(' ')[0]} on {platform.platform()}",
        "packages": {name: package_version(name) or "not installed" for name in PACKAGES},
        "extras": {name: package_version(name) or "not installed" for name, *_ in EXTRAS},
        "codecs": _codecs(),
        "blas": [f"{each['internal_api']} {each['version']}, {each['num_threads']} threads" for each in blas] or ["not found"],
        "processors": choose_scheduler().workers if unreachable is None else os.cpu_count(),
        "memory": f"{format_bytes(available_memory())} free of {format_bytes(total_memory())}",
        "disk": f"{format_bytes(shutil.disk_usage('.').free)} free in the current folder",
        "scheduler": where,
        "problems": [*missing, *_no_blas(blas), *_little_disk(), *([unreachable] if unreachable else [])],
    }


def _codecs() -> dict[str, str]:
    """Return what decodes chunks."""
    found = {
        "zlib, gzip": "isal" if find_spec("isal") else "Python's zlib",
        "Blosc, Zstd, LZ4": f"numcodecs {package_version('numcodecs')}",
        "other HDF5 filters": f"hdf5plugin {package_version('hdf5plugin')}" if find_spec("hdf5plugin") else "none",
    }
    zarrs = package_version("zarrs")
    return {**found, **({"zarrs": f"{zarrs}, not needed: chunks are decoded directly"} if zarrs else {})}


def _blas() -> list[dict[str, Any]]:
    return [each for each in threadpool_info() if each["user_api"] == "blas"]


def _no_blas(blas: list[dict[str, Any]]) -> list[str]:
    if blas:
        return []
    return ["no BLAS that can be held at one thread per task was found: tasks may compete for processors. Set OMP_NUM_THREADS=1"]


def _little_disk() -> list[str]:
    free = shutil.disk_usage(".").free
    return [f"only {format_bytes(free)} of disk are free in the current folder: outputs may not fit"] if free < _LITTLE_DISK else []


def _scheduler(config: SchedulerConfig) -> tuple[str, str | None]:
    """Return where runs would go, and why they cannot, if so."""
    named = config.address or config.file or os.environ.get("DASK_SCHEDULER_ADDRESS")
    if not named:
        return "none is named: runs use local threads", None
    try:
        with scheduler_of(config) as found:
            return f"{named} answers; {found.workers} thread(s) in its largest worker", None
    except StreamPCAError as error:
        return f"{named} does not answer", str(error)
