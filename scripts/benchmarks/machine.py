"""What the figures were measured with: processors, Python, libraries. No names."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from benchmarks import meter

PACKAGES = (
    "numpy",
    "scipy",
    "h5py",
    "hdf5plugin",
    "isal",
    "numcodecs",
    "zarr",
    "zarrs",
    "dask",
    "dask-ml",
    "scikit-learn",
    "scikit-learn-intelex",
    "ppca-rs",
)


def facts() -> dict[str, str]:
    """Return what matters of the machine, in words."""
    versions = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    return {
        "cores": str(meter.cores()),
        "CPU": _cpu(),
        "Python": platform.python_version(),
        "BLAS": _blas(),
        "libraries": ", ".join(versions),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _blas() -> str:
    import numpy as np  # noqa: F401 - so that its BLAS is loaded
    from threadpoolctl import threadpool_info

    found = [f"{each['internal_api']} {each['version']} ({each.get('architecture', '?')})" for each in threadpool_info()]
    return ", ".join(dict.fromkeys(found)) or "unknown"
