"""Plans of kernel PCA: what is chosen, what is refused and how it is said, and that the measured peak is at most the projected one."""

from __future__ import annotations

import json
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
from streampca.blocks import Segment
from streampca.engine.threads import Threads
from streampca.errors import MemoryBudgetError, UsageError
from streampca.kernels.functions import Linear, Rbf, Sigmoid
from streampca.memory import GIB, MIB
from streampca.planning import Limits, Plan
from streampca.planning.kernel import KernelRequest, default_features, plan_kernel
from streampca.sources.base import SourceInfo
from tests.cli.harness import environment

BASELINE = 150 * MIB


def facts(n_rows: int, n_features: int, dtype: Any = "float32", chunk_rows: int = 1, **others: Any) -> SourceInfo:
    """The facts of data that does not exist."""
    dtype = np.dtype(dtype)
    values = {"read_scratch": 2 * chunk_rows * n_features * dtype.itemsize} | others
    return SourceInfo(n_rows, n_features, dtype, (Segment(0, n_rows, chunk_rows),), n_rows * n_features * dtype.itemsize, "f", **values)


def planned(info: SourceInfo, budget: int = 4 * GIB, workers: int = 4, k: Any = 5, kernel: Any = None, **request: Any) -> Plan:
    return plan_kernel(info, KernelRequest(kernel or Rbf(1.0), k, **request), Limits(budget, workers, BASELINE))


def test_few_rows_are_exact_and_many_have_landmarks() -> None:
    assert planned(facts(2000, 10)).solver == "exact"
    assert planned(facts(2001, 10)).solver == "nystrom"
    assert planned(facts(2000, 10), n_features=100).solver == "nystrom"
    assert planned(facts(2000, 10, weighted=True)).solver == "nystrom"
    assert planned(facts(2000, 10), budget=330 * MIB, k=None).solver == "nystrom"  # the kernel matrix does not fit
    assert planned(facts(10**6, 10), method="fourier").solver == "fourier"


def test_the_number_of_landmarks_follows_rows_components_and_memory() -> None:
    assert [planned(facts(n, 10)).rank for n in (3000, 10_000, 10**9)] == [500, 800, 2000]
    assert planned(facts(10_000, 10), k=1000).rank == 4000 == default_features(10_000, 1000)
    assert planned(facts(100, 10), method="nystrom").rank == 100
    narrow = planned(facts(10**6, 10), budget=420 * MIB)
    assert 50 <= (narrow.rank or 0) < 2000
    assert narrow.peak_memory <= 420 * MIB
    assert planned(facts(3000, 10), k=0.9, method="fourier").rank == 500


def test_passes_and_bytes() -> None:
    plan = planned(facts(10**6, 50, chunk_rows=1000), scores=True)
    assert [stage.name for stage in plan.stages] == ["landmarks", "root", "scatter", "eigenvectors", "error", "scores"]
    assert plan.n_passes == 3
    assert [stage.bytes_read for stage in plan.stages if stage.name in ("scatter", "scores")] == [4 * 50 * 10**6] * 2
    assert "2,000 landmarks stand for the 1,000,000 rows" in plan.explain()
    exact = planned(facts(1000, 50), inverse=True)
    assert ([stage.name for stage in exact.stages], exact.n_passes) == (["rows", "kernel matrix", "pre-images"], 1)
    fourier = planned(facts(10**6, 50), method="fourier", n_features=400)
    assert [stage.name for stage in fourier.stages] == ["sample", "scatter", "eigenvectors", "error"]


def test_what_does_not_fit_is_refused_with_a_remedy() -> None:
    with pytest.raises(MemoryBudgetError, match=r"cannot hold stage .*MiB or more, or take fewer features: n_landmarks=\d+ fit"):
        planned(facts(10**6, 50), budget=400 * MIB, n_features=5000)
    with pytest.raises(MemoryBudgetError, match="n_random_features="):
        planned(facts(10**6, 50), budget=400 * MIB, n_features=5000, method="fourier")
    with pytest.raises(MemoryBudgetError, match=r"stage 'kernel matrix'.*or use method='nystrom'"):
        planned(facts(100_000, 50), method="exact")
    with pytest.raises(UsageError, match=r"number of landmarks, 100 .*raise n_landmarks"):
        planned(facts(10**6, 50), k=200, n_features=100)
    with pytest.raises(MemoryBudgetError, match="the process alone"):
        planned(facts(10**6, 50), budget=100 * MIB)


infos = st.builds(
    facts,
    n_rows=st.integers(2, 10**8),
    n_features=st.integers(1, 2000),
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    chunk_rows=st.integers(1, 20_000),
    in_memory=st.booleans(),
)


@settings(deadline=None, max_examples=40)
@given(infos, st.integers(250, 8000).map(lambda n: n * MIB), st.integers(1, 64), st.sampled_from([Rbf(1.0), Linear(), Sigmoid(0.1)]))
def test_the_cut_does_not_depend_on_the_workers_and_the_budget_holds(info: SourceInfo, budget: int, workers: int, kernel: Any) -> None:
    assume(info.n_rows // info.chunk_rows < 10**6)
    try:
        one = planned(info, budget, 1, 1, kernel)
    except MemoryBudgetError:
        with pytest.raises(MemoryBudgetError):
            planned(info, budget, workers, 1, kernel)
        return
    many = planned(info, budget, workers, 1, kernel)
    for name in ("block_rows", "shard_rows", "n_shards", "precision", "rank", "solver"):
        assert getattr(one, name) == getattr(many, name)
    assert many.peak_memory <= budget


def test_a_plan_for_users_reads_nothing(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", (5000, 8), "f4", chunks=(100, 8))
    plan = sp.plan(tmp_path / "x.h5", "kpca", 3, "1GiB", n_landmarks=200, scores=True)
    assert (plan.method, plan.solver, plan.n_passes, plan.rank) == ("kpca", "nystrom", 3, 200)
    fitted = sp.KernelPCA(3, n_landmarks=200).plan_for(sp.open_source(tmp_path / "x.h5"), scheduler=Threads(2))
    assert fitted.n_passes == 2


@pytest.mark.parametrize(
    ("shape", "chunk_rows", "budget", "method"),
    [
        ((60_000, 20), 1000, 700, {"method": "nystrom", "n_landmarks": 800, "fit_inverse_transform": True}),
        ((60_000, 20), 20_000, 500, {"method": "nystrom", "n_landmarks": 400, "kernel": "polynomial"}),
        ((40_000, 200), 1000, 500, {"method": "fourier", "n_random_features": 600}),
        ((1500, 20), 100, 700, {"method": "exact", "n_components": None, "fit_inverse_transform": True}),
        ((3000, 20), 100, 700, {"method": "exact"}),
    ],
    ids=str,
)
def test_the_measured_peak_is_at_most_the_projected_one(
    shape: tuple[int, int], chunk_rows: int, budget: int, method: dict[str, Any], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=np.random.default_rng(0).standard_normal(shape, np.float32), chunks=(chunk_rows, shape[1]))
    config = {
        "input": {"path": "x.h5"},
        "method": {"name": "kpca", "n_components": 10} | method,
        "memory": budget * MIB,
        "output": {"model": "m.zarr", "scores": "z.zarr"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "streampca", "run", "config.yaml", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    print({name: f"{result[name] / MIB:.1f} MiB" for name in ("peak_memory", "projected_memory")})
    assert result["peak_memory"] <= result["projected_memory"] <= result["memory_budget"]
