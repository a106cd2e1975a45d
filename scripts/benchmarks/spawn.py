"""Run a task in a fresh interpreter and return its report; whatever goes wrong there becomes a report too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.task import Task

SCRIPTS = Path(__file__).resolve().parents[1]


def run(task: Task, timeout: float) -> dict[str, Any]:
    """Return the report of a task, with the seconds of the whole process."""
    command = [sys.executable, "-m", "benchmarks.child", json.dumps(task.to_dict())]
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=_environment(), check=False)
    except subprocess.TimeoutExpired:
        return {"failure": f"stopped after {timeout:g} s", "process_seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    return {**_report(done), "process_seconds": seconds}


def _report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.splitlines()
    try:
        report: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):  # killed, or it crashed
        return {"failure": f"ended with code {done.returncode}", "stderr": done.stderr[-2000:]}
    return {**report, "stderr": done.stderr[-2000:]} if "failure" in report else report


def _environment() -> dict[str, str]:
    """Return the environment of a task: the modules here and the package of this checkout come first."""
    paths = [str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
