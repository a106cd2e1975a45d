"""The manifest: a JSON file beside the model that says what was run, on what, with what, how it went and what it cost."""

from __future__ import annotations

import json
import platform
import socket
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from streampca.events import Observer
from streampca.failpoints import failpoint
from streampca.staging import write_text

_PACKAGES = ("streampca", "numpy", "scipy", "dask", "distributed", "h5py", "zarr", "numcodecs")


class Recorder(Observer):
    """Tells another observer everything, and remembers the passes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.passes: list[dict[str, Any]] = []
        self._known: dict[str, int] = {}

    def pass_started(self, name: str, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._began = time.monotonic()
        self.passes.append({"name": name, "rows": rows, "bytes_decoded": n_bytes, "rows_resumed": self._known.pop(name, 0)})
        self._observer.pass_started(name, rows, n_bytes)

    def advanced(self, rows: int, n_bytes: int) -> None:  # noqa: D102
        self._observer.advanced(rows, n_bytes)

    def pass_finished(self, name: str) -> None:  # noqa: D102
        self.passes[-1]["seconds"] = time.monotonic() - self._began
        self._observer.pass_finished(name)

    def resumed(self, name: str, rows: int) -> None:  # noqa: D102
        self._known[name] = rows
        self._observer.resumed(name, rows)

    def warned(self, message: str) -> None:  # noqa: D102
        self._observer.warned(message)

    def stop_requested(self) -> bool:  # noqa: D102
        return self._observer.stop_requested()


def manifest_path(output: str) -> str:
    """Return where the manifest of an output is.

    >>> manifest_path("out/m.zarr")
    'out/m.zarr.manifest.json'
    """
    return f"{output}.manifest.json"


def write_manifest(output: str, content: dict[str, Any]) -> None:
    """Write the manifest of an output, with where and with what it was made."""
    made = {
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "versions": {"python": sys.version.partition(" ")[0], **{name: package_version(name) for name in _PACKAGES}},
    }
    write_text(manifest_path(output), json.dumps({**made, **content}, indent=1, default=str) + "\n")
    failpoint("manifest-written")


def package_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
