"""Kill commands at random moments and run them again: the outputs must be, byte for byte, those of an undisturbed run.

``python -m tests.random_kills 100`` does it a hundred times and prints the count.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from pathlib import Path

import h5py

from tests.cli.harness import table, write_h5
from tests.cli.small_shards import Kitchen

OFTEN = ("--memory", "1GiB", "--checkpoint-every", 0, "--quiet")


def contents(folder: Path, *, hidden: bool = False) -> dict[str, bytes]:
    """Every file below, but not the manifest, which tells the time."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name: _read(path)
        for name, path in found.items()
        if not name.endswith("manifest.json") and (hidden or not any(part.startswith(".") for part in Path(name).parts))
    }


def _read(path: Path) -> bytes:
    """Return the bytes of a file; of HDF5 those of the table, for threads place its chunks in any order."""
    if path.suffix != ".h5":
        return path.read_bytes()
    with h5py.File(path) as file:
        return file["scores"][:].tobytes()


def no_partial_output(folder: Path, *wanted: dict[str, bytes]) -> None:
    """Whatever is visible is complete: each output is, file by file, one of those that it may be, or not there."""
    seen = contents(folder / "out") if (folder / "out").exists() else {}
    for output in {name.partition("/")[0] for name in seen}:
        parts = [{name: content for name, content in each.items() if name.partition("/")[0] == output} for each in (seen, *wanted)]
        assert parts[0] in parts[1:], f"{output} is neither the old nor the new one"


def random_kills(kitchen: Kitchen, folder: Path, data: Path, command: str, kills: int, seed: int) -> int:
    """Kill a command at random moments until it has been killed so many times; return how many times it was."""
    chance = random.Random(seed)
    arguments, prepared = prepared_command(kitchen, folder, data, command)
    whole = folder / "whole"
    shutil.copytree(prepared, whole)
    done = kitchen.run(*arguments, cwd=whole)
    assert done.code == 0, done.stderr
    before, wanted = contents(prepared / "out"), contents(whole / "out", hidden=True)
    killed = rounds = 0
    while killed < kills:
        rounds += 1
        work = folder / f"work{rounds}"
        shutil.copytree(prepared, work)
        for _ in range(5):
            ended = kitchen.run(*arguments, cwd=work, signal_after=chance.uniform(0, done.seconds))
            no_partial_output(work, before, wanted)
            if ended.code != -9:
                break
            killed += 1
        if ended.code != 0:
            ended = kitchen.run(*arguments, cwd=work)
        # Killed when all was done, the next run finds the outputs, or the rows, there.
        assert ended.code in (0, 73) or (command == "update" and "nothing is new" in ended.stderr), ended.stderr
        found = contents(work / "out", hidden=True)
        differing = [name for name in {*found, *wanted} if found.get(name) != wanted.get(name)]
        assert not differing, f"{command}, seed {seed}, round {rounds}: {differing}"
        shutil.rmtree(work)
        assert rounds < 20 * kills
    return killed


def prepared_command(kitchen: Kitchen, folder: Path, data: Path, command: str) -> tuple[tuple[object, ...], Path]:
    """Return a command, and a folder where it can be run."""
    prepared = folder / "prepared"
    (prepared / "out").mkdir(parents=True)
    if command == "fit":
        return ("fit", data, "-k", 3, *OFTEN, "--model", "out/m.zarr", "--scores", "out/z.zarr"), prepared
    if command == "impute":
        fitted = kitchen.run("fit", data, "-k", 3, "--method", "ppca", *OFTEN, "--model", "out/m.zarr", cwd=prepared)
        assert fitted.code == 0, fitted.stderr
        return ("impute", "out/m.zarr", data, "out/z.npy"), prepared
    fitted = kitchen.run("fit", data, "-k", 3, "--rows", "0:400", *OFTEN, "--model", "out/m.zarr", cwd=prepared)
    assert fitted.code == 0, fitted.stderr
    if command == "transform":
        return ("transform", "out/m.zarr", data, *OFTEN, "--to", "out/z.npy"), prepared
    return ("update", "out/m.zarr", data, "--rows", "400:1600", *OFTEN), prepared


def main(kills: int) -> None:
    kitchen = Kitchen()
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as text:
        data = write_h5(Path(text) / "x.h5", table(1600, 16), chunks=(32, 16), compression="gzip")
        for number, command in enumerate(("fit", "transform", "update")):
            folder = Path(text) / command
            folder.mkdir()
            counts[command] = random_kills(kitchen, folder, data, command, -(-kills // 3), seed=number)
    kitchen.close()
    print(f"killed {sum(counts.values())} times at random moments ({counts}): always the bytes of an undisturbed run")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
