"""scripts/bench on tables of a few rows: it runs, its numbers have the documented names, and its floor really decodes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
ROW_KEYS = {"label", "who", "seconds", "ratio_to_floor", "ratio_to_us", "process_seconds", "peak_rss", "bytes_read", "passes"}
ROW_KEYS |= {"error_first", "error_last", "one_minus_mev", "parts", "details", "failure", "runs"}
FORMAT_NAMES = ("hdf5-none", "hdf5-gzip", "hdf5-blosc", "zarr3-zstd", "zarr2-blosc")


def bench(data: Path, *options: str) -> dict[str, Any]:
    """Run the command at its smallest size and return its JSON."""
    out = data / "numbers.json"
    command = [sys.executable, "-m", "benchmarks", "--size", "tiny", "--repeat", "1", "--data", str(data), "--json", str(out), *options]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {"stdout": done.stdout, **json.loads(out.read_text())}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return bench(tmp_path_factory.mktemp("bench"), "--format", "hdf5-gzip")


@pytest.mark.slow
def test_every_case_has_the_documented_keys(numbers):
    assert set(numbers) == {"stdout", "size", "bits", "machine", "cases"}
    assert list(numbers["cases"]) == ["fit", "peers", "transform", "growth", "profile"]
    for name in ("fit", "peers", "transform", "growth"):
        assert all(set(row) == ROW_KEYS for row in numbers["cases"][name]["rows"])
    assert set(numbers["cases"]["profile"]) == {"total", "cores", "parts"}


@pytest.mark.slow
def test_only_peers_that_are_not_installed_fail(numbers):
    rows = [row for case in numbers["cases"].values() for row in case.get("rows", [])]
    failures = [row["failure"] for row in rows if row["failure"]]
    assert all(failure.startswith(("ModuleNotFoundError", "ImportError")) for failure in failures), failures
    assert {row["who"] for row in rows if row["failure"] is None} > {"floor", "streampca", "scikit-learn PCA (in memory)"}


@pytest.mark.slow
def test_our_answers_are_exact_and_compared_with_the_floor(numbers):
    ours = [row for case in numbers["cases"].values() for row in case.get("rows", []) if row["who"] == "streampca"]
    assert len(ours) == 1 + 1 + 1 + 3
    assert all(max(row["error_first"], row["error_last"]) < 1e-7 for row in ours)
    assert all(row["ratio_to_floor"] > 0 and row["ratio_to_us"] == 1 for row in ours)
    assert "| hdf5-gzip | streampca |" in numbers["stdout"]


@pytest.mark.slow
def test_profile_sees_reading_and_updates(numbers):
    parts = numbers["cases"]["profile"]["parts"]
    assert {"opening", "planning", "reading and decoding", "updates", "eigh"} <= set(parts)


def test_a_run_that_takes_too_long_is_a_row_that_says_so(tmp_path):
    rows = bench(tmp_path, "--case", "fit", "--format", "hdf5-none", "--timeout", "0.01")["cases"]["fit"]["rows"]
    assert [row["failure"] for row in rows] == ["stopped after 0.01 s"] * 2


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports modules of the benchmarks."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", FORMAT_NAMES)
def test_floor_decodes_the_rows_that_were_written(modules, tmp_path, name):
    if name == "hdf5-blosc":
        pytest.importorskip("hdf5plugin")
    dataset, generate, decode, task = (modules(each) for each in ("dataset", "generate", "runners.decode", "task"))
    data = dataset.Dataset(str(tmp_path), 9_000, 64, 5)
    generate.ensure(data, (name,))
    _, block = next(generate.blocks(data))
    job = decode.JOBS[name](task.Task("decode", data, name))
    out = np.zeros(job.decoded, np.uint8)
    job.fill(job.pieces[0], np.zeros(job.stored, np.uint8), out)
    rows = out.view(np.float32).reshape(-1, 64)[: data.chunk_rows]
    assert np.array_equal(rows, block[: len(rows)])
    assert sum(1 for _ in job.pieces) * job.decoded >= data.n_rows * data.row_bytes


def test_exact_answer_is_that_of_numpy(modules, tmp_path):
    dataset, generate, exact = (modules(each) for each in ("dataset", "generate", "exact"))
    data = dataset.Dataset(str(tmp_path), 9_000, 64, 20)
    generate.ensure(data, ())
    rows = np.concatenate([block for _, block in generate.blocks(data)]).astype(np.float64)
    _, s, v = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    found = exact.errors(data.exact, s[:20], v[:20])
    assert max(found["error_first"], found["error_last"]) < 1e-13
    assert found["one_minus_mev"] < 1e-25
    assert s[0] / s[19] == pytest.approx(4.6, rel=0.1)


def test_document_ends_with_the_profile(modules, tmp_path):
    document, bench_module, compare, dataset, cases = (modules(each) for each in ("document", "bench", "compare", "dataset", "cases"))
    described = bench_module.Bench(dataset.SIZES["tiny"], str(tmp_path), compare.Settings())
    sections = {name: bench_module.Section(f"table of {name}") for name in cases.CASES}
    document.write(tmp_path / "benchmarks.md", "tiny", described, {"cores": "2"}, sections)
    text = (tmp_path / "benchmarks.md").read_text()
    assert text.rstrip().endswith("## Where the remaining time goes\n\ntable of profile")
    assert "3,000 x 32 float32" in text
