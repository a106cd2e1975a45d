"""The command line on a Dask cluster of processes: by address, by scheduler file, by environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca as sp
from tests.cli.harness import DaskProcesses, dask_processes, run, table, write_h5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskProcesses]:
    with dask_processes(tmp_path_factory.mktemp("dask")) as processes:
        yield processes


def connections(cluster: DaskProcesses) -> int:
    return (cluster.file.parent / "scheduler.log").read_text().count("Receive client connection")


@pytest.mark.parametrize("how", ["--scheduler", "--scheduler-file", "DASK_SCHEDULER_ADDRESS"])
def test_a_cluster_gives_the_same_bits(how: str, cluster: DaskProcesses, tmp_path: Path) -> None:
    write_h5(tmp_path / "x.h5", table(), chunks=(100, 8), compression="gzip")
    here = run("fit", "x.h5", "-k", 3, "--model", "here.zarr", "--scores", "here.npy", "--memory", "1GiB", cwd=tmp_path)
    assert here.returncode == 0, here.stderr
    before = connections(cluster)
    options: list[object] = [] if how.startswith("DASK") else [how, cluster.file if how.endswith("file") else cluster.address]
    env: dict[str, Any] = {"DASK_SCHEDULER_ADDRESS": cluster.address} if how.startswith("DASK") else {}
    there = run("fit", "x.h5", "-k", 3, "--model", "there.zarr", "--scores", "there.npy", "--memory", "1GiB", *options, cwd=tmp_path, **env)
    assert there.returncode == 0, there.stderr
    assert connections(cluster) == before + 1
    first, second = sp.load(tmp_path / "here.zarr"), sp.load(tmp_path / "there.zarr")
    np.testing.assert_array_equal(first.components_, second.components_)
    np.testing.assert_array_equal(first.explained_variance_, second.explained_variance_)
    np.testing.assert_array_equal(np.load(tmp_path / "here.npy"), np.load(tmp_path / "there.npy"))


def test_transform_plan_and_errors_on_a_cluster(cluster: DaskProcesses, tmp_path: Path) -> None:
    X = table()
    sp.PCA(3).fit(X).save(tmp_path / "m.zarr")
    write_h5(tmp_path / "x.h5", X)
    done = run("transform", "m.zarr", "x.h5", "--to", "z.zarr", "--scheduler", cluster.address, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "job.yaml").write_text(f"input: {{path: x.h5}}\nscheduler: {{file: {cluster.file}}}\n")
    assert run("plan", "job.yaml", cwd=tmp_path).returncode == 0
    X[123, 4] = np.nan
    write_h5(tmp_path / "nan.h5", X)
    done = run("fit", "nan.h5", "-k", 3, "--model", "n.zarr", "--scheduler", cluster.address, cwd=tmp_path)
    assert done.returncode == 65
    assert "row 123, column 4" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "n.zarr").exists()
