"""Every block of the README is run, in order, in a scratch folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streampca as sp
from tests.cli.harness import ROOT, environment, free_port, wait_until

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SETUP = "./scripts/"  # these make .venv and run everything: not from within the tests


def is_setup(text: str) -> bool:
    return text.lstrip().startswith(SETUP)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as ./scripts/run leaves it, but with a smaller sample, and a ``streampca`` command."""
    folder = tmp_path_factory.mktemp("readme")
    make_data = [sys.executable, str(ROOT / "scripts" / "make_data.py"), "out/sample.h5", "--rows", "3000", "--features", "64"]
    subprocess.run(make_data, cwd=folder, check=True, capture_output=True, timeout=60)
    shutil.copytree(ROOT / "configs", folder / "configs")
    command = folder / "bin" / "streampca"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streampca "$@"\n')
    command.chmod(0o755)
    return folder


def execute(command: list[str], folder: Path) -> str:
    """Run a command to its end, and that of all it started; return what it printed."""
    env = environment()
    env["PATH"] = f"{folder / 'bin'}{os.pathsep}{env['PATH']}"
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(timeout=90)
            if code == 0:
                wait_until(lambda: not is_alive(process.pid), 20)
        finally:
            if is_alive(process.pid):
                os.killpg(process.pid, signal.SIGKILL)  # the group that was started here
                process.wait()
        log.seek(0)
        output = log.read()
    assert code == 0, output
    return output


def is_alive(group: int) -> bool:
    """Say whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_there_are_blocks_of_every_kind() -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert set(kinds) == {"sh", "python"}
    assert README.count("```") == 2 * len(BLOCKS)
    assert [is_setup(text) for _, text in BLOCKS].count(True) == 1


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=lambda number: f"{number}-{BLOCKS[number][0]}")
def test_every_block_works(number: int, scratch: Path) -> None:
    kind, text = BLOCKS[number]
    if is_setup(text):
        for line in text.splitlines():
            script = ROOT / line.split()[0]
            assert os.access(script, os.X_OK), f"{script} cannot be run"
        return
    if kind == "python":
        output = execute([sys.executable, "-c", text], scratch)
        assert output
    else:
        text = text.replace(":8786", f":{(port := free_port())}").replace("--port 8786", f"--port {port}")
        execute(["bash", "-euc", text], scratch)


def test_the_blocks_left_what_they_promise(scratch: Path) -> None:
    model = sp.load(scratch / "out" / "m.zarr")
    assert (model.n_components_, model.n_samples_) == (50, 3000)
    np.testing.assert_allclose(
        sp.open_source(scratch / "out" / "z.h5").read(slice(None)), model.transform(scratch / "out" / "sample.h5"), atol=1e-4
    )
    np.testing.assert_array_equal(
        sp.open_source(scratch / "out" / "z.h5").read(slice(None)), sp.open_source(scratch / "out" / "z.zarr").read(slice(None))
    )
    assert np.load(scratch / "out" / "scores.npy").shape == (3000, 10)
    np.testing.assert_array_equal(sp.load(scratch / "out" / "cluster.zarr").components_, model.components_)  # the same bits everywhere


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
