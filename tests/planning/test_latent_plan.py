"""Plans of probabilistic PCA and factor analysis: the choice, its words, and peaks measured in processes of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import streampca as sp
from streampca.errors import MemoryBudgetError
from streampca.memory import GIB, MIB
from streampca.planning import Limits, Plan
from streampca.planning.latent import LatentRequest, holds_missing, plan_latent, plan_missing
from streampca.sources.base import SourceInfo
from tests.planning.test_covariance_plan import BASELINE, facts

ROOT = Path(__file__).parents[2]


def planned(info: SourceInfo, budget: int = 4 * GIB, workers: int = 4, r: int = 5, method: str = "ppca", **request: Any) -> Plan:
    return plan_latent(info, LatentRequest(method, r, **request), Limits(budget, workers, BASELINE))


infos = st.builds(
    facts,
    n_rows=st.integers(100, 10**8),
    n_features=st.integers(20, 20_000),
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    chunk_rows=st.integers(1, 2000),
)


@settings(deadline=None, max_examples=60)
@given(infos, st.sampled_from(["ppca", "fa"]), st.integers(1, 20), st.integers(200, 4000).map(lambda n: n * MIB), st.integers(1, 32))
def test_the_cut_does_not_depend_on_the_workers(info: SourceInfo, method: str, r: int, budget: int, workers: int) -> None:
    assume(info.n_rows // info.chunk_rows < 10**5)
    try:
        one = planned(info, budget, 1, r, method)
    except MemoryBudgetError as error:
        enough = re.search(r"Give a memory of (\d+)MiB or more", str(error))
        assert enough
        assert planned(info, int(enough[1]) * MIB, 1, r, method).peak_memory > budget
        return
    other = planned(info, budget, workers, r, method)
    for name in ("solver", "block_rows", "shard_rows", "n_shards", "rank"):
        assert getattr(one, name) == getattr(other, name)
    assert max(one.peak_memory, other.peak_memory) <= budget


@pytest.mark.parametrize(
    ("method", "how", "d", "budget", "solver", "passes"),
    [
        ("ppca", "auto", 500, 4 * GIB, "closed-form", 1),
        ("ppca", "closed-form", 500, 4 * GIB, "closed-form", 1),
        ("ppca", "em", 500, 4 * GIB, "em", 1),
        ("ppca", "auto", 8000, 1 * GIB, "subspace", 4),
        ("ppca", "closed-form", 8000, 1 * GIB, "subspace", 4),
        ("ppca", "auto", 30_000, 200 * GIB, "subspace", 4),
        ("fa", "auto", 500, 4 * GIB, "profile", 1),
        ("fa", "auto", 8000, 1 * GIB, "em", 14),
    ],
)
def test_the_choice(method: str, how: str, d: int, budget: int, solver: str, passes: int) -> None:
    plan = planned(facts(10**5, d), budget, method=method, how=how)
    assert (plan.method, plan.solver, plan.n_passes) == (method, solver, passes)
    assert plan.bytes_read == passes * facts(10**5, d).bytes_decoded
    assert plan.peak_memory <= budget


def test_memory_for_missing_entries_is_reserved_where_they_may_be() -> None:
    floats, integers = planned(facts(10**6, 200)), planned(facts(10**6, 200, "int32"), may_be_missing=False)
    assert holds_missing(floats)
    assert not holds_missing(integers)
    assert "if there are missing entries, EM takes one pass per iteration; its memory is reserved" in floats.explain()
    assert floats.max_passes == 102
    assert integers.max_passes is None
    assert floats.peak_memory >= plan_missing(facts(10**6, 200), LatentRequest("ppca", 5), Limits(4 * GIB, 4, BASELINE)).peak_memory
    assert not holds_missing(planned(facts(10**6, 200), how="closed-form"))
    known = plan_missing(facts(10**6, 200), LatentRequest("ppca", 5, max_iter=50), Limits(4 * GIB, 4, BASELINE))
    assert (known.n_passes, known.max_passes, known.solver) == (14, 52, "em-missing")


def test_a_budget_without_room_for_missing_entries_says_so() -> None:
    plan = planned(facts(10**5, 400), BASELINE + 120 * MIB, r=150)
    assert not holds_missing(plan)
    assert "the budget does not hold EM with missing entries" in plan.explain()


def test_the_public_function() -> None:
    X = np.zeros((1000, 10))
    assert sp.plan(X, method="ppca", n_components=3, memory="1GiB").solver == "closed-form"
    assert sp.plan(X.astype(int), method="fa", n_components=3, memory="1GiB").solver == "profile"
    scores = sp.plan(X, method="ppca", n_components=3, memory="1GiB", scores=True)
    assert scores.stages[-1].name == "scores"
    assert scores.n_passes == 2


# ------------------------------------------------------------------------------------------------- measured peaks

RUN = """
import json, sys
from streampca.events import Observer
from streampca.jobs import make_config, run_job
print(json.dumps(run_job(make_config(json.loads(sys.argv[1])), Observer()), default=str))
"""


@pytest.mark.parametrize(
    ("n", "d", "share", "method", "budget", "solver"),
    [
        (60_000, 300, 0.0, {"name": "ppca", "n_components": 10}, 448, "closed-form"),
        (3000, 1500, 0.0, {"name": "ppca", "n_components": 10, "method": "em"}, 640, "em"),
        (2500, 6000, 0.0, {"name": "ppca", "n_components": 10}, 448, "subspace"),
        (40_000, 200, 0.2, {"name": "ppca", "n_components": 10}, 448, "em-missing"),
        (3000, 1000, 0.0, {"name": "fa", "n_components": 4}, 640, "profile"),
        (2500, 6000, 0.0, {"name": "fa", "n_components": 4, "tol": 1e-4}, 448, "em"),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else None,
)
def test_the_measured_peak_is_at_most_the_projected_one(
    n: int, d: int, share: float, method: dict[str, Any], budget: int, solver: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    W = rng.standard_normal((3, d), np.float32)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("X", (n, d), "f4", chunks=(500, d))
        for start in range(0, n, 500):
            rows = min(500, n - start)
            block = rng.standard_normal((rows, 3), np.float32) @ W + rng.standard_normal((rows, d), np.float32)
            block[rng.random(block.shape) < share] = np.nan
            dataset[start : start + rows] = block
    content = {
        "input": {"path": str(tmp_path / "x.h5")},
        "method": method,
        "memory": budget * MIB,
        "output": {"model": str(tmp_path / "m.zarr"), "scores": str(tmp_path / "z.zarr")},
    }
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(content)], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print({name: f"{result[name] / MIB:.1f} MiB" for name in ("peak_memory", "projected_memory")}, result["passes"], "passes")
    assert result["solver"] == solver
    assert result["peak_memory"] <= result["projected_memory"] <= budget * MIB
