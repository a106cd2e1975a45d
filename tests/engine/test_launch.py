"""Clusters that are started for a run: what is asked of them, and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import streampca as sp
from streampca.engine import launch
from streampca.engine.launch import performance_reported, slurm_cluster, wait_for_a_worker
from streampca.errors import ConfigError, InterruptedRunError, MissingExtraError, UsageError
from streampca.events import Observer
from streampca.jobs import make_config, plan_job
from streampca.jobs.config import SchedulerConfig, SlurmConfig
from streampca.jobs.run import scheduler_of

SLURM = {"cores": 8, "memory": "16GiB", "queue": "normal", "account": "project", "walltime": "02:00:00", "interface": "lo"}


def slurm(**more: object) -> SlurmConfig:
    return SlurmConfig.model_validate({**SLURM, **more})


def test_what_sbatch_is_given() -> None:
    pytest.importorskip("dask_jobqueue")
    options = slurm(directives=["--constraint=skylake"], prologue=["module load python"]).options()
    with slurm_cluster(options) as cluster:
        script = cluster.job_script()
        assert cluster.scheduler_address.startswith("tcp://127.0.0.1:")
    for line in ("-p normal", "-A project", "--cpus-per-task=8", "--mem=16G", "-t 02:00:00", "--constraint=skylake"):
        assert f"#SBATCH {line}\n" in script
    assert "module load python\n" in script
    assert "--nthreads 8" in script
    assert "--memory-limit 16.00GiB" in script


def test_without_the_extra_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'streampca\[jobqueue\]'") as caught:
        slurm_cluster(slurm().options())
    assert caught.value.exit_code == 2


def test_where_there_is_no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no sbatch"), scheduler_of(SchedulerConfig(slurm=slurm())):
        pass


def test_a_plan_submits_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1000, 8)))
    content = {"input": {"path": str(tmp_path / "x.npy")}, "scheduler": {"slurm": {**SLURM, "processes": 2}}}
    assert plan_job(make_config(content)).budget == int(0.6 * 8 * 2**30)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ({"slurm": {**SLURM, "que": "x"}}, "unknown key 'scheduler.slurm.que'.* Did you mean 'queue'?"),
        ({"slurm": {"cores": 8}}, "scheduler.slurm.memory is required"),
        ({"slurm": {**SLURM, "walltime": 43200}}, "scheduler.slurm.walltime: write it in quotes.*got 43200"),
        ({"slurm": SLURM, "address": "tcp://127.0.0.1:1"}, "scheduler: address or file and slurm exclude each other"),
    ],
)
def test_mistakes_are_named(scheduler: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config({"input": {"path": "x.h5"}, "scheduler": scheduler})


def test_processes_of_this_machine_give_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(500, 6)))
    here = sp.PCA(3, memory="1GiB").fit(path)
    with scheduler_of(SchedulerConfig(processes=1, workers=2)) as scheduler:
        assert (scheduler.workers, scheduler.memory_limit() is None) == (2, False)
        there = sp.PCA(3, memory="1GiB").fit_source(sp.open_source(path), scheduler=scheduler)
    np.testing.assert_array_equal(there.components_, here.components_)


def test_a_performance_report(client: Client, tmp_path: Path) -> None:
    try:
        import bokeh  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="pip install bokeh"), performance_reported(client, str(tmp_path / "r.html")):
            pass
    else:
        with performance_reported(client, str(tmp_path / "new" / "r.html")):
            client.submit(int, 1).result()
        assert "Dask Performance Report" in (tmp_path / "new" / "r.html").read_text()


def test_a_performance_report_of_no_cluster() -> None:
    with pytest.raises(UsageError, match="none is named"), scheduler_of(SchedulerConfig(performance_report="r.html")):
        pass


class NoWorkers:
    """A client of a scheduler that nobody has joined."""

    class scheduler:  # noqa: N801
        address = "tcp://10.0.0.1:8786"

    def nthreads(self) -> dict[str, int]:
        return {}


class Stopping(Observer):
    def stop_requested(self) -> bool:
        return True


def test_nobody_joins() -> None:
    with pytest.raises(InterruptedRunError, match=r"no worker has joined the Dask scheduler at tcp://10\.0\.0\.1:8786"):
        wait_for_a_worker(NoWorkers(), Observer(), 0)
    with pytest.raises(InterruptedRunError, match="stopped on request while waiting"):
        wait_for_a_worker(NoWorkers(), Stopping(), 60)


def test_jobs_that_slurm_does_not_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Refused:
        def sync(self, *arguments: object) -> None:
            raise RuntimeError("Command exited with non-zero exit code.\nstdout:\n\nstderr:\nsbatch: error: invalid account\n")

        def close(self) -> None:
            raise AssertionError("created")

    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "slurm_cluster", lambda options: Refused())
    with pytest.raises(UsageError, match=r"does not take the jobs \(sbatch: error: invalid account\)"), launch.slurm_jobs({}, 1):
        pass
