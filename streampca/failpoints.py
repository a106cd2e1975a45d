"""Places where a test may kill the process: ``STREAMPCA_FAILPOINT=name[:count]`` kills it the count-th time it comes there.

Without the variable a failpoint costs one look into a dictionary.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "STREAMPCA_FAILPOINT"
NAMES = (
    "checkpoint-before-rename",  # a state is written under its hidden name
    "checkpoint-written",
    "pass-finished",
    "rows-noted",  # in mid-transform
    "scores-before-rename",
    "scores-renamed",
    "model-before-write",
    "model-before-rename",
    "model-renamed",
    "manifest-written",
    "run-complete",  # before the work folder is removed
)
_visits: dict[str, int] = {}


def failpoint(name: str) -> None:
    """Kill this process if a test asks for it at this place."""
    wanted = os.environ.get(VARIABLE)
    if not wanted or wanted.partition(":")[0] != name:
        return
    _visits[name] = _visits.get(name, 0) + 1
    if _visits[name] == int(wanted.partition(":")[2] or 1):
        os.kill(os.getpid(), signal.SIGKILL)
