"""What a nightly job meets, fault by fault: killed at any place and moment, it goes on and ends with the bytes of an undisturbed run.

Each fault of the table prints a line; those that have their own suites are only named here, with where they are proved.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampca.failpoints import NAMES
from streampca.jobs.lock import locked
from streampca.memory import MIB
from tests.cli.harness import ROOT, environment, run, table, write_h5
from tests.cli.small_shards import Kitchen, Served
from tests.random_kills import OFTEN, contents, no_partial_output, random_kills

SMALL = (sys.executable, "-m", "tests.cli.small_shards")
SINKS = (".zarr", ".npy", ".h5")


def fit(data: Path, suffix: str = ".zarr", *more: object) -> tuple[object, ...]:
    """The command; the input by its full path, which is stored with the model."""
    return ("fit", data, "-k", 3, *OFTEN, "--model", "out/m.zarr", "--scores", f"out/z{suffix}", *more)


@pytest.fixture(scope="module")
def kitchen() -> Iterator[Kitchen]:
    kitchen = Kitchen()
    yield kitchen
    kitchen.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_h5(tmp_path_factory.mktemp("data") / "x.h5", table(1600, 16), chunks=(32, 16), compression="gzip")


_undisturbed: dict[tuple[object, ...], dict[str, bytes]] = {}


def undisturbed(kitchen: Kitchen, folder: Path, arguments: tuple[object, ...]) -> dict[str, bytes]:
    """What the command leaves if nothing happens to it."""
    if arguments not in _undisturbed:
        there = folder / "undisturbed"
        there.mkdir()
        done = kitchen.run(*arguments, cwd=there)
        assert done.code == 0, done.stderr
        assert not [each.name for each in (there / "out").iterdir() if each.name.startswith(".")]
        _undisturbed[arguments] = contents(there / "out")
    return _undisturbed[arguments]


def run_until_done(kitchen: Kitchen, folder: Path, arguments: tuple[object, ...], wanted: dict[str, bytes]) -> Served:
    done = kitchen.run(*arguments, cwd=folder)
    if done.code == 73:  # it was killed when all was done
        assert "exists already" in done.stderr
    else:
        assert done.code == 0, done.stderr
    assert contents(folder / "out", hidden=True) == wanted
    assert (folder / "out" / "m.zarr.manifest.json").exists() or arguments[0] != "fit"
    return done


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_a_failpoint(name: str, count: int, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    command = fit(data)
    wanted = undisturbed(kitchen, tmp_path, command)
    killed = kitchen.run(*command, cwd=tmp_path, STREAMPCA_FAILPOINT=f"{name}:{count}")
    if killed.code == 0:
        assert count > 1
        return  # it is met fewer times
    assert killed.code == -9, killed.stderr
    no_partial_output(tmp_path, wanted)
    run_until_done(kitchen, tmp_path, command, wanted)
    print(f"SIGKILL at {name}, time {count}: same bytes")


@pytest.mark.parametrize("suffix", SINKS)
@pytest.mark.parametrize("name", ["rows-noted", "scores-renamed", "scores-before-rename", "model-renamed"])
def test_killed_while_replacing_outputs_of_every_format(name: str, suffix: str, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    """With --overwrite the old outputs are there, whole, until the new ones are."""
    command = fit(data, suffix, "--overwrite")
    wanted = undisturbed(kitchen, tmp_path, command)
    old = fit(data, suffix, "--whiten", "--rows", "0:800")
    assert kitchen.run(*old, cwd=tmp_path).code == 0
    before = contents(tmp_path / "out")
    assert before != wanted
    killed = kitchen.run(*command, cwd=tmp_path, STREAMPCA_FAILPOINT=name)
    if suffix == ".h5" and name == "rows-noted":
        assert killed.code == 0  # such an output starts over
        return
    assert killed.code == -9, killed.stderr
    seen = contents(tmp_path / "out")
    for output in ("m.zarr", f"z{suffix}"):
        part = [{key: value for key, value in each.items() if key.split("/")[0] == output} for each in (seen, before, wanted)]
        assert part[0] in part[1:]
    run_until_done(kitchen, tmp_path, command, wanted)
    print(f"SIGKILL at {name} while replacing z{suffix}: same bytes")


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "out" / "m.zarr.manifest.json").read_text())
    return content


@pytest.mark.parametrize(("name", "number"), [("checkpoint-written:3", 0), ("rows-noted:3", 1)])
def test_what_is_done_is_not_done_again(name: str, number: int, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    command = fit(data)
    kitchen.run(*command, cwd=tmp_path, STREAMPCA_FAILPOINT=name)
    done = kitchen.run(*[each for each in command if each != "--quiet"], cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "are done, by a run that was interrupted" in done.stderr
    known = manifest(tmp_path)["passes"]
    if number == 1:
        assert [each["name"] for each in known] == ["scores"]
    assert known[0]["rows"] + known[0]["rows_resumed"] == 1600
    assert known[0]["rows_resumed"] >= 3 * 32


@pytest.mark.parametrize("solver", ["covariance", "tsqr", "sketch", "dual"])
def test_every_solver_goes_on(solver: str, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    """The bits do not tell that a total was stored, read and gone on with."""
    rows = ("--rows", "0:12") if solver == "dual" else ("--standardize",)
    command = fit(data, ".npy", "--solver", solver, *rows)
    wanted = undisturbed(kitchen, tmp_path, command)
    kills = 0
    for _ in range(20):
        killed = kitchen.run(*command, cwd=tmp_path, STREAMPCA_FAILPOINT="checkpoint-written:2")
        kills += killed.code == -9
        if killed.code == 0:
            break
    assert killed.code == 0, killed.stderr
    assert kills or solver == "dual"
    assert contents(tmp_path / "out", hidden=True) == wanted
    print(f"SIGKILL at every second checkpoint of {solver}, {kills} times: same bytes")


@pytest.mark.parametrize("command", ["fit", "transform", "update"])
def test_killed_at_random_moments(command: str, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    kills = random_kills(kitchen, tmp_path, data, command, kills=5, seed=1)
    print(f"SIGKILL at {kills} random moments of {command}: same bytes")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("when", ["out/.m.zarr.streampca-run/passes/*.zarr", "out/.z.npy.streampca-run/rows.json"], ids=["fit", "scores"])
def test_asked_to_stop(number: signal.Signals, when: str, kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    command = fit(data, ".npy", "--workers", 1)
    wanted = undisturbed(kitchen, tmp_path, command)
    stopped = kitchen.run(*command, cwd=tmp_path, signal_when=when, number=number, SECONDS_PER_BLOCK="0.02")
    assert stopped.code == 75, stopped.stderr
    assert re.fullmatch(r"error: stopped on request at row \d+: run again\n", stopped.stderr)
    assert stopped.seconds < 10  # in all
    no_partial_output(tmp_path, wanted)
    run_until_done(kitchen, tmp_path, command, wanted)
    assert manifest(tmp_path)["passes"][0]["rows_resumed"] > 0
    print(f"{number.name}: exit 75, gone on with: same bytes")


def test_a_second_run_on_the_same_output(kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    (tmp_path / "out").mkdir()
    for output in ("m.zarr", "z.zarr"):
        with locked(str(tmp_path / "out" / output)):
            second = kitchen.run(*fit(data), cwd=tmp_path)
        assert second.code == 76, second.stderr
        assert f"process {os.getpid()} on {socket.gethostname()}, since 20" in second.stderr
        assert not list((tmp_path / "out").iterdir())
    print("two runs on one output: the second exits 76 and names the first")


def kept(folder: Path) -> dict[str, bytes]:
    """What an interrupted run has left, but not who it was."""
    return {name: content for name, content in contents(folder / "out", hidden=True).items() if not name.endswith("-lock")}


def test_another_run_does_not_go_on_with_the_work_of_an_interrupted_one(kitchen: Kitchen, tmp_path: Path) -> None:
    data = write_h5(tmp_path / "x.h5", table(800, 16), chunks=(32, 16))
    assert kitchen.run(*fit(data), cwd=tmp_path, STREAMPCA_FAILPOINT="checkpoint-written:2").code == -9
    left = kept(tmp_path)
    other = kitchen.run(*fit(data, ".zarr", "--whiten", "--rows", "0:700"), cwd=tmp_path)
    assert other.code == 2
    for text in (r"method\.whiten was .* and is True", r"input\.rows was None and is '0:700'", "--fresh"):
        assert re.search(text, other.stderr)
    tight = [each if each != "1GiB" else "150MiB" for each in fit(data)]
    assert kitchen.run(*tight, cwd=tmp_path).code == 2  # the budget cannot hold it, nor would that of any run
    assert kept(tmp_path) == left
    os.utime(data, (0, 0))
    changed = kitchen.run(*fit(data), cwd=tmp_path)
    assert changed.code == 65
    assert "fingerprint was" in changed.stderr
    assert kept(tmp_path) == left
    done = kitchen.run(*fit(data, ".zarr", "--fresh"), cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["m.zarr", "m.zarr.manifest.json", "z.zarr"]
    print("an interrupted run of another config, or on other data: refused, named; --fresh starts over")


def test_more_or_less_memory_goes_on_with_the_same_plan(kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    wanted = undisturbed(kitchen, tmp_path, fit(data))
    kitchen.run(*fit(data), cwd=tmp_path, STREAMPCA_FAILPOINT="checkpoint-written:3")
    more = tuple("3GiB" if each == "1GiB" else each for each in fit(data))
    assert kitchen.run(*more, cwd=tmp_path).code == 0
    found = contents(tmp_path / "out", hidden=True)
    assert {name for name in wanted if found.get(name) != wanted[name]} <= {"m.zarr/zarr.json"}  # which names the memory


def test_a_damaged_checkpoint_is_not_believed(kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    wanted = undisturbed(kitchen, tmp_path, fit(data))
    kitchen.run(*fit(data), cwd=tmp_path, STREAMPCA_FAILPOINT="checkpoint-written:3")
    (chunk,) = (tmp_path / "out").glob(".m.zarr.streampca-run/passes/*.zarr/scatter/c/0/0")
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    done = run_until_done(kitchen, tmp_path, fit(data), wanted)
    assert "a checkpoint cannot be used, its pass starts over" in done.stderr
    print("a damaged checkpoint: warned of, the pass starts over: same bytes")


def test_data_that_changes_while_it_is_read(kitchen: Kitchen, tmp_path: Path) -> None:
    data = write_h5(tmp_path / "x.h5", table(1600, 16), chunks=(32, 16))
    timer = threading.Timer(0.6, os.utime, (data, (1, 1)))
    timer.start()
    done = kitchen.run(*fit(data), cwd=tmp_path, SECONDS_PER_BLOCK="0.05")
    timer.join()
    assert done.code == 65
    assert "changed while it was being read" in done.stderr
    assert not (tmp_path / "out").exists()
    print("data that changes while it is read: exit 65, nothing left")


def test_a_full_disk(tmp_path: Path, data: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    out = tmp_path / "out"
    out.mkdir()
    first = shlex.join(map(str, [*SMALL, "fit", data, "-k", 3, "--quiet", "--model", out / "m.zarr"]))
    second = shlex.join(
        map(str, [*SMALL, "fit", data, "-k", 16, "--quiet", "--overwrite", "--model", out / "m.zarr", "--scores", out / "z.npy"])
    )
    script = (
        f"mount -t tmpfs -o size=1m tmpfs {out} && {first} && sha256sum $(find {out}/m.zarr -type f | sort) > {tmp_path}/before && "
        f"dd if=/dev/zero of={out}/filler bs=1k 2> /dev/null; truncate -s -100k {out}/filler; "
        f"{second}; echo $? > {tmp_path}/code; "
        f"sha256sum $(find {out}/m.zarr -type f | sort) > {tmp_path}/after; ls -A {out} > {tmp_path}/left"
    )
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    if not (tmp_path / "code").exists():
        pytest.skip(f"cannot mount a file system here: {done.stderr}")
    assert (tmp_path / "code").read_text() == "73\n", done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text() != ""
    assert {name for name in (tmp_path / "left").read_text().split() if not name.startswith(".")} == {
        "m.zarr",
        "m.zarr.manifest.json",
        "filler",
    }
    print("a full disk: exit 73, the previous model is intact")


FAULTS = {
    "truncated or no HDF5": ["sources/test_hdf5.py::test_truncated_at_any_byte", "test_bad_input.py::test_a_truncated_file_is_refused"],
    "corrupt chunk": [
        "sources/test_hdf5_raw.py::test_a_flipped_byte_is_never_read_where_there_is_a_checksum",
        "sources/test_zarr_raw.py::test_a_flipped_byte_is_noticed",
    ],
    "missing chunk": ["sources/test_zarr.py::test_missing_chunks", "jobs/test_config.py::test_missing_chunks"],
    "NaN and Inf": ["estimators/test_pca.py::test_entries_that_are_not_finite_are_refused_by_row_and_column"],
    "constant columns, one row, k > rank": ["estimators/test_pca.py::test_hard_data_gives_finite_results"],
    "huge means, every dtype": ["estimators/test_pca.py::test_a_huge_mean_in_float64", "estimators/test_pca.py::test_dtypes"],
    "data that changes while it is read": ["test_faults.py::test_data_that_changes_while_it_is_read"],
    "other feature names": ["estimators/test_lazy.py::test_other_names_are_refused_and_named"],
    "disk full": ["test_faults.py::test_a_full_disk", "sinks/conformance.py::test_a_full_disk"],
    "SIGKILL at any moment": ["test_faults.py::test_killed_at_a_failpoint", "test_faults.py::test_killed_at_random_moments"],
    "SIGTERM, SIGINT, SIGUSR1": ["test_faults.py::test_asked_to_stop", "cli/test_progress.py::test_a_signal_stops_a_fit"],
    "worker or scheduler lost": [
        "test_cluster_faults.py::test_a_worker_is_killed_in_every_pass",
        "test_cluster_faults.py::test_the_scheduler_is_killed_and_the_run_goes_on_elsewhere",
    ],
    "out of memory": ["test_memory.py::test_the_peak_does_not_grow_with_the_data", "test_faults.py::test_the_peak_with_checkpoints"],
    "two runs on one output": ["test_faults.py::test_a_second_run_on_the_same_output", "jobs/test_lock.py::test_the_second_is_told"],
    "hostile model, state or config": [
        "test_storage.py::test_any_flipped_byte_is_an_error_or_changes_nothing",
        "jobs/test_config.py::test_python_tags_are_refused_and_run_nothing",
    ],
    "HDF5 links out of the folder": ["sources/test_hdf5.py::test_external_links_are_refused"],
    "decompression bomb": ["sources/test_filters.py::test_bombs_are_refused_without_their_memory"],
    "reachable from the network": ["test_faults.py::test_a_run_listens_to_nobody"],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_proved_somewhere(fault: str) -> None:
    for proof in FAULTS[fault]:
        file, _, name = proof.partition("::")
        assert f"def {name}" in (ROOT / "tests" / file).read_text(), proof
    print(f"{fault}: {', '.join(FAULTS[fault])}")


def test_the_peak_with_checkpoints(tmp_path: Path) -> None:
    """States are written piece by piece, never copied whole."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((30_000, 1500), np.float32))
    arguments = ["fit", "x.npy", "-k", 5, "--memory", "1GiB", "--checkpoint-every", 0, "--json", "--quiet", "--model", "m.zarr"]
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    print(f"peak {summary['peak_memory'] / MIB:.0f} MiB with checkpoints, projected {summary['projected_memory'] / MIB:.0f} MiB")
    assert summary["peak_memory"] <= summary["projected_memory"]


def test_a_run_listens_to_nobody(kitchen: Kitchen, tmp_path: Path, data: Path) -> None:
    """A run on local threads opens no socket at all; what is started for tests and clusters binds to the loopback."""
    script = "import socket\nsocket.socket.listen = None\nfrom streampca.cli import main\nmain()"
    arguments = [sys.executable, "-c", script, *map(str, fit(data)[:-4]), "--model", "m.zarr"]
    done = subprocess.run(arguments, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
