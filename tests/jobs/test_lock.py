from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streampca.errors import LockedError
from streampca.jobs.lock import lock_file, locked, refuse_if_locked
from tests.cli.harness import environment

HOLD = (
    "import sys, time\nfrom streampca.jobs.lock import locked\nwith locked(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(60)"
)


def holder(output: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, output], env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_the_second_is_told_who_the_first_is_and_a_dead_one_is_taken_over(tmp_path: Path) -> None:
    output = str(tmp_path / "m.zarr")
    process = holder(output)
    try:
        for attempt in (locked(output), locked(str(tmp_path / "z.npy"), output)):
            with pytest.raises(LockedError, match=rf"process {process.pid} on {socket.gethostname()}, since \d{{4}}-") as caught, attempt:
                pass
        assert caught.value.exit_code == 76
        with pytest.raises(LockedError):
            refuse_if_locked(output)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        assert lock_file(output).exists()
        with locked(output):
            assert json.loads(lock_file(output).read_text())["pid"] == os.getpid()
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.communicate()


def test_a_holder_on_another_machine_is_believed(tmp_path: Path) -> None:
    output = str(tmp_path / "m.zarr")
    lock_file(output).write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "2026-01-01 00:00:00"}))
    with pytest.raises(LockedError, match=r"process 1 on elsewhere.*remove .*streampca-lock"), locked(output):
        pass
    assert lock_file(output).exists()
    lock_file(output).write_text("")  # killed before it could sign
    with locked(output):
        pass


def test_folders_are_made_and_removed_unless_used(tmp_path: Path) -> None:
    with locked(str(tmp_path / "a" / "b" / "m.zarr"), str(tmp_path / "a" / "c" / "z.npy")):
        (tmp_path / "a" / "b" / "m.zarr").touch()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["a", "a/b", "a/b/m.zarr"]
