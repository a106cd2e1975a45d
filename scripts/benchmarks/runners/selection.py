"""Every criterion that needs no level of its own, asked for the rank of tables whose rank is known."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.runners import Work
from benchmarks.task import Task
from streampca.errors import StreamPCAError
from streampca.selection import CRITERIA, select_components

ASKED = [name for name, criterion in CRITERIA.items() if not criterion.takes & {"threshold", "held_out"}]


def run(task: Task) -> Work:
    """Return, for each strength, how often each criterion was right."""
    data, trials = task.data, task.options["trials"]
    label = f"{data.n_rows:,} x {data.n_features:,}, {data.k}"

    def work() -> dict[str, Any]:
        rng = np.random.default_rng(0)
        cells = []
        for strength in task.options["strengths"]:
            answers = [
                _ask(_spectrum(rng, data.n_rows, data.n_features, data.k, strength), data.n_rows, data.n_features) for _ in range(trials)
            ]
            known = [name for name in ASKED if all(answer[name] is not None for answer in answers)]
            found = {name: float(np.mean([answer[name] == data.k for answer in answers])) for name in known}
            cells.append({"label": label, "strength": strength, "found": found})
        return {"detail": json.dumps(cells)}

    return work


def _spectrum(rng: np.random.Generator, n: int, d: int, rank: int, strength: float) -> np.ndarray:
    """Return the variances of n normal rows; any basis will do, so the directions are the first columns."""
    x = rng.standard_normal((n, d))
    x[:, :rank] *= np.sqrt(1 + strength * np.sqrt(d / n) * np.linspace(3, 1, rank))
    return np.linalg.svd(x - x.mean(axis=0), compute_uv=False) ** 2 / (n - 1)


def _ask(variances: np.ndarray, n: int, d: int) -> dict[str, int | None]:
    """Return the answer of each criterion; None where it does not apply to this shape."""
    answers: dict[str, int | None] = {}
    for name in ASKED:
        try:
            answers[name] = select_components(variances, name, n_samples=n, n_features=d).k
        except StreamPCAError:
            answers[name] = None
    return answers
