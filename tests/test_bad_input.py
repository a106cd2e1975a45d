"""Requests and data that are wrong: the right exit code, one line that says what to do, and nothing left behind."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

import streampca as sp
from streampca.engine import connect
from tests.cli.harness import COMMAND, ROOT, environment, free_port, listing, run, run_here, table, write_h5

USAGE, DATA, OUTPUT, INTERRUPTED = 2, 65, 73, 75


def prepare(folder: Path) -> None:
    """Write everything that the table below refers to."""
    X = table(60, 5)
    write_h5(folder / "x.h5", X, "X", chunks=(20, 5))
    write_h5(folder / "several.h5", X, "raw/first")
    write_h5(folder / "several.h5", X, "raw/second")
    write_h5(folder / "narrow.h5", X[:, :4])
    write_h5(folder / "flat.h5", X[:, 0])
    write_h5(folder / "deep.h5", X.reshape(10, 6, 5))
    write_h5(folder / "strings.h5", np.array([[b"a", b"b"]] * 5))
    write_h5(folder / "compound.h5", np.zeros((5, 2), [("a", "f8"), ("b", "i4")]))
    write_h5(folder / "imaginary.h5", X.astype(complex))
    write_h5(folder / "empty.h5", np.zeros((0, 5)))
    write_h5(folder / "one.h5", X[:1])
    for name, value in (("nan", np.nan), ("inf", np.inf)):
        bad = X.copy()
        bad[41, 3] = value
        write_h5(folder / f"{name}.h5", bad, chunks=(20, 5))
    write_h5(folder / "nan.h5", np.array(list("abcde"), "S1"), "feature_names")
    write_h5(folder / "huge.h5", 1e200 * X)
    with h5py.File(folder / "nothing.h5", "w"):
        pass
    (folder / "text.h5").write_text("this is no HDF5 file\n" * 100)
    (folder / "file").write_text("x")
    (folder / "folder").mkdir()
    np.save(folder / "x.npy", X)
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:-9])
    np.save(folder / "objects.npy", np.array([[1, "a"], [2, {}]], dtype=object), allow_pickle=True)
    zarr.create_array(folder / "x.zarr", data=X, chunks=(20, 5))
    (folder / "not.zarr").mkdir()
    (folder / "broken.zarr").mkdir()
    (folder / "broken.zarr" / "zarr.json").write_text("{ this is no JSON")
    sp.PCA(2).fit(X).save(folder / "m.zarr")
    (folder / "bad.json").write_text("{}")
    (folder / "bad.yaml").write_text("input: {path: x.h5}\nmemry: 1GiB\n")
    (folder / "torn.yaml").write_text("input: {path: [x.h5\n")
    (folder / "tag.yaml").write_text("input: !!python/object/apply:os.system ['touch canary']\n")


@dataclass(frozen=True)
class Case:
    """A command line (of words, or a list), the exit code, and what the one line must say: the value, and the remedy."""

    command: str
    code: int
    says: str


FIT = "fit x.h5 -k 2 --model new/m2.zarr --scores new/z.npy"
CASES = {
    # the input
    "no such file": Case("fit x.h6 --model new.zarr", DATA, r"no such file: .*x\.h6\. Did you mean 'x\.h5'\?"),
    "no such folder": Case("fit no/x.h5 --model new.zarr", DATA, r"no such file: .*no/x\.h5 \(there is no folder"),
    "empty glob": Case("fit y*.h5 --model new.zarr", DATA, r"no file matches .*y\*\.h5"),
    "a folder": Case("fit folder --model new.zarr", DATA, "folder is in no format that can be read. These can: HDF5"),
    "no known format": Case("fit file --model new.zarr", DATA, "file is in no format that can be read"),
    "not HDF5": Case("fit text.h5 --model new.zarr", DATA, r"text\.h5 \(2100 bytes\) is not an HDF5 file"),
    "no such dataset": Case("fit x.h5::Y --model new.zarr", DATA, r"no dataset 'Y' in .*x\.h5.* It has .*X \(60, 5\) float64"),
    "nearest dataset": Case("fit several.h5::first --model new.zarr", DATA, "no dataset 'first'.* Did you mean 'raw/first'?"),
    "several datasets": Case("fit several.h5 --model new.zarr", DATA, "2 2-D numeric datasets: .*raw/first.*raw/second.* Name one: "),
    "no dataset at all": Case("fit nothing.h5 --model new.zarr", DATA, "it has no dataset at all"),
    "two datasets named": Case("fit x.h5::X --dataset Y --model new.zarr", USAGE, "two datasets were named: 'X' after :: and dataset='Y'"),
    "1-D": Case("fit flat.h5::X --model new.zarr", DATA, r"1 dimension\(s\) \(shape \(60,\)\), but a table .* \(2-D\) is needed"),
    "1-D, not named": Case(
        "fit flat.h5 --model new.zarr", DATA, "no 2-D numeric dataset: it has .*X .* A table of samples x features is needed"
    ),
    "3-D": Case("fit deep.h5::X --model new.zarr", DATA, r"3 dimension\(s\) \(shape \(10, 6, 5\)\)"),
    "strings": Case("fit strings.h5::X --model new.zarr", DATA, "not real numbers: choose a numeric dataset"),
    "compound": Case("fit compound.h5::X --model new.zarr", DATA, "not real numbers: choose a numeric dataset"),
    "complex": Case("fit imaginary.h5::X --model new.zarr", DATA, "not real numbers: choose a numeric dataset"),
    "zero rows": Case("fit empty.h5 --model new.zarr", DATA, r"is empty \(shape \(0, 5\)\)"),
    "one row": Case("fit one.h5 --model new.zarr", DATA, "at least 2 rows, but n_samples=1"),
    "NaN": Case("fit nan.h5::X -k 2 --model new.zarr --quiet", DATA, r"NaN: .* row 41, column 3 \('d'\).* drop or fill such entries"),
    "inf": Case("fit inf.h5 -k 2 --model new.zarr --quiet", DATA, "inf: .* row 41, column 3.* drop or fill such entries"),
    "truncated npy": Case("fit cut.npy --model new.zarr", DATA, r"cut\.npy is truncated: it has \d+ bytes, but shape \(60, 5\)"),
    "pickled objects": Case("fit objects.npy --model new.zarr", DATA, "pickled Python objects, which are never loaded"),
    "a dataset of npy": Case("fit x.npy::X --model new.zarr", DATA, "there is no dataset 'X' in it"),
    "no Zarr": Case("fit not.zarr --model new.zarr", DATA, r"not\.zarr is not a Zarr store"),
    "broken Zarr": Case("fit broken.zarr --model new.zarr", DATA, r"broken\.zarr cannot be opened as Zarr"),
    "files of different width": Case("fit *[wx].h5::X --model new.zarr", DATA, r"narrow\.h5.* has 4 features, but .*x\.h5.* has 5"),
    "no such rows": Case("fit x.h5 --rows 90:99 --model new.zarr", USAGE, "rows .* select nothing of the 60 rows"),
    "rows that are no range": Case("fit x.h5 --rows ten --model new.zarr", USAGE, "cannot read rows='ten': write for example '1000:2000'"),
    "no such column": Case("fit x.h5 --columns 7 --model new.zarr", USAGE, "there is no column 7: the 5 columns are numbered 0 to 4"),
    "no such name": Case("fit nan.h5::X --columns dd --model new.zarr", USAGE, "there is no column 'dd'"),
    "missing chunk policy": Case(
        "fit x.h5 --missing-chunks maybe", USAGE, "input.missing_chunks: .*'warn', 'error' or 'fill'.*got 'maybe'"
    ),
    # the request
    "k > min(n, d)": Case(
        "fit x.h5 -k 6 --model new.zarr", USAGE, r"n_components=6 must be between 1 and min\(n_samples, n_features\)=5 \(60 x 5"
    ),
    "k = 0": Case("fit x.h5 -k 0 --model new.zarr", USAGE, "n_components=0 must be between 1 and"),
    "k = -1": Case("fit x.h5 -k -1 --model new.zarr", USAGE, "n_components=-1 must be between 1 and"),
    "k = ten": Case("fit x.h5 -k ten --model new.zarr", USAGE, "n_components must be None, an integer .*, or one of 'mle', .*, not 'ten'"),
    "fraction 1.5": Case(
        "fit x.h5 -k 1.5 --model new.zarr", USAGE, r"n_components=1\.5 is not a fraction of variance in \(0, 1\): write an integer"
    ),
    "fraction 0.0": Case("fit x.h5 -k 0.0 --model new.zarr", USAGE, r"n_components=0\.0 is not a fraction"),
    "k = nan": Case("fit x.h5 -k nan --model new.zarr", USAGE, "n_components=nan is not a fraction"),
    "budget too small": Case(
        f"{FIT} --memory 1MiB", USAGE, r"budget of 1\.0 MiB cannot hold .* needs at least .* Give a memory of \d+MiB or more"
    ),
    "budget that is no size": Case(f"{FIT} --memory lots", USAGE, "cannot read 'lots' as a memory size: write for example '2GiB'"),
    "budget of nothing": Case(f"{FIT} --memory 0", USAGE, "a memory size must be positive, not '0'"),
    "unknown solver": Case(f"{FIT} --solver covarianse", USAGE, "unknown solver 'covarianse': choose one of .*Did you mean 'covariance'?"),
    "unknown method": Case(f"{FIT} --method pac", USAGE, "method.name: .*'pca'.*got 'pac'"),
    "unknown precision": Case(f"{FIT} --precision float16", USAGE, "precision must be 'auto', 'float32' or 'float64', not 'float16'"),
    "no config": Case("run none.yaml", USAGE, r"cannot read config none\.yaml"),
    "unknown key": Case("run bad.yaml", USAGE, r"bad\.yaml: unknown key 'memry'.* Did you mean 'memory'\?"),
    "unknown key, plan": Case("plan bad.yaml", USAGE, r"bad\.yaml: unknown key 'memry'.* Did you mean 'memory'\?"),
    "no YAML": Case("run torn.yaml", USAGE, r"torn\.yaml is not valid YAML"),
    "a Python tag": Case("run tag.yaml", USAGE, r"tag\.yaml is not valid YAML: could not determine a constructor"),
    "an override": Case("run bad.yaml --set memory", USAGE, "cannot read --set 'memory': write key=value"),
    "no scheduler file": Case(
        f"{FIT} --scheduler-file bad.json", USAGE, r"bad\.json is not the scheduler file of a Dask cluster.*: give what"
    ),
    # the outputs
    "model exists": Case("fit x.h5 -k 2 --model m.zarr", OUTPUT, r"m\.zarr exists already: choose another path, or .*--overwrite"),
    "scores exist": Case(
        "fit x.h5 -k 2 --model new.zarr --scores x.npy", OUTPUT, r"x\.npy exists already: choose another path, or .*--overwrite"
    ),
    "scores exist, transform": Case("transform m.zarr x.h5 --to x.npy", OUTPUT, r"x\.npy exists already"),
    "parent is a file": Case(
        "fit x.h5 -k 2 --model file/m.zarr", OUTPUT, r"cannot write .*file/m\.zarr: .*file is a file, not a folder; choose"
    ),
    "parent of scores is a file": Case(
        "fit x.h5 -k 2 --model new.zarr --scores file/z.npy", OUTPUT, "file is a file, not a folder; choose"
    ),
    "a folder of the user": Case(
        "fit x.h5 -k 2 --model . --overwrite", OUTPUT, "a folder that is not a Zarr store, and overwrite never deletes"
    ),
    "unknown suffix": Case(
        "fit x.h5 -k 2 --model new.zarr --scores z.csv", USAGE, r"z\.csv': the suffix '\.csv' is not one of \.zarr, \.h5"
    ),
    "unknown suffix, transform": Case("transform m.zarr x.h5 --to z.csv", USAGE, r"z\.csv': the suffix '\.csv' is not one of \.zarr, \.h5"),
    "model and scores the same": Case(
        "fit x.h5 -k 2 --model n.zarr --scores n.zarr", USAGE, r"cannot both go to n\.zarr: choose two paths"
    ),
    "output is the input": Case("fit x.zarr -k 2 --model x.zarr --overwrite", USAGE, r"x\.zarr is what is read: .* choose another path"),
    "output is the model": Case("transform m.zarr x.h5 --to m.zarr --overwrite", USAGE, r"m\.zarr is what is read: .* choose another path"),
    # the model
    "no such model": Case("transform none.zarr x.h5 --to z.npy", DATA, r"cannot load none\.zarr: no such model"),
    "model is a file": Case("transform file x.h5 --to z.npy", DATA, "cannot load file: "),
    "model is a folder": Case("transform folder x.h5 --to z.npy", DATA, "cannot load folder: .*not one of streampca's"),
    "model is garbage": Case("transform broken.zarr x.h5 --to z.npy", DATA, r"cannot load broken\.zarr"),
    "model is data": Case("transform x.zarr x.h5 --to z.npy", DATA, r"cannot load x\.zarr: .*not one of streampca's"),
    "wrong width": Case("transform m.zarr narrow.h5 --to z.npy", DATA, "X has 4 features, but PCA is expecting 5"),
    "NaN, transform": Case("transform m.zarr nan.h5::X --to z.npy --quiet", DATA, r"NaN: .* row 41, column 3 \('d'\)"),
    "transform of nothing": Case("transform m.zarr none.h5 --to z.npy", DATA, "no such file"),
    "inspect nothing": Case("inspect none.h5", DATA, "no such file"),
    "inspect garbage": Case("inspect text.h5", DATA, "is not an HDF5 file"),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    prepare(folder)
    return folder


@pytest.fixture
def here(prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Any]:
    monkeypatch.chdir(prepared)
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    return lambda command: run_here(command.split(), monkeypatch, capsys)


def assert_refused(code: int, stdout: str, stderr: str, case: Case) -> None:
    assert code == case.code, stderr
    assert stdout == ""
    assert "Traceback" not in stderr
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert re.match(r"error: .", lines[0])
    assert re.search(case.says, lines[0]), lines[0]


@pytest.mark.parametrize("name", CASES)
def test_a_bad_request_is_refused(name: str, here: Callable[[str], Any], prepared: Path) -> None:
    before = listing(prepared)
    done = here(CASES[name].command)
    assert_refused(done.code, done.stdout, done.stderr, CASES[name])
    assert listing(prepared) == before


@pytest.mark.parametrize("name", ["no such file", "k = ten", "NaN", "model exists", "unknown suffix, transform"])
def test_a_process_ends_the_same_way(name: str, prepared: Path) -> None:
    before = listing(prepared)
    done = run(*CASES[name].command.split(), cwd=prepared)
    assert_refused(done.returncode, done.stdout, done.stderr, CASES[name])
    assert listing(prepared) == before


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 96, 512, 800, 1400, 2048, "half", "all but 1000", "all but 1"], ids=str)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_truncated_file_is_refused(
    keep: int | str, libver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("X", data=table(500, 5), chunks=(20, 5), compression="gzip")
    size = path.stat().st_size
    length = {"half": size // 2, "all but 1000": size - 1000, "all but 1": size - 1}.get(str(keep), keep)
    os.truncate(path, int(length))
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    done = run_here(["fit", "cut.h5", "-k", "2", "--model", "m.zarr", "--scores", "z.npy", "--quiet"], monkeypatch, capsys)
    assert_refused(done.code, done.stdout, done.stderr, Case("", DATA, rf"cut\.h5.*\b{length}\b"))
    assert listing(tmp_path) == before


DROP_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux" and os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Without root's right to write everywhere, if this is root."""
    write_h5(tmp_path / "x.h5", table())
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(0o555)
    before = listing(tmp_path)
    for output in ("locked/m.zarr", "locked/new/m.zarr"):
        command = [sys.executable, "-c", DROP_RIGHTS, *COMMAND, "fit", "x.h5", "-k", "2", "--model", output]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False)
        says = "no permission to create files in .*locked; choose another path or change its mode"
        assert_refused(done.returncode, done.stdout, done.stderr, Case("", OUTPUT, says))
    assert listing(tmp_path) == before


@pytest.mark.parametrize("option", ["--scheduler tcp://127.0.0.1:{port}", "--scheduler nonsense", "--scheduler-file none.json"])
def test_a_scheduler_that_does_not_answer(option: str, here: Callable[[str], Any], prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.jobs.run.connect", functools.partial(connect, timeout="1s"))
    before = listing(prepared)
    where = option.format(port=free_port())
    done = here(f"fit x.h5 -k 2 --model new.zarr {where}")
    says = f"no Dask scheduler answers at {where.split()[1]} .*is it running, and reachable from here"
    assert_refused(done.code, done.stdout, done.stderr, Case("", INTERRUPTED, says))
    assert listing(prepared) == before


@pytest.mark.parametrize(
    "command",
    ["fit", "fit x.h5 --no-such-option", "nonsense", "transform m.zarr x.h5", "fit x.h5 --workers 0", "fit x.h5 --samples-axis 2", "run"],
)
def test_a_wrong_command_line_is_explained(command: str, here: Callable[[str], Any], prepared: Path) -> None:
    before = listing(prepared)
    done = here(command)
    assert done.code == USAGE
    assert "Usage: " in done.stderr
    assert "Traceback" not in done.stderr
    assert listing(prepared) == before


def test_values_that_overflow(here: Callable[[str], Any], prepared: Path) -> None:
    before = listing(prepared)
    with np.errstate(all="ignore"):
        done = here("fit huge.h5 -k 2 --model new.zarr --quiet")
    assert_refused(done.code, done.stdout, done.stderr, Case("", DATA, "overflow float64: rescale the data"))
    assert listing(prepared) == before


def test_the_table_runs_where_the_sources_are() -> None:
    assert Path(sp.__file__).is_relative_to(ROOT)
