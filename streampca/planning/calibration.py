"""A rough estimate of the time of a plan, from a short measurement of this machine's speed. Reads no data."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from streampca.planning.plans import Plan

READ_RATE = 0.6e9  # decoded bytes a second and worker: a common codec, a warm file
_SIZE = 256
_START = 0.2  # seconds before the first row


@cache
def multiply_rate(precision: str) -> float:
    """Return the floating-point operations a second of one thread's products, measured in some milliseconds."""
    from streampca.engine import in_pass

    matrix = np.ones((_SIZE, _SIZE), precision)
    best = np.inf
    with in_pass():
        for _ in range(20):
            began = time.perf_counter()
            matrix @ matrix
            best = min(best, time.perf_counter() - began)
    return 2.0 * _SIZE**3 / best


def estimated_seconds(plan: Plan) -> float:
    """Return about how long a plan takes, if its files are warm and the machine is free."""
    rate = multiply_rate("float32" if plan.precision == "float32" else "float64")
    seconds = _START
    for stage in plan.stages:
        workers = plan.workers if stage.bytes_read else 1
        seconds += (stage.bytes_read / READ_RATE + stage.flops / (0.6 * rate)) / workers
    return seconds
