"""The measured process: ``python -m benchmarks.child TASK`` runs one task and prints one line of JSON.

The runner first imports and opens what it needs; the clock runs around the work only, and the comparison with the exact answer comes after.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from typing import Any

from benchmarks import meter
from benchmarks.runners import find
from benchmarks.task import Task


def measure(task: Task) -> dict[str, Any]:
    """Return what one run took and how good its answer is."""
    work = find(task.runner)(task)
    read, start = meter.bytes_read(), time.perf_counter()
    outcome = work() or {}
    seconds = time.perf_counter() - start
    after, peak = meter.bytes_read(), meter.peak_rss()
    report = {
        "seconds": seconds,
        "peak_rss": peak,
        "bytes_read": None if read is None or after is None else after - read,
        "passes": outcome.get("passes"),
        "error_first": None,
        "error_last": None,
        "one_minus_mev": None,
        "estimated_error": outcome.get("estimated_error"),
        "iteration_seconds": outcome.get("iteration_seconds"),
        "detail": detail() if callable(detail := outcome.get("detail")) else detail,
    }
    singular_values = outcome.get("singular_values")
    if callable(singular_values):  # what has to be read back from an output, outside the clock
        singular_values = singular_values()
    if singular_values is not None:
        from benchmarks.exact import errors

        report |= errors(task.data.exact, singular_values, outcome.get("components"))
    return report


def main() -> int:
    task = Task.from_dict(json.loads(sys.argv[1]))
    try:
        report = measure(task)
    except Exception as error:
        traceback.print_exc()
        report = {"failure": f"{type(error).__name__}: {error}"}
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
