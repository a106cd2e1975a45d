"""A Dask cluster of processes started by hand: by address, by scheduler file, by environment, from the command line and from Python."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import streampca as sp
from tests.cli.harness import ROOT, DaskProcesses, dask_processes, end, run, table, wait_until, write_h5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path_factory.mktemp("dask"), n_workers=2) as processes:
        yield processes


def connections(cluster: DaskProcesses) -> int:
    return (cluster.file.parent / "scheduler.log").read_text().count("Receive client connection")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, and what a run on local threads leaves."""
    folder = tmp_path_factory.mktemp("here")
    write_h5(folder / "x.h5", table(), chunks=(100, 8), compression="gzip")
    done = run("fit", "x.h5", "-k", 3, "--model", "m.zarr", "--scores", "z.npy", "--memory", "1GiB", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("how", ["--scheduler", "--scheduler-file", "DASK_SCHEDULER_ADDRESS"])
def test_a_cluster_gives_the_same_bits(how: str, cluster: DaskProcesses, here: Path, tmp_path: Path) -> None:
    before = connections(cluster)
    options: list[object] = [] if how.startswith("DASK") else [how, cluster.file if how.endswith("file") else cluster.address]
    env: dict[str, Any] = {"DASK_SCHEDULER_ADDRESS": cluster.address} if how.startswith("DASK") else {}
    outputs = ["--model", "m.zarr", "--scores", "z.npy"]
    done = run("fit", here / "x.h5", "-k", 3, *outputs, "--memory", "1GiB", *options, cwd=tmp_path, **env)
    assert done.returncode == 0, done.stderr
    assert connections(cluster) == before + 1
    first, second = sp.load(here / "m.zarr"), sp.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(first.components_, second.components_)
    np.testing.assert_array_equal(first.explained_variance_, second.explained_variance_)
    np.testing.assert_array_equal(np.load(here / "z.npy"), np.load(tmp_path / "z.npy"))


def test_transform_plan_and_errors_on_a_cluster(cluster: DaskProcesses, tmp_path: Path) -> None:
    X = table()
    sp.PCA(3).fit(X).save(tmp_path / "m.zarr")
    write_h5(tmp_path / "x.h5", X)
    done = run("transform", "m.zarr", "x.h5", "--to", "z.zarr", "--scheduler", cluster.address, "--log", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stderr.splitlines()]
    assert [record["event"] for record in records] == ["note", "started", "finished"]
    assert re.match(rf"Dask cluster at {cluster.address}: [12] worker.*dashboard: http", records[0]["message"])
    (tmp_path / "job.yaml").write_text(f"input: {{path: x.h5}}\nscheduler: {{file: {cluster.file}}}\n")
    assert run("plan", "job.yaml", cwd=tmp_path).returncode == 0
    X[123, 4] = np.nan
    write_h5(tmp_path / "nan.h5", X)
    done = run("fit", "nan.h5", "-k", 3, "--model", "n.zarr", "--scheduler", cluster.address, cwd=tmp_path)
    assert done.returncode == 65
    assert "row 123, column 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "n.zarr").exists()


def test_a_client_in_python_gives_the_same_bits(cluster: DaskProcesses, here: Path) -> None:
    path = here / "x.h5"
    for where in ({"address": cluster.address}, {"scheduler_file": str(cluster.file)}):
        before = connections(cluster)
        with Client(**where) as client:
            client.wait_for_workers(2, timeout=60)
            there = sp.PCA(3, memory="1GiB").fit(path)
            scores = there.transform(path).compute()
        assert connections(cluster) > before
        np.testing.assert_array_equal(there.components_, sp.load(here / "m.zarr").components_)
        np.testing.assert_allclose(scores, np.load(here / "z.npy"), atol=1e-12)


def test_the_batch_script_of_the_docs_puts_itself_back_into_the_queue(tmp_path: Path) -> None:
    """With a run that is told to stop before its time is up, and a SLURM that only takes notes."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", (ROOT / "docs" / "cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "job.sh").write_text(next(block for block in blocks if "--requeue" in block))
    commands = {
        "streampca": "trap 'exit 75' USR1\ntouch started\nfor _ in {1..1000}; do sleep 0.02; done",
        "scontrol": 'echo "$@" > asked',
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=env)
    try:
        wait_until((tmp_path / "started").exists, 20)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(20) == 75
    finally:
        job.kill()
        end(job)
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
