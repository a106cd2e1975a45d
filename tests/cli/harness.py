"""What the tests of the command line share: running it, a small Dask cluster of processes, sample files, folder listings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streampca.cli import main

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COMMAND = [sys.executable, "-m", "streampca"]


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which this working copy is imported and no scheduler is named."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "COV_CORE", "COVERAGE"))}
    env["PYTHONPATH"] = str(ROOT)
    env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
    return {**env, **more}


def run(*arguments: object, cwd: Path, timeout: float = 60, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``streampca`` with these arguments in a process of its own."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=timeout, check=False)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run_here(arguments: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Done:
    """Run ``streampca`` with these arguments in this process and its current folder."""
    monkeypatch.setattr(sys, "argv", ["streampca", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    return Done(ended.value.code if isinstance(ended.value.code, int) else int(bool(ended.value.code)), output.out, output.err)


def start(*arguments: object, cwd: Path, **more: Any) -> subprocess.Popen[str]:
    """Start ``streampca`` and return at once."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=cwd, env=environment(), **options)


def write_h5(path: Path, X: np.ndarray, dataset: str = "X", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "a") as file:
        file.create_dataset(dataset, data=X, **options)
    return path


def table(n: int = 400, d: int = 8, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, d)) * np.arange(1, d + 1) + 3).astype(dtype)


def listing(folder: Path) -> dict[str, int]:
    """Return every file and folder below, with the sizes of the files."""
    return {str(path.relative_to(folder)): path.lstat().st_size if path.is_file() else -1 for path in sorted(folder.rglob("*"))}


def visible(folder: Path) -> dict[str, int]:
    """Return the same without what is hidden: what an interrupted run keeps to go on with."""
    return {name: size for name, size in listing(folder).items() if not any(part.startswith(".") for part in Path(name).parts)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class DaskProcesses:
    """A scheduler and its workers, each a process."""

    address: str
    file: Path


@contextmanager
def dask_processes(folder: Path, n_workers: int = 1) -> Iterator[DaskProcesses]:
    """Start ``dask scheduler`` and so many ``dask worker`` on the loopback, and end them."""
    address, file = f"tcp://127.0.0.1:{free_port()}", folder / "scheduler.json"
    port = address.rpartition(":")[2]
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard", "--scheduler-file", str(file)]
    worker = ["worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in [scheduler, *[worker] * n_workers]:
            with (folder / f"{command[0]}.log").open("ab") as log:
                processes.append(subprocess.Popen([str(BIN / "dask"), *command], cwd=folder, env=environment(), stdout=log, stderr=log))
        wait_until(file.exists, 30)
        yield DaskProcesses(address, file)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            end(process)


def wait_until(condition: Any, seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"waited {seconds} s in vain")
        time.sleep(0.02)


def end(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
