"""The command line with plans that cut small data as large data would be: many blocks, shards and groups of shards.

``Kitchen`` runs many commands, each in a process of its own that is forked from one where everything is imported: a hundred kills take
seconds, not minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streampca import failpoints
from streampca.cli import main
from streampca.engine import tasks
from streampca.estimators import load
from streampca.jobs.work import Work
from streampca.planning import layout, scores
from streampca.sinks import Unfinished
from tests.cli.harness import ROOT, environment


def cut_small() -> None:
    layout.block_choices.__defaults__ = (4 * 1024,)
    layout.BLOCK_ROWS = 32
    layout.SHARD_BYTES = layout.MIN_SHARD_BYTES = 8 * 1024
    scores.SCORES_BLOCK_BYTES = 8 * 1024


def impute(model: str, data: str, to: str) -> None:
    """Fill missing entries as a command would: go on with what a killed one has left."""
    load(model).impute_to(data, to, unfinished=Unfinished.of(to, {"model": model, "data": data}, every=0))
    Work(to).remove()


def read_slowly(seconds: float) -> None:
    """Take so long over each block, to be met in the middle."""
    read_blocks = tasks.read_blocks

    def slow(*arguments: Any) -> Any:
        for each in read_blocks(*arguments):
            time.sleep(seconds)
            yield each

    tasks.read_blocks = slow  # type: ignore[assignment]


@dataclass(frozen=True)
class Served:
    """How a command ended: its exit code (-9: killed), what it wrote, how long it took."""

    code: int
    stdout: str
    stderr: str
    seconds: float


class Kitchen:
    """A process that forks one child per command."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.cli.small_shards", "--serve"]
        env = environment(OPENBLAS_NUM_THREADS="1")
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(
        self,
        *arguments: object,
        cwd: Path,
        signal_after: float | None = None,
        signal_when: str | None = None,
        number: int = signal.SIGKILL,
        **env: str,
    ) -> Served:
        """Run a command; send its process a signal after some seconds, or when there is a file of some pattern."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"arguments": [str(each) for each in arguments], "cwd": str(cwd), "number": int(number), "env": env}
        order |= {"after": signal_after, "when": signal_when}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return Served(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(json.dumps(_serve(order, Path(folder))) + "\n")
        sys.stdout.flush()


def _serve(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _cook(order, folder)
    sent = order["after"] is None and order["when"] is None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if not sent and _is_time(order, began):
            os.kill(child, order["number"])
            sent = True
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    out, err = ((folder / name).read_text() if (folder / name).exists() else "" for name in ("out", "err"))
    return {"code": code, "stdout": out, "stderr": err, "seconds": time.monotonic() - began}


def _is_time(order: dict[str, Any], began: float) -> bool:
    if order["when"] is not None:
        return any(Path(order["cwd"]).glob(order["when"]))
    return bool(time.monotonic() - began >= order["after"])


def _cook(order: dict[str, Any], folder: Path) -> None:
    """Be a command: never returns."""
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
        os.chdir(order["cwd"])
        os.environ.update(order["env"])
        failpoints._visits.clear()
        sys.argv = ["streampca", *order["arguments"]]
        read_slowly(float(os.environ.get("SECONDS_PER_BLOCK", "0")))
        if order["arguments"][0] == "impute":
            impute(*order["arguments"][1:])
        else:
            main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException as error:  # a traceback that the user would see
        sys.stderr.write(f"Traceback: {error!r}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    cut_small()
    if sys.argv[1:] == ["--serve"]:
        import distributed  # noqa: F401 - whatever a command may import is here already
        import h5py  # noqa: F401
        import zarr  # noqa: F401

        serve()
    else:
        read_slowly(float(os.environ.get("SECONDS_PER_BLOCK", "0")))
        main()
