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
ROW_KEYS |= {"sizes_read", "iteration_seconds", "estimated_error"}
TALL = ("fit", "peers", "transform", "growth", "profile")
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
    return bench(tmp_path_factory.mktemp("bench"), "--format", "hdf5-gzip", "--case", *TALL)


@pytest.mark.slow
def test_every_case_has_the_documented_keys(numbers):
    assert set(numbers) == {"stdout", "size", "bits", "machine", "cases"}
    assert list(numbers["cases"]) == list(TALL)
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
@pytest.mark.parametrize(
    ("case", "lines", "line"),
    [
        ("wide", 4, "| 60 x 900 | scikit-learn PCA randomized (in memory) |"),
        ("spectrum", 2, "| i^-0.5 | streampca, tol=1e-6 |"),
    ],
)
def test_wide_cases_know_their_errors(tmp_path, case, lines, line):
    found = bench(tmp_path, "--case", case)
    rows = found["cases"][case]["rows"]
    assert all(set(row) == ROW_KEYS for row in rows)
    assert all(row["failure"] is None or row["failure"].startswith("ModuleNotFoundError") for row in rows)
    assert all(row["one_minus_mev"] is not None for row in rows if row["failure"] is None)
    ours = [row for row in rows if row["who"].startswith("streampca")]
    assert len(ours) == lines
    assert all(row["one_minus_mev"] <= (1e-6 if "tol" in row["who"] else 1e-3) for row in ours)
    assert all(row["estimated_error"] is not None and row["sizes_read"] > 0.9 for row in ours)
    assert line in found["stdout"]


def test_missing_values_are_timed_by_iteration(tmp_path):
    ours, theirs = bench(tmp_path, "--case", "missing")["cases"]["missing"]["rows"]
    assert ours["failure"] is None
    assert 0 < ours["iteration_seconds"] < ours["seconds"]
    assert theirs["failure"] is None or theirs["failure"].startswith("ModuleNotFoundError")


@pytest.mark.slow
def test_kernel_is_compared_with_the_floor(tmp_path):
    rows = bench(tmp_path, "--case", "kernel")["cases"]["kernel"]["rows"]
    assert [row["failure"] for row in rows] == [None] * 6
    assert [row["who"] for row in rows[:2]] == ["floor", "streampca"]
    assert all(row["ratio_to_floor"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "lines"), [("nightly", 7), ("sparse", 4), ("ppca", 5)])
def test_every_line_of_the_other_cases_runs(tmp_path, case, lines):
    rows = bench(tmp_path, "--case", case)["cases"][case]["rows"]
    assert [row["failure"] for row in rows] == [None] * lines
    assert all(row["details"] for row in rows if row["who"] != "streampca")


def test_selection_asks_every_criterion(tmp_path):
    cells = bench(tmp_path, "--case", "selection")["cases"]["selection"]["cells"]
    assert [cell["strength"] for cell in cells] == [1, 1.5, 2, 4, 16] * 2
    assert {"bic", "aic", "gavish-donoho", "parallel", "mle"} <= set(cells[0]["found"])
    assert "mle" not in cells[-1]["found"]  # it needs more rows than columns
    assert cells[4]["found"]["parallel"] == cells[9]["found"]["parallel"] == 1


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


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("power-0.3", np.arange(1, 21) ** -0.3),
        ("power-1", 1 / np.arange(1, 21)),
        ("equal", (1 + np.arange(20) // 2) ** -0.5),
    ],
)
def test_spectra_are_as_said(modules, tmp_path, kind, expected):
    dataset, generate, exact = (modules(each) for each in ("dataset", "generate", "exact"))
    data = dataset.Dataset(str(tmp_path), 90, 20, 8, 23, kind)
    generate.ensure(data, ())
    rows = np.concatenate([block for _, block in generate.blocks(data)]).astype(np.float64)
    _, s, v = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(s / s[0], expected, rtol=1e-5)
    assert np.square(rows - rows.mean(axis=0)).mean() == pytest.approx(1)
    assert exact.errors(data.exact, s[:8], v[:8])["one_minus_mev"] < 1e-20


def test_clusters_come_one_after_another(modules, tmp_path):
    dataset, generate = (modules(each) for each in ("dataset", "generate"))
    data = dataset.Dataset(str(tmp_path), 160, 30, 4, 23, "clusters")
    rows = np.concatenate([block for _, block in generate.blocks(data)])
    centres = rows.reshape(8, 20, 30).mean(axis=1)
    assert np.linalg.matrix_rank(centres, tol=1) == 8
    assert np.abs(rows.reshape(8, 20, 30) - centres[:, None]).max() < 1


@pytest.mark.parametrize("method", ["by_products", "by_lanczos"])
def test_exact_answers_of_wide_tables(modules, tmp_path, method):
    dataset, generate, exact, stored = (modules(each) for each in ("dataset", "generate", "exact", "stored"))
    data = dataset.Dataset(str(tmp_path), 400, 600, 8, 23, "wide")
    rows = np.concatenate([block for _, block in generate.blocks(data)])
    s, v = getattr(stored, method)(rows, stored.column_means(rows), 8)
    centred = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    _, exact_s, exact_v = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(s, exact_s[:8], rtol=1e-13)
    assert exact.one_minus_mev(v.T, exact_v[:8]) < 1e-20


def test_exact_answer_of_a_wide_table_is_stored(modules, tmp_path, monkeypatch):
    dataset, generate, exact, stored = (modules(each) for each in ("dataset", "generate", "exact", "stored"))
    monkeypatch.setattr(exact, "SMALL", 100)
    monkeypatch.setattr(stored, "SMALL", 100)
    monkeypatch.setattr(stored, "WORK", 2**16)  # many slabs
    data = dataset.Dataset(str(tmp_path), 400, 600, 8, 23, "wide")
    generate.ensure(data, ("hdf5-gzip",))
    rows = np.concatenate([block for _, block in generate.blocks(data)]).astype(np.float64)
    _, s, v = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    found = exact.errors(data.exact, s[:8], v[:8])
    assert max(found["error_first"], found["error_last"]) < 1e-13
    assert found["one_minus_mev"] < 1e-20
    assert {path.name for path in data.folder.iterdir()} == {"hdf5-gzip.h5", "exact-8.npz"}  # and no scratch


def test_document_ends_with_the_profile(modules, tmp_path):
    document, bench_module, compare, dataset, cases = (modules(each) for each in ("document", "bench", "compare", "dataset", "cases"))
    described = bench_module.Bench(dataset.SIZES["tiny"], str(tmp_path), compare.Settings())
    sections = {name: bench_module.Section(f"table of {name}") for name in cases.CASES}
    document.write(tmp_path / "benchmarks.md", "tiny", described, {"cores": "2"}, sections)
    text = (tmp_path / "benchmarks.md").read_text()
    *_, last = text.split("\n## ")
    assert last.startswith("Where the remaining time goes\n\n*Measured on 20")
    assert last.endswith(".*\n\ntable of profile\n")
    assert ", size tiny, the best of 3, 23 bits of mantissa, environment 1.*" in text
    assert "- **Environment 1.** 2 cores\n" in text


def test_document_keeps_the_sections_of_other_cases(modules, tmp_path):
    document, bench_module, compare, dataset = (modules(each) for each in ("document", "bench", "compare", "dataset"))
    path = tmp_path / "benchmarks.md"

    def write(size: str, cores: str = "2", **sections: str) -> str:
        described = bench_module.Bench(dataset.SIZES[size], str(tmp_path), compare.Settings())
        document.write(path, size, described, {"cores": cores}, {name: bench_module.Section(text) for name, text in sections.items()})
        return path.read_text()

    write("full", fit="old fit", profile="old profile")
    text = write("small", wide="new wide")
    assert write("small", wide="new wide") == text  # nothing piles up
    order = [text.index(each) for each in ("# Benchmarks", "old fit", "new wide", "old profile")]
    assert order == sorted(order)
    assert text.count(", size full,") == 2
    assert text.count(", size small,") == 1
    text = write("small", cores="4", fit="new fit")
    assert "old fit" not in text
    assert text.count(", size full,") == 1
    assert "- **Environment 1.** 2 cores\n- **Environment 2.** 4 cores\n" in text
    text = write("small", cores="4", wide="newer wide", profile="new profile")
    assert "- **Environment 2.** 4 cores\n" in text
    assert "Environment 1" not in text  # no section is of it any more


def test_part_of_a_section_is_not_written(modules, capsys):
    main = modules("__main__")
    assert main.parse(["--write", "--case", "wide"]).write
    with pytest.raises(SystemExit):
        main.parse(["--write", "--format", "hdf5-none"])
    assert "leave --format out" in capsys.readouterr().err
