"""A bar on a terminal; signals that ask to stop."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import streampca as sp
from streampca.events import ProgressObserver
from tests.cli.harness import COMMAND, end, environment, listing, run, run_here, start, table, visible, write_h5


def on_a_terminal(*arguments: object, cwd: Path) -> tuple[int, str, str]:
    """Run with standard error on a pseudo-terminal; return exit code, standard output and what the terminal got."""
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="120")
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    screen, limit = b"", time.monotonic() + 60
    try:
        while time.monotonic() < limit:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            screen += part
        output, _ = process.communicate(timeout=10)
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    return process.returncode, output.decode(), screen.decode()


def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    write_h5(tmp_path / "x.h5", table(200_000, 16, dtype="float32"), chunks=(10_000, 16))
    code, output, screen = on_a_terminal("fit", "x.h5", "-k", 3, "--scores", "z.npy", cwd=tmp_path)
    assert code == 0, screen
    assert "\x1b[" in screen
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
    for name in ("scatter", "scores"):
        assert re.search(rf"{name} [━╸╺ ]+ 100% [\d,]+ rows/s \d+\.\d\d GB/s [\d:]+ [\d.]+ [MG]iB", plain), plain
    assert "\x1b" not in output  # standard output is a pipe


def test_a_warning_on_a_terminal_comes_above_the_bar(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "[x] holes.h5", "w") as file:
        file.create_dataset("X", (400, 8), "f8", chunks=(100, 8))[:200] = table(200)
    code, _, screen = on_a_terminal("fit", "[x] holes.h5", "-k", 3, cwd=tmp_path)
    assert code == 0, screen
    assert re.search(r"warning: .*2 stored chunk\(s\) of .*\[x\] holes\.h5", screen), screen


# --- signals ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that takes no space and a minute of work (chunks that were never written read as zero), and a model beside it."""
    path = tmp_path_factory.mktemp("long") / "long.h5"
    with h5py.File(path, "w") as file:
        x = file.create_dataset("X", (400_000, 1500), "f4", chunks=(1000, 1500))
        x[:1000] = table(1000, 1500, dtype="float32")
    sp.PCA(50).fit(table(200, 1500)).save(path.with_name("model.zarr"))
    return path


def stop(process: subprocess.Popen[str], sign: signal.Signals, after: str, pause: float = 0.3) -> tuple[int, str, float]:
    """Send a signal soon after a line with ``after`` was logged; return exit code, standard error and the seconds it took."""
    assert process.stderr is not None
    heard = ""
    try:
        while after not in heard:
            line = process.stderr.readline()
            assert line, f"ended before {after!r}: {heard}"
            heard += line
        time.sleep(pause)
        assert process.poll() is None, heard
        began = time.monotonic()
        process.send_signal(sign)
        _, rest = process.communicate(timeout=30)
        return process.returncode, heard + rest, time.monotonic() - began
    finally:
        process.kill()
        end(process)


@pytest.mark.parametrize(("sign", "workers"), [(signal.SIGTERM, 1), (signal.SIGTERM, 2), (signal.SIGINT, 2), (signal.SIGUSR1, 1)])
def test_a_signal_stops_a_fit(sign: signal.Signals, workers: int, long_file: Path, tmp_path: Path) -> None:
    options: list[Any] = ["--workers", workers, "--precision", "float64", "--missing-chunks", "fill"]
    process = start("fit", long_file, "-k", 5, "--model", "out/m.zarr", "--scores", "out/z.zarr", *options, cwd=tmp_path)
    code, heard, seconds = stop(process, sign, "pass scatter")
    assert code == 75, heard
    assert re.search(r"^error: stopped on request.*run again", heard, re.MULTILINE), heard
    assert "Traceback" not in heard
    assert seconds < 10
    assert visible(tmp_path).keys() <= {"out"}


@pytest.mark.parametrize("suffix", [".zarr", ".h5", ".npy"])
def test_a_signal_stops_a_transform(suffix: str, long_file: Path, tmp_path: Path) -> None:
    old = np.zeros((3, 2))
    np.save(tmp_path / "z.npy", old)
    before = listing(tmp_path)
    options: list[Any] = ["--workers", 1, "--missing-chunks", "fill", "--overwrite"]
    process = start("transform", long_file.with_name("model.zarr"), long_file, "--to", f"z{suffix}", *options, cwd=tmp_path)
    code, heard, seconds = stop(process, signal.SIGTERM, "pass scores")
    assert code == 75, heard
    assert "Traceback" not in heard
    assert seconds < 10
    assert visible(tmp_path) == before
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), old)


def test_after_a_signal_in_the_middle_of_the_scores_the_same_command_works(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", (10_000_000, 64), "f4", chunks=(10_000, 64))[:1000] = table(1000, 64, dtype="float32")
    before = listing(tmp_path)
    command = ["fit", "x.h5", "-k", 2, "--model", "m.zarr", "--scores", "z.npy", "--missing-chunks", "fill", "--workers", 1]
    code, heard, _ = stop(start(*command, cwd=tmp_path), signal.SIGTERM, "pass scores", pause=0)
    assert code == 75, heard
    assert visible(tmp_path) == before
    other = run(*command, "--rows", "0:2000", cwd=tmp_path)
    assert other.returncode == 2
    assert "input.rows was None and is '0:2000'" in other.stderr
    assert "--fresh" in other.stderr
    assert run(*command, "--rows", "0:2000", "--fresh", cwd=tmp_path).returncode == 0
    assert set(listing(tmp_path)) & {".m.zarr.streampca-run", ".z.npy.streampca-run"} == set()
    assert np.load(tmp_path / "z.npy").shape == (2000, 2)


# --- logs ------------------------------------------------------------------------------------------------------


def test_lines_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write_h5(tmp_path / "x.h5", table(4000), chunks=(100, 8))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ProgressObserver, "seconds", 0.0)
    done = run_here(["fit", "x.h5", "-k", 3, "--json", "--log", "json"], monkeypatch, capsys)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["components"] == 3
    assert "\x1b" not in done.stderr
    first, *between, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert (first["event"], first["pass"], first["rows"], first["of"]) == ("started", "scatter", 0, 4000)
    assert {record["event"] for record in between} == {"progress"}
    assert (last["event"], last["rows"]) == ("finished", 4000)
    assert {"time", "event", "pass", "rows", "of", "rows_per_s", "GB_per_s", "eta_s", "memory"} == between[0].keys()
    failed = run_here(["fit", "x.h5", "-k", 9, "--log=json"], monkeypatch, capsys)
    assert failed.code == 2
    assert json.loads(failed.stderr)["exit_code"] == 2
    text = run_here(["fit", "x.h5", "-k", 3, "--log", "text"], monkeypatch, capsys)
    assert re.search(
        r"pass scatter: 4,000 rows, 0\.00 GB\n.*pass scatter: 100%, [\d,]+ rows/s, \d+\.\d\d GB/s, 0 s left", text.stderr, re.DOTALL
    )


def test_pythons_logger(caplog: pytest.LogCaptureFixture) -> None:
    sp.PCA(2).fit(table())
    assert caplog.messages == []
    with caplog.at_level(logging.INFO, logger="streampca"):
        sp.PCA(2).fit(table())
    assert caplog.messages[0] == "pass scatter: 400 rows, 0.00 GB"
    assert caplog.messages[-1].startswith("pass scatter: done in")
