from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import streampca as sp
from tests.cli.harness import run as run_apart
from tests.cli.harness import run_here, table, write_h5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    X = table()
    X[3] += 500
    write_h5(tmp_path / "d.h5", X)
    sp.PCA(3).fit(X).save(tmp_path / "m.zarr")
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *arguments: run_here(arguments, monkeypatch, capsys)


def test_report_with_and_without_data(folder: Path, run: Any) -> None:
    assert run("report", "m.zarr", "--to", "a.html").code == 0
    done = run("report", "m.zarr", "--to", "out/b.html", "--data", "d.h5", "--json")
    assert (done.code, json.loads(done.stdout)["rows_read"]) == (0, 400)
    assert "one more pass" in (folder / "a.html").read_text()
    assert "row 3:" in (folder / "out" / "b.html").read_text()


def test_report_takes_the_manifest_beside_the_model(folder: Path, run: Any) -> None:
    assert run("fit", "d.h5", "-k", 2, "--model", "n.zarr", "-q").code == 0
    assert run("report", "n.zarr", "--to", "a.html").code == 0
    assert "peak memory" in (folder / "a.html").read_text()


def test_report_since_an_older_model(folder: Path, run: Any) -> None:
    write_h5(folder / "more.h5", table()[:100] * 2)
    assert run("update", "m.zarr", "more.h5", "--to", "n.zarr", "-q").code == 0
    for name, options in (("a.html", ()), ("b.html", ("--since", "m.zarr"))):  # its manifest says what it was made of
        assert run("report", "n.zarr", "--to", name, *options).code == 0
        assert "400 before, 500 now" in (folder / name).read_text()
    assert run("report", "m.zarr", "--to", "c.html").code == 0
    assert "Drift" not in (folder / "c.html").read_text()
    sp.PCA(1).fit(table()[:, :2]).save(folder / "other.zarr")
    done = run("report", "n.zarr", "--to", "d.html", "--since", "other.zarr")
    assert (done.code, "has 2 features" in done.stderr, (folder / "d.html").exists()) == (2, True, False)


def test_report_and_pictures_of_a_kernel(folder: Path, run: Any) -> None:
    assert run("fit", "d.h5", "--method", "kpca", "-k", 2, "--model", "k.zarr", "--scores", "z.npy", "--report", "a.html", "-q").code == 0
    assert "density of 400 rows" in (folder / "a.html").read_text()
    for kind, code in (("scree", 0), ("biplot", 0), ("loadings", 2), ("outliers", 2)):
        assert run("plot", kind, "k.zarr", "--to", f"{kind}.svg", "--data", "d.h5").code == code


def test_report_refuses(folder: Path, run: Any) -> None:
    (folder / "a.html").write_text("mine")
    assert run("report", "m.zarr", "--to", "a.html").code == 73
    assert run("report", "none.zarr", "--to", "b.html").code == 65
    assert run("report", "m.zarr", "--to", "b.html", "--data", "none.h5").code == 65
    assert not (folder / "b.html").exists()
    assert run("report", "m.zarr", "--to", "a.html", "--overwrite").code == 0


@pytest.mark.parametrize("kind", ["scree", "biplot", "loadings", "outliers"])
def test_plot(folder: Path, run: Any, kind: str) -> None:
    assert run("plot", kind, "m.zarr", "--to", "p.png", "--data", "d.h5", "--dpi", 40).code == 0
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert run("plot", kind, "m.zarr", "--to", "p.svg", "--data", "d.h5", "--theme", "dark").code == 0
    assert "<text" in (folder / "p.svg").read_text()


def test_plot_refuses(folder: Path, run: Any) -> None:
    for arguments, code, words in [
        (("scee", "m.zarr", "--to", "p.png"), 2, "Did you mean 'scree'"),
        (("scree", "m.zarr", "--to", "p.txt"), 73, "must end in .png, .svg, .pdf"),
        (("outliers", "m.zarr", "--to", "p.png"), 2, "--data"),
        (("loglike", "m.zarr", "--to", "p.png"), 2, "no log-likelihood"),
        (("scree", "m.zarr", "--to", "p.png", "--theme", "blue"), 2, "light, dark"),
    ]:
        done = run("plot", *arguments)
        assert (done.code, words in done.stderr) == (code, True), done
    assert [path.name for path in folder.glob("p.*")] == []


def test_doctor(folder: Path, run: Any) -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    assert done.code == 0
    assert found["packages"]["numpy"]
    assert found["scheduler"].startswith("none is named")
    assert "free of" in found["memory"]
    text = run("doctor").stdout
    assert "numpy" in text
    assert "problems" in text


def test_doctor_names_what_is_missing(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.jobs.doctor.find_spec", lambda name: None)
    problems = "\n".join(json.loads(run("doctor", "--json").stdout)["problems"])
    for words in ("streampca[codecs]", "streampca[report]", "hdf5plugin", "matplotlib", "jinja2"):
        assert words in problems


def test_doctor_and_a_scheduler_that_does_not_answer(folder: Path, run: Any) -> None:
    done = run("doctor", "--json", "--scheduler-file", "none.json")
    assert done.code == 75
    assert "is it running" in json.loads(done.stdout)["problems"][-1]


def test_fit_with_a_report(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.report.document.summarize_rows", None)  # the pass that writes the scores sees all rows
    done = run("fit", "d.h5", "-k", 2, "--model", "n.zarr", "--scores", "z.npy", "--report", "out/r.html", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["output"]["report"] == "out/r.html"
    text = (folder / "out" / "r.html").read_text()
    for words in ("density of 400 rows", "pass scatter", "GB/s", "n.zarr", "fingerprint"):
        assert words in text, words
    assert {path.name for path in folder.iterdir()} >= {"n.zarr", "n.zarr.manifest.json", "z.npy", "out"}
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_report_and_nothing_else(folder: Path, run: Any) -> None:
    assert run("fit", "d.h5", "-k", 2, "--report", "r.html", "-q").code == 0
    assert "density of 400 rows" in (folder / "r.html").read_text()


def test_a_config_asks_for_a_report(folder: Path, run: Any) -> None:
    config = {"input": {"path": "d.h5"}, "method": {"name": "ppca", "n_components": 2}, "output": {"model": "n.zarr", "report": "r.html"}}
    (folder / "c.yaml").write_text(json.dumps(config))
    assert run("run", "c.yaml", "-q").code == 0
    assert "log-likelihood" in (folder / "r.html").read_text()
    again = run("run", "c.yaml", "--set", "output.model=other.zarr", "-q")
    assert (again.code, "r.html exists already" in again.stderr, (folder / "other.zarr").exists()) == (73, True, False)
    assert run("run", "c.yaml", "--set", "output.overwrite=true", "-q").code == 0


def test_a_report_is_no_other_output(folder: Path, run: Any) -> None:
    done = run("fit", "d.h5", "-k", 2, "--model", "n.zarr", "--report", "n.zarr/r.html")
    assert (done.code, "the model and the report cannot both go to" in done.stderr) == (2, True)
    done = run("fit", "d.h5", "-k", 2, "--report", "d.h5", "--overwrite")
    assert (done.code, "is what is read" in done.stderr) == (2, True)


def test_a_report_without_jinja2_is_refused_before_the_fit(folder: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = run("fit", "d.h5", "-k", 2, "--model", "n.zarr", "--report", "r.html")
    assert (done.code, "pip install 'streampca[report]'" in done.stderr, (folder / "n.zarr").exists()) == (2, True, False)


@pytest.mark.parametrize("place", ["manifest-written", "run-complete"])
def test_a_run_killed_around_its_report_goes_on(folder: Path, place: str) -> None:
    command = ("fit", "d.h5", "-k", 2, "--model", "n.zarr", "--scores", "z.npy", "--report", "r.html", "-q")
    assert run_apart(*command, cwd=folder, STREAMPCA_FAILPOINT=place).returncode == -9
    assert (folder / "r.html").exists() == (place == "run-complete")
    done = run_apart(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "density of 400 rows" in (folder / "r.html").read_text()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
