"""Every command as a user runs it: in a process of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml

import streampca as sp
from tests.cli.harness import listing, run, run_here, table, write_h5

COMMANDS = ("run", "plan", "fit", "transform", "update", "subtract", "merge", "inspect")
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d pass (scatter|scores): .+")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    write_h5(tmp_path / "x.h5", table(), chunks=(100, 8), compression="gzip")
    config = {
        "input": {"path": "x.h5"},
        "method": {"n_components": 2},
        "memory": "1GiB",
        "output": {"model": "out/m.zarr", "scores": "out/z.h5"},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process, which is faster."""
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", "500")
    return lambda *arguments: run_here(arguments, monkeypatch, capsys)


def read_json(text: str) -> dict[str, Any]:
    """Return the one JSON document that a text must be."""
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, tmp_path: Path) -> None:
    done = run(*command.split(), "--help", cwd=tmp_path, COLUMNS="200")
    assert done.returncode == 0
    assert done.stderr == ""
    if command:
        assert f"Example: streampca {command}" in done.stdout
        assert "--json" in done.stdout
    else:
        assert "75 interrupted" in done.stdout
        for each in COMMANDS:
            assert re.search(rf"│ {each} ", done.stdout)


def test_fit_writes_a_model_and_scores_and_sums_up(work: Path) -> None:
    done = run("fit", "x.h5", "-k", 3, "--memory", "1GiB", "--model", "m.zarr", "--scores", "z.zarr", cwd=work, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    for line in (
        r"input +.*x\.h5.*: 400 x 8 float64",
        r"solver +pca by covariance, 1 pass",
        r"components +3 with \d+\.\d+% of the variance",
    ):
        assert re.search(line, done.stdout), done.stdout
    assert re.search(r"memory +peak .*, projected .*, budget 1\.00 GiB", done.stdout)
    X = table()
    np.testing.assert_allclose(sp.load(work / "m.zarr").components_, sp.PCA(3).fit(X).components_, atol=1e-12)
    np.testing.assert_allclose(sp.open_source(work / "z.zarr").read(slice(None)), sp.PCA(3).fit_transform(X), atol=1e-12)


def test_without_a_terminal_progress_is_plain_log_lines(work: Path) -> None:
    done = run("fit", "x.h5", "-k", 3, "--scores", "z.npy", cwd=work)
    lines = done.stderr.splitlines()
    assert lines
    assert all(LOG_LINE.fullmatch(line) for line in lines), done.stderr
    for text in ("pass scatter: 400 rows", "pass scatter: done in", "pass scores: done in", "rows/s", "GB/s"):
        assert text in done.stderr
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stdout + done.stderr)


def test_quiet(work: Path) -> None:
    done = run("fit", "x.h5", "-k", 3, "--quiet", cwd=work)
    assert (done.returncode, done.stderr) == (0, "")


def test_fit_as_json(work: Path) -> None:
    done = run("fit", "x.h5", "-k", "0.9", "--model", "m.zarr", "--scores", "z.npy", "--whiten", "--standardize", "--json", cwd=work)
    assert done.stderr == ""
    summary = read_json(done.stdout)
    wanted = sp.PCA(0.9, standardize=True).fit(table())
    assert (summary["rows"], summary["features"], summary["dtype"], summary["method"], summary["solver"]) == (
        400,
        8,
        "float64",
        "pca",
        "covariance",
    )
    assert (summary["components"], summary["passes"], summary["warnings"]) == (wanted.n_components_, 1, [])
    assert summary["variance_kept"] == pytest.approx(wanted.explained_variance_ratio_.sum())
    np.testing.assert_allclose(summary["explained_variance_ratio"], wanted.explained_variance_ratio_)
    assert summary["output"] == {"model": "m.zarr", "scores": "z.npy", "report": None, "overwrite": False}
    assert summary["bytes_decoded"] == 400 * 8 * 8
    assert summary["bytes_stored"] > 0
    assert summary["peak_memory"] > 0
    assert 0 < summary["projected_memory"] <= summary["memory_budget"]
    assert set(summary["seconds"]) == {"fit", "write", "total"}
    assert sp.load(work / "m.zarr").whiten


def test_run_and_overrides(work: Path, here: Any) -> None:
    done = run("run", "job.yaml", "--set", "method.n_components=4", "--set", "output.scores=out/z.npy", "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    assert read_json(done.stdout)["components"] == 4
    assert sorted(each.name for each in (work / "out").iterdir()) == ["m.zarr", "m.zarr.manifest.json", "z.npy"]
    again = here("run", "job.yaml")
    assert again.code == 73
    assert "m.zarr exists already" in again.stderr
    assert here("run", "job.yaml", "--set", "output.overwrite=true").code == 0
    assert sp.load(work / "out" / "m.zarr").n_components_ == 2


def test_transform(work: Path) -> None:
    sp.PCA(3).fit(table()).save(work / "m.zarr")
    write_h5(work / "new.h5", table(50, seed=1).T, "raw/Y")
    done = run("transform", "m.zarr", "new.h5::raw/Y", "--samples-axis", 1, "--rows", "10:40", "--to", "z.npy", cwd=work)
    assert done.returncode == 0, done.stderr
    wanted = sp.load(work / "m.zarr").transform(table(50, seed=1)[10:40])
    np.testing.assert_allclose(np.load(work / "z.npy"), wanted, atol=1e-12)
    assert "z.npy" in done.stdout
    done = run("transform", "m.zarr", "new.h5", "--samples-axis", 1, "--to", "z.h5", "--json", cwd=work)
    summary = read_json(done.stdout)
    assert (summary["rows"], summary["components"], summary["output"]) == (50, 3, {"scores": "z.h5"})
    assert {"seconds", "warnings", "peak_memory"} <= set(summary)


def test_plan_says_what_a_run_would_do(work: Path) -> None:
    before = listing(work)
    done = run("plan", "job.yaml", cwd=work)
    assert done.returncode == 0, done.stderr
    for text in ("pca of 400 rows x 8 features, components: 2", "solver: covariance", "2 pass(es)", "projected peak memory", "1.00 GiB"):
        assert text in done.stdout
    plan = read_json(run("plan", "job.yaml", "--json", cwd=work).stdout)
    assert (plan["solver"], plan["n_passes"], plan["bytes_read"], plan["budget"]) == ("covariance", 2, 2 * 400 * 8 * 8, 2**30)
    assert {"peak_memory", "stages", "block_rows", "n_shards", "workers", "explanation", "reasons", "precision"} <= set(plan)
    assert listing(work) == before


def test_plan_reads_no_data(work: Path) -> None:
    """The chunks of one input are garbage and those of the other are gone: a plan does not notice, a run does."""
    with h5py.File(work / "x.h5") as file:
        places = [file["X"].id.get_chunk_info(i) for i in range(4)]
    with (work / "x.h5").open("r+b") as file:
        for place in places:
            file.seek(place.byte_offset)
            file.write(b"\xff" * place.size)
    assert run("plan", "job.yaml", cwd=work).returncode == 0
    broken = run("run", "job.yaml", cwd=work)
    assert broken.returncode == 65, broken.stderr
    assert "Traceback" not in broken.stderr
    assert not (work / "out").exists()


def test_inspect_a_file_and_a_model(work: Path, here: Any) -> None:
    facts = read_json(run("inspect", "x.h5", "--json", cwd=work).stdout)
    assert (facts["rows"], facts["features"], facts["dtype"], facts["dataset"], facts["missing_chunks"]) == (400, 8, "float64", "/X", 0)
    assert {"input", "bytes_decoded", "bytes_stored", "chunk_rows", "chunks", "filters", "checksum", "fingerprint"} <= set(facts)
    done = here("inspect", "x.h5::X")
    assert re.search(r"rows +400", done.stdout)
    assert re.search(r"bytes decoded +25\.0 KiB", done.stdout)

    sp.PCA(3, whiten=True).fit(table()).save(work / "m.zarr")
    facts = read_json(here("inspect", "m.zarr", "--json").stdout)
    assert (facts["kind"], facts["rows"], facts["features"], facts["components"]) == ("pca", 400, 8, 3)
    assert (facts["standardized"], facts["whitened"], facts["can_be_updated"]) == (False, True, True)
    assert {"solver", "variance_kept", "explained_variance_ratio", "noise_variance"} <= set(facts)
    assert re.search(r"components +3", here("inspect", "m.zarr").stdout)


def test_errors_as_json(work: Path) -> None:
    done = run("fit", "x.h5", "-k", 99, "--json", cwd=work)
    assert done.returncode == 2
    error = read_json(done.stdout)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 2)
    assert done.stderr == f"error: {error['message']}\n"


def test_names_that_look_like_markup_are_shown_as_they_are(work: Path, here: Any) -> None:
    name = "[bold]x[/red] :smile:.h5"
    write_h5(work / name, table())
    for arguments in (("inspect", name), ("fit", name, "-k", 1, "--model", "[red]m.zarr")):
        done = here(*arguments)
        assert done.code == 0, done.stderr
        assert name in done.stdout
    assert "[red]m.zarr" in done.stdout


def test_missing_chunks_are_warned_of(work: Path, here: Any) -> None:
    with h5py.File(work / "holes.h5", "w") as file:
        file.create_dataset("X", (400, 8), "f8", chunks=(100, 8))[:200] = table(200)
    done = here("fit", "holes.h5", "-k", 2, "--quiet")
    assert done.code == 0
    assert re.fullmatch(r"warning: 2 stored chunk\(s\) of .*holes\.h5.* are absent and read as the fill value\n", done.stderr)
    assert len(read_json(here("fit", "holes.h5", "-k", 2, "--json").stdout)["warnings"]) == 1
    assert here("fit", "holes.h5", "-k", 2, "--missing-chunks", "error").code == 65
    assert here("fit", "holes.h5", "-k", 2, "--missing-chunks", "fill", "--quiet").stderr == ""


def test_columns_by_number_name_and_range(work: Path, here: Any) -> None:
    write_h5(work / "x.h5", np.array([f"c{i}" for i in range(8)], dtype="S2"), "feature_names")
    for columns, wanted in (("1,3", [1, 3]), ("c5,c0", [5, 0]), ("2:6", [2, 3, 4, 5])):
        done = here("fit", "x.h5", "--columns", columns, "--model", "m.zarr", "--overwrite", "--quiet")
        assert done.code == 0, done.stderr
        np.testing.assert_allclose(sp.load(work / "m.zarr").mean_, table()[:, wanted].mean(axis=0))
