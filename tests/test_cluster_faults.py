"""Workers and the scheduler of a real cluster of processes, killed in the middle of a run of the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from distributed import Client

from tests.cli.harness import BIN, ROOT, end, environment, free_port, table, wait_until, write_h5
from tests.random_kills import contents

SMALL = [sys.executable, "-m", "tests.cli.small_shards"]


@dataclass
class Processes:
    """A scheduler and three workers, whose nannies start them again."""

    address: str
    scheduler: subprocess.Popen[bytes]


@contextmanager
def processes(folder: Path, n_workers: int = 3) -> Iterator[Processes]:
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"]
    worker = [
        "worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--preload",
        "tests.cli.slow_worker",
        "--local-directory",
        str(folder),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in [scheduler, *[worker] * n_workers]:
            with (folder / f"{len(running)}.log").open("wb") as log:
                running.append(subprocess.Popen([str(BIN / "dask"), *command], cwd=ROOT, env=environment(), stdout=log, stderr=log))
        yield Processes(address, running[0])
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            end(process)


def command(data: Path, *more: object) -> list[str]:
    options = ["-k", 3, "--solver", "sketch", "--standardize", "--memory", "1GiB", "--checkpoint-every", 0, "--model", "m.zarr", *more]
    return [*SMALL, "fit", str(data), *map(str, options)]


def start(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(arguments, cwd=cwd, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def undisturbed(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """The data, and what a run on local threads leaves."""
    data = write_h5(tmp_path / "x.h5", table(1600, 16), chunks=(32, 16), compression="gzip")
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    process = start(command(data), folder)
    _, heard = process.communicate(timeout=60)
    assert process.returncode == 0, heard
    return data, contents(folder)


@pytest.mark.slow
def test_a_worker_is_killed_in_every_pass(undisturbed: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    data, wanted = undisturbed
    killed: list[int] = []
    with processes(tmp_path) as cluster, Client(cluster.address, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)
        (tmp_path / "work").mkdir()
        process = start(command(data, "--scheduler", cluster.address), tmp_path / "work")
        heard = ""
        try:
            assert process.stderr is not None
            for line in process.stderr:
                heard += line
                if "pass" in line and "done" not in line and "rows" in line:
                    pids = sorted(client.run(os.getpid, on_error="ignore").values())
                    time.sleep(0.3)
                    os.kill(pids[0], signal.SIGKILL)
                    killed.append(pids[0])
            assert process.wait(120) == 0, heard
        finally:
            process.kill()
            end(process)
            process.stderr.close()  # type: ignore[union-attr]
    assert len(killed) >= 2
    assert contents(tmp_path / "work", hidden=True) == wanted
    print(f"{len(killed)} workers killed, one in each pass: same bytes")


@pytest.mark.slow
def test_the_scheduler_is_killed_and_the_run_goes_on_elsewhere(undisturbed: tuple[Path, dict[str, bytes]], tmp_path: Path) -> None:
    data, wanted = undisturbed
    work = tmp_path / "work"
    work.mkdir()
    with processes(tmp_path) as cluster:
        with Client(cluster.address, set_as_default=False) as client:
            client.wait_for_workers(3, timeout=60)
        process = start(command(data, "--scheduler", cluster.address), work)
        try:
            wait_until(lambda: any(work.glob(".m.zarr.streampca-run/passes/*.zarr")), 60)
            cluster.scheduler.kill()
            began = time.monotonic()
            _, heard = process.communicate(timeout=60)
            seconds = time.monotonic() - began
        finally:
            process.kill()
            end(process)
    assert process.returncode == 75, heard
    assert "Traceback" not in heard
    assert "run again" in heard
    assert seconds < 30
    assert [path.name for path in work.iterdir()] == [".m.zarr.streampca-run"]
    again = start(command(data), work)
    _, heard = again.communicate(timeout=60)
    assert again.returncode == 0, heard
    assert "are done, by a run that was interrupted" in heard
    assert contents(work, hidden=True) == wanted
    print(f"scheduler killed: exit 75 after {seconds:.1f} s; gone on with on local threads: same bytes")
