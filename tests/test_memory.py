"""Peak memory of whole runs, measured in processes of their own: at most the budget, at most what was projected, whatever the size."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from streampca.memory import MIB

ROOT = Path(__file__).parents[1]
BUDGET = 384 * MIB
Write = Callable[[str, int, int, int], Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Write float32 data chunk by chunk."""
    folder = tmp_path_factory.mktemp("data")

    def make(name: str, n_rows: int, n_features: int, chunk_rows: int) -> Path:
        path = folder / f"{name}.h5"
        if not path.exists():
            rng = np.random.default_rng(0)
            with h5py.File(path, "w") as file:
                dataset = file.create_dataset("X", (n_rows, n_features), "f4", chunks=(chunk_rows, n_features))
                for start in range(0, n_rows, chunk_rows):
                    rows = min(chunk_rows, n_rows - start)
                    dataset[start : start + rows] = rng.standard_normal((rows, n_features), np.float32)
        return path

    return make


def fit(path: Path, *options: str, budget: int = BUDGET) -> dict[str, Any]:
    command = [sys.executable, "-m", "streampca", "fit", str(path), "-k", "10", "--memory", str(budget), "--json", "--quiet", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["memory_budget"] == budget
    return result


def check(result: dict[str, Any]) -> None:
    print({name: f"{result[name] / MIB:.1f} MiB" for name in ("peak_memory", "projected_memory")}, result["rows"], "x", result["features"])
    assert result["peak_memory"] <= result["projected_memory"] <= result["memory_budget"]


@pytest.mark.parametrize("scores", [False, True], ids=["fit", "fit and scores"])
def test_the_peak_does_not_grow_with_the_data(write: Write, scores: bool, tmp_path: Path) -> None:
    peaks = []
    for name, n_rows in (("small", 100_000), ("large", 400_000)):
        path = write(name, n_rows, 256, 1000)
        options = ["--model", str(tmp_path / f"{name}-model.zarr")] + (["--scores", str(tmp_path / f"{name}.zarr")] if scores else [])
        result = fit(path, *options)
        check(result)
        peaks.append(result["peak_memory"])
    assert max(peaks) <= 1.1 * min(peaks)


@pytest.mark.parametrize(("workers", "budget"), [("1", 640), ("2", 1024)])
def test_wide_data_where_the_sums_dominate(write: Write, workers: str, budget: int) -> None:
    path = write("wide", 8_000, 2500, 500)
    check(fit(path, "--workers", workers, budget=budget * MIB))


def test_tall_chunks(write: Write) -> None:
    path = write("tall chunks", 100_000, 256, 20_000)
    check(fit(path))


def stored(folder: Path, kind: str, shape: tuple[int, int], chunks: tuple[int, int], dtype: str) -> Path:
    """Write a table in one of the formats, a few rows at a time: 40 directions that decay, and noise."""
    rng, path = np.random.default_rng(0), folder / f"x.{kind}"
    directions = rng.standard_normal((40, shape[1]), np.float32) * np.arange(1, 41, dtype=np.float32)[:, None] ** -0.7
    if kind == "h5":
        target: Any = h5py.File(path, "w").create_dataset("X", shape, dtype, chunks=chunks)
    elif kind == "zarr":
        target = zarr.create_array(path, shape=shape, dtype=dtype, chunks=chunks)
    else:
        target = np.lib.format.open_memmap(path, "w+", dtype, shape)
    for start in range(0, shape[0], chunks[0]):
        rows = min(chunks[0], shape[0] - start)
        block = rng.standard_normal((rows, 40), np.float32) @ directions + 0.3 * rng.standard_normal((rows, shape[1]), np.float32)
        target[start : start + rows] = (20 * block).astype(dtype)
    if kind == "h5":
        target.file.close()
    return path


@pytest.mark.parametrize(
    ("solver", "kind", "shape", "chunks", "dtype", "k", "budget"),
    [
        ("sketch", "h5", (1000, 20_000), (200, 2000), "f4", 20, 450),
        ("sketch", "zarr", (1500, 20_000), (500, 500), "i2", 50, 800),
        ("dual", "npy", (1000, 60_000), (100, 60_000), "i2", 50, 700),
        ("dual", "zarr", (500, 40_000), (500, 500), "f4", 10, 500),
        ("auto", "h5", (1000, 40_000), (1000, 1000), "f4", 10, 600),  # tall chunks of few columns: the dual
    ],
    ids=str,
)
def test_every_solver_keeps_to_its_projection(
    solver: str, kind: str, shape: tuple[int, int], chunks: tuple[int, int], dtype: str, k: int, budget: int, tmp_path: Path
) -> None:
    result = fit(stored(tmp_path, kind, shape, chunks, dtype), "--solver", solver, "-k", str(k), budget=budget * MIB)
    check(result)
    assert result["projected_memory"] <= 2 * result["peak_memory"]
    assert solver in ("auto", result["solver"])
    assert solver != "auto" or result["solver"] == "dual"


def test_chunks_taller_than_a_block_that_fits(tmp_path: Path) -> None:
    """Rows of 120 kB in chunks of 1000: a block is a part of a chunk row, each chunk is decoded several times."""
    path = stored(tmp_path, "zarr", (2000, 30_000), (1000, 1000), "f4")
    check(fit(path, "--solver", "sketch", "--workers", "1", budget=340 * MIB))
