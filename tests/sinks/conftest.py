from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MOUNT = 'mount -t tmpfs -o size=2m tmpfs "$0" && '


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[str], list[str]]:
    """Turns a shell script into a command that runs it with $0, its first argument, being a disk of 2 MiB."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")

    def command(script: str) -> list[str]:
        return ["unshare", "-rm", "sh", "-c", MOUNT + script]

    if subprocess.run([*command("true"), tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("needs a user namespace that may mount")
    return command
