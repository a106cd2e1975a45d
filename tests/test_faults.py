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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streampca.failpoints import NAMES
from streampca.jobs.lock import locked
from streampca.memory import MIB
from tests.cli.harness import ROOT, environment, run, table, wait_until, write_h5
from tests.cli.small_shards import Kitchen, Served
from tests.random_kills import OFTEN, contents, no_partial_output, prepared_command, random_kills

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


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with missing entries."""
    X = table(480, 16)
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    return write_h5(tmp_path_factory.mktemp("holes") / "x.h5", X, chunks=(32, 16))


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


GO_ON: dict[str, dict[str, Any]] = {
    "covariance": {"standardize": True},
    "tsqr": {"solver": "tsqr", "standardize": True},
    "sketch": {"solver": "sketch", "standardize": True},
    "dual": {"solver": "dual"},
    "kpca": {"name": "kpca", "method": "nystrom", "n_landmarks": 20},
    "spca": {"name": "spca"},
    "ica": {"name": "ica"},
    "ppca": {"name": "ppca", "max_iter": 4, "tol": 0.01},
    "fa": {"name": "fa", "max_iter": 4, "tol": 0.01},
}  # by solver, or method; the last two of rows with missing entries, by EM


@pytest.mark.parametrize("solver", GO_ON)
def test_every_solver_goes_on(solver: str, kitchen: Kitchen, tmp_path: Path, data: Path, holes: Path) -> None:
    """The bits do not tell that a total was stored, read and gone on with."""
    # A table of few long rows is read by slabs of columns, of which there must be several.
    path = (
        write_h5(tmp_path / "wide.h5", table(12, 1600), chunks=(12, 32))
        if solver == "dual"
        else holes
        if solver in ("ppca", "fa")
        else data
    )
    content = {
        "input": {"path": str(path), "rows": "0:640"},
        "method": {"n_components": 3, **GO_ON[solver]},
        "memory": "1GiB",
        "output": {"model": "out/m.zarr", "scores": "out/z.npy"},
        "checkpoint": {"every": 0},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(content))
    command = ("run", tmp_path / "config.yaml", "--quiet")
    wanted = undisturbed(kitchen, tmp_path, command)
    kills = 0
    for _ in range(60):
        killed = kitchen.run(*command, cwd=tmp_path, STREAMPCA_FAILPOINT="checkpoint-written:2")
        kills += killed.code == -9
        if killed.code != -9:
            break
    assert killed.code == 0, killed.stderr
    assert kills
    assert contents(tmp_path / "out", hidden=True) == wanted
    print(f"SIGKILL at every second checkpoint of {solver}, {kills} times: same bytes")


OF_COMMANDS = {
    "transform": ["rows-noted:1", "rows-noted:3", "scores-before-rename", "scores-renamed", "run-complete"],
    "update": [name for name in NAMES if not name.startswith(("scores", "rows"))],
    "impute": ["rows-noted:1", "rows-noted:2"],
}


@pytest.mark.parametrize("command", OF_COMMANDS)
def test_other_commands_killed_at_a_failpoint(command: str, kitchen: Kitchen, tmp_path: Path, data: Path, holes: Path) -> None:
    arguments, prepared = prepared_command(kitchen, tmp_path, holes if command == "impute" else data, command)
    shutil.copytree(prepared, tmp_path / "whole")
    assert kitchen.run(*arguments, cwd=tmp_path / "whole").code == 0
    before, wanted = contents(prepared / "out"), contents(tmp_path / "whole" / "out", hidden=True)
    for number, name in enumerate(OF_COMMANDS[command]):
        work = tmp_path / f"work{number}"
        shutil.copytree(prepared, work)
        killed = kitchen.run(*arguments, cwd=work, STREAMPCA_FAILPOINT=name)
        assert killed.code == -9, f"{name}: {killed.stderr}"
        no_partial_output(work, before, wanted)
        again = kitchen.run(*arguments, cwd=work)
        # Killed when all was done, the next run finds the outputs, or the rows, there.
        assert again.code in (0, 73) or "nothing is new" in again.stderr, again.stderr
        assert contents(work / "out", hidden=True) == wanted, name
        print(f"SIGKILL at {name} of {command}: same bytes")


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


def act_during_a_pass(folder: Path, act: Callable[[], object]) -> None:
    wait_until(lambda: any(folder.glob("out/.m.zarr.streampca-run/passes/*.zarr")), 30)
    act()


def resize(path: Path, rows: int) -> None:
    """Be a writer that does not wait for readers."""
    with h5py.File(path, "r+", locking=False) as file:
        file["X"].resize(rows, axis=0)
        file["X"][1600:] = 1.0


@pytest.mark.parametrize("how", ["rows appended", "shrunk", "replaced"])
def test_data_that_changes_while_it_is_read(how: str, kitchen: Kitchen, tmp_path: Path) -> None:
    data = write_h5(tmp_path / "x.h5", table(1600, 16), chunks=(32, 16), maxshape=(None, 16))
    other = write_h5(tmp_path / "y.h5", table(1600, 16, seed=1), chunks=(32, 16))
    rows = {"rows appended": 1700, "shrunk": 800}.get(how)
    act = partial(shutil.move, other, data) if rows is None else partial(resize, data, rows)
    writer = threading.Thread(target=act_during_a_pass, args=(tmp_path, act))
    writer.start()
    done = kitchen.run(*fit(data), cwd=tmp_path, SECONDS_PER_BLOCK="0.02")
    writer.join()
    assert done.code == 65
    assert "changed while it was being read" in done.stderr
    assert not (tmp_path / "out").exists()
    print(f"data that changes while it is read ({how}): exit 65, nothing left")


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


@dataclass(frozen=True)
class Fault:
    """What may happen, what is promised then, and the tests that fail if the promise is not kept."""

    name: str
    promise: str
    proofs: tuple[str, ...]


FAULTS = (
    Fault(
        "truncated or no HDF5, no such dataset",
        "refused before the first pass, exit 65, with file, sizes and candidates",
        (
            "sources/test_hdf5.py::test_truncated_at_any_byte",
            "sources/test_hdf5.py::test_not_hdf5",
            "sources/test_hdf5.py::test_candidates_are_listed",
            "test_bad_input.py::test_a_truncated_file_is_refused",
        ),
    ),
    Fault(
        "corrupt chunk",
        "an error that names file and chunk wherever there is a checksum; else inspect says unprotected",
        (
            "sources/test_hdf5_raw.py::test_a_flipped_byte_is_never_read_where_there_is_a_checksum",
            "sources/test_hdf5_raw.py::test_zstd_with_a_checksum",
            "sources/test_zarr_raw.py::test_a_flipped_byte_is_noticed",
            "sources/test_zarr.py::test_checksums",
            "sources/test_hdf5.py::test_details",
        ),
    ),
    Fault(
        "missing or unallocated chunk",
        "counted, and warned of, in summary and manifest; or refused; or accepted, as asked",
        (
            "sources/test_zarr.py::test_missing_chunks",
            "sources/test_hdf5.py::test_unallocated_chunks_are_counted_and_read_as_fill",
            "jobs/test_config.py::test_missing_chunks",
        ),
    ),
    Fault(
        "NaN and Inf",
        "an error with row and column, or nan: skip with a count; ppca and fa: NaN is missing, Inf an error, what is empty is counted",
        (
            "estimators/test_pca.py::test_entries_that_are_not_finite_are_refused_by_row_and_column",
            "sources/test_skipping.py::test_a_fit_is_that_of_the_rows_that_are_left",
            "sources/test_skipping.py::test_a_run_counts_them_and_so_does_its_manifest",
            "statistics/test_missing.py::test_the_sums_are_those_of_a_loop_over_rows",
            "estimators/test_ppca.py::test_infinite_entries_are_errors",
            "estimators/test_ppca.py::test_rows_without_entries_are_counted",
            "estimators/test_ppca.py::test_a_column_without_values_is_named_or_dropped",
        ),
    ),
    Fault(
        "constant columns, one row, k > rank, k > d",
        "no NaN in results; a clear error, or fewer components",
        ("estimators/test_pca.py::test_hard_data_gives_finite_results", "test_bad_input.py::test_a_bad_request_is_refused"),
    ),
    Fault(
        "huge means, every dtype, the ends of float32",
        "the answer of float64 arithmetic to 1e-12 (float64) or 1e-6 (float32)",
        (
            "estimators/test_pca.py::test_a_huge_mean_in_float64",
            "estimators/test_pca.py::test_a_huge_mean_in_float32",
            "estimators/test_pca.py::test_dtypes",
            "statistics/test_scatter.py::test_the_ends_of_the_range",
        ),
    ),
    Fault(
        "rows appended, data shrunk or replaced while it is read",
        "the rows are those at opening, each pass checks them; exit 65, nothing left",
        ("test_faults.py::test_data_that_changes_while_it_is_read",),
    ),
    Fault(
        "other or duplicate feature names",
        "an error that names them",
        ("estimators/test_lazy.py::test_other_names_are_refused_and_named", "sources/test_views.py::test_names_that_do_not_exist"),
    ),
    Fault(
        "disk full",
        "free space is looked at first; exit 73; the previous output is intact",
        ("test_faults.py::test_a_full_disk", "sinks/conformance.py::test_a_full_disk_is_a_clean_error"),
    ),
    Fault(
        "SIGKILL at any moment of fit, transform, update, impute_to",
        "the next run goes on; the same bytes; nothing half-written is ever seen",
        (
            "test_faults.py::test_killed_at_a_failpoint",
            "test_faults.py::test_killed_while_replacing_outputs_of_every_format",
            "test_faults.py::test_other_commands_killed_at_a_failpoint",
            "test_faults.py::test_every_solver_goes_on",
            "test_faults.py::test_killed_at_random_moments",
        ),
    ),
    Fault(
        "SIGTERM, SIGINT, SIGUSR1",
        "a checkpoint, exit 75 within 10 s of the current block",
        ("test_faults.py::test_asked_to_stop", "cli/test_progress.py::test_a_signal_stops_a_fit"),
    ),
    Fault(
        "worker or scheduler lost",
        "the same bits; exit 75 without hanging, and the run goes on",
        (
            "test_cluster_faults.py::test_a_worker_is_killed_in_every_pass",
            "test_cluster_faults.py::test_the_scheduler_is_killed_and_the_run_goes_on_elsewhere",
        ),
    ),
    Fault(
        "out of memory",
        "refused by the plan; measured peak <= projected <= budget",
        (
            "planning/test_covariance_plan.py::test_a_refusal_names_a_budget_that_is_enough",
            "test_memory.py::test_the_peak_does_not_grow_with_the_data",
            "test_memory.py::test_every_solver_keeps_to_its_projection",
            "test_faults.py::test_the_peak_with_checkpoints",
        ),
    ),
    Fault(
        "two runs on one output",
        "the second exits 76 and names host, pid and start of the first; a dead holder is taken over",
        (
            "test_faults.py::test_a_second_run_on_the_same_output",
            "jobs/test_lock.py::test_the_second_is_told_who_the_first_is_and_a_dead_one_is_taken_over",
        ),
    ),
    Fault(
        "hostile model, state or config",
        "no pickle, no eval; versions, shapes and checksums are checked",
        (
            "test_storage.py::test_any_flipped_byte_is_an_error_or_changes_nothing",
            "test_storage.py::test_object_dtypes_are_refused",
            "test_storage.py::test_a_newer_version",
            "test_faults.py::test_a_damaged_checkpoint_is_not_believed",
            "jobs/test_config.py::test_python_tags_are_refused_and_run_nothing",
        ),
    ),
    Fault(
        "HDF5 links, storage or virtual sources out of the folder",
        "refused",
        (
            "sources/test_hdf5.py::test_external_links_are_refused",
            "sources/test_hdf5.py::test_external_storage_is_refused",
            "sources/test_hdf5.py::test_virtual_sources_outside_the_folder_are_refused",
        ),
    ),
    Fault(
        "decompression bomb, giant chunk",
        "refused by the declared size before anything is allocated",
        (
            "sources/test_filters.py::test_bombs_are_refused_without_their_memory",
            "sources/test_hdf5_raw.py::test_a_bomb_names_its_chunk",
            "sources/test_hdf5_raw.py::test_a_giant_chunk_is_in_the_plan",
            "test_storage.py::test_a_decompression_bomb_is_not_inflated",
        ),
    ),
    Fault(
        "reachable from the network",
        "nothing listens; a cluster that is started binds to the loopback",
        ("test_faults.py::test_a_run_listens_to_nobody", "engine/test_launch.py::test_what_sbatch_is_given"),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_proved_somewhere(fault: Fault) -> None:
    for proof in fault.proofs:
        file, _, name = proof.partition("::")
        assert re.search(rf"def {name}\(", (ROOT / "tests" / file).read_text()), f"there is no test {proof}"
    print(f"{fault.name} | {fault.promise} | {', '.join(fault.proofs)}")


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
