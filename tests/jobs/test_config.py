"""Configs: what is refused and how it is said, what is equal, and that every file in configs/ runs from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import yaml
import zarr

import streampca as sp
from streampca.errors import ConfigError, UsageError
from streampca.events import Observer
from streampca.jobs import load_config, make_config, plan_job, run_job
from tests.cli.harness import ROOT, dask_processes, listing, run, table, write_h5

CONFIGS = sorted((ROOT / "configs").iterdir())


def write(folder: Path, text: str, name: str = "job.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# --- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"input": {"path": "x.h5"}, "memry": "1GiB"}, "unknown key 'memry'; known here: input, method.* Did you mean 'memory'?"),
        ({"input": {"path": "x.h5", "datset": "X"}}, "unknown key 'input.datset'.* Did you mean 'dataset'?"),
        ({"input": {"path": "x.h5"}, "output": {"scoers": "z"}}, "unknown key 'output.scoers'.* Did you mean 'scores'?"),
        ({"input": {"path": "x.h5"}, "scheduler": {"adress": "z"}}, "unknown key 'scheduler.adress'.* Did you mean 'address'?"),
        ({"input": {"path": "x.h5"}, "method": {"n_component": 3}}, "'pca' has no parameter 'n_component'.* Did you mean 'n_components'?"),
        ({"input": {"path": "x.h5"}, "method": {"memory": "1GiB"}}, "'pca' has no parameter 'memory'"),
        ({"input": {"path": "x.h5"}, "method": {"name": "pac"}}, "method.name: .*'pca'.*got 'pac'"),
        ({}, "input is required"),
        ({"input": {}}, "input.path is required"),
        ({"input": "x.h5"}, "input: .*got 'x.h5'"),
        ({"input": {"path": 3}}, r"input.path.*got 3"),
        ({"input": {"path": "x.h5", "samples_axis": 2}}, "input.samples_axis: .*got 2"),
        ({"input": {"path": "x.h5", "missing_chunks": "ignore"}}, "input.missing_chunks: .*'warn', 'error' or 'fill'.*got 'ignore'"),
        ({"input": {"path": "x.h5"}, "scheduler": {"workers": 0}}, "scheduler.workers: .*got 0"),
        ({"input": {"path": "x.h5"}, "scheduler": {"workers": "many"}}, "scheduler.workers: .*got 'many'"),
        ({"input": {"path": "x.h5"}, "output": {"overwrite": "perhaps"}}, "output.overwrite: .*got 'perhaps'"),
        ({"input": {"path": "x.h5"}, "memory": [1]}, r"memory.*got \[1\]"),
        ({"input": {"path": "x.h5"}, "output": None}, "output: .*got None"),
    ],
    ids=str,
)
def test_mistakes_are_named(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = write(tmp_path, yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=f"(?s){path}: .*{message}") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'memry'.*'inptu'|'inptu'.*'memry'"):
        make_config({"inptu": {}, "memry": 3})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "input: {path: [", "is not valid YAML"),
        ("a.yaml", "- a\n- b\n", "must hold keys such as 'input' and 'method', not list"),
        ("a.yaml", "", "must hold keys such as 'input' and 'method', not NoneType"),
        ("a.toml", "input = \n", "is not valid TOML"),
        ("a.yaml", "\x00", "is not valid YAML"),
    ],
)
def test_files_that_cannot_be_parsed(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, text, name))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config .*none.yaml"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot read config"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match="cannot read config"):
        load_config(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {canary}']",
        "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{canary}']]",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/tuple [1, 2]",
    ],
)
def test_python_tags_are_refused_and_run_nothing(tmp_path: Path, value: str) -> None:
    canary = tmp_path / "canary"
    text = value.replace("{canary}", str(canary))
    path = write(tmp_path, f"input: {{path: x.h5}}\nmemory: {text}\n")
    with pytest.raises(ConfigError, match="is not valid YAML: could not determine a constructor"):
        load_config(path)
    fine = write(tmp_path, "input: {path: x.h5}")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        load_config(fine, [f"memory={text}"])
    assert not canary.exists()


# --- what is read ----------------------------------------------------------------------------------------------


def test_toml_and_yaml_are_equal(tmp_path: Path) -> None:
    in_yaml = """
        input: {path: "runs/*.h5", dataset: X, samples_axis: 1, columns: [0, name, 2], rows: "0:100", missing_chunks: fill}
        method: {name: pca, n_components: 0.5, whiten: true}
        memory: 2GiB
        output: {model: m.zarr, scores: z.h5, overwrite: true}
        scheduler: {address: "tcp://127.0.0.1:8786", workers: 3}
    """
    in_toml = """
        memory = "2GiB"
        [input]
        path = "runs/*.h5"
        dataset = "X"
        samples_axis = 1
        columns = [0, "name", 2]
        rows = "0:100"
        missing_chunks = "fill"
        [method]
        name = "pca"
        n_components = 0.5
        whiten = true
        [output]
        model = "m.zarr"
        scores = "z.h5"
        overwrite = true
        [scheduler]
        address = "tcp://127.0.0.1:8786"
        workers = 3
    """
    first, second = load_config(write(tmp_path, in_yaml)), load_config(write(tmp_path, in_toml, "job.toml"))
    assert first == second
    assert first.method.parameters == {"n_components": 0.5, "whiten": True}
    assert (first.input.samples_axis, first.scheduler.workers, first.output.overwrite) == (1, 3, True)


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "input: {path: x.h5}"))
    assert config.method.parameters == {}
    assert (config.memory, config.output.model, config.scheduler.address, config.input.missing_chunks) == (None, None, None, "warn")


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "input: {path: x.h5}\nmethod: {n_components: 3}\n")
    config = load_config(
        path,
        ["memory=1GiB", "method.n_components=0.9", "method.whiten=true", "output.scores=z.zarr", "input.rows=[0, 10]", "input.dataset=a=b"],
    )
    assert config.memory == "1GiB"
    assert config.method.parameters == {"n_components": 0.9, "whiten": True}
    assert (config.output.scores, config.input.rows, config.input.dataset) == ("z.zarr", [0, 10], "a=b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory", "cannot read --set 'memory': write key=value"),
        ("=3", "cannot read --set '=3'"),
        ("memory.limit=3", "'memory' is a value, not a section"),
        ("methd.whiten=true", "unknown key 'methd'.* Did you mean 'method'?"),
        ("method.whitn=true", "Did you mean 'whiten'?"),
        ("memory=[1", "--set 'memory=\\[1'"),
    ],
)
def test_overrides_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "input: {path: x.h5}\nmemory: 1GiB\n")
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path, [text])
    assert "\n" not in str(caught.value)


# --- runs ------------------------------------------------------------------------------------------------------


def test_a_run_in_python(tmp_path: Path) -> None:
    X = table(300, 6)
    path = write_h5(tmp_path / "x.h5", X.T)
    content = {
        "input": {"path": str(path), "samples_axis": 1, "columns": [5, 0, 2], "rows": [10, 250, 2]},
        "method": {"n_components": 2, "standardize": True},
        "output": {"model": str(tmp_path / "m.zarr"), "scores": str(tmp_path / "z.npy")},
        "scheduler": {"workers": 1},
    }
    plan, summary = plan_job(make_config(content)), run_job(make_config(content), Observer())
    part = X[10:250:2][:, [5, 0, 2]]
    assert (summary["rows"], summary["features"], summary["components"], summary["passes"]) == (120, 3, 2, 1)
    assert plan.n_passes == 2  # with the scores
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), sp.PCA(2, standardize=True).fit_transform(part), atol=1e-12)
    assert sp.load(tmp_path / "m.zarr").n_samples_ == 120


def test_many_files_as_a_list(tmp_path: Path) -> None:
    X = table(90, 4)
    paths = [str(write_h5(tmp_path / f"{i}.h5", part)) for i, part in enumerate(np.split(X, 3))]
    content = {"input": {"path": paths[::-1]}, "output": {"scores": str(tmp_path / "z.npy")}}
    assert run_job(make_config(content), Observer())["rows"] == 90
    wanted = sp.PCA().fit(X).transform(np.vstack(np.split(X, 3)[::-1]))
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), wanted, atol=1e-10)


@pytest.mark.parametrize("policy", ["warn", "error", "fill"])
def test_missing_chunks(tmp_path: Path, policy: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", (100, 4), "f8", chunks=(25, 4))[:50] = table(50, 4)

    class Listener(Observer):
        heard: list[str] = []  # noqa: RUF012

        def warned(self, message: str) -> None:
            self.heard.append(message)

    output = {"model": str(tmp_path / "m.zarr")}
    config = make_config({"input": {"path": str(tmp_path / "x.h5"), "missing_chunks": policy}, "output": output})
    observer = Listener()
    observer.heard = []
    if policy == "error":
        with pytest.raises(sp.errors.DataError, match=r"2 stored chunk.*are absent.*missing_chunks: warn or fill"):
            run_job(config, observer)
        return
    summary = run_job(config, observer)
    assert summary["warnings"] == observer.heard
    assert [message.split(" stored")[0] for message in observer.heard] == (["2"] if policy == "warn" else [])
    manifest = json.loads((tmp_path / "m.zarr.manifest.json").read_text())
    assert (manifest["missing_chunks"], manifest["summary"]["warnings"]) == (2, observer.heard)


def test_outputs_never_replace_what_is_read_or_each_other(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("X", data=table(), chunks=(100, 8))
    before = listing(tmp_path)
    source = str(tmp_path / "x.zarr")
    for path in (source, source + "::X", source + "/X", str(tmp_path / "*.zarr")):
        for output in ({"model": source}, {"scores": source}):
            with pytest.raises(UsageError, match="is what is read"):
                run_job(make_config({"input": {"path": path}, "output": {**output, "overwrite": True}}), Observer())
    for model, scores in (("a.zarr", "a.zarr"), ("a.zarr", "a.zarr/b.zarr"), ("a.zarr/b", "a.zarr")):
        output = {"model": str(tmp_path / model), "scores": str(tmp_path / scores)}
        with pytest.raises(UsageError, match="cannot both go to"):
            run_job(make_config({"input": {"path": source}, "output": output}), Observer())
    assert listing(tmp_path) == before


# --- configs/ --------------------------------------------------------------------------------------------------


def test_configs_of_every_kind_are_there() -> None:
    assert {"quickstart.yaml", "hdf5.yaml", "zarr.yaml", "cluster.yaml", "slurm.yaml"} <= {path.name for path in CONFIGS}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_is_valid(path: Path) -> None:
    assert load_config(path).output.model is not None


def make_input(config: Any, folder: Path) -> int:
    """Write what a config reads, at the path that it names below ``folder``; return the number of rows."""
    name, dataset = config.input.path, config.input.dataset
    X = table(600, 24)
    if name.endswith(".zarr"):
        zarr.create_array(folder / name, data=X, chunks=(100, 24))
        return 600
    for path in [name.replace("*", str(i)) for i in range(3)] if "*" in name else [name]:
        write_h5(folder / path, X, dataset, chunks=(100, 24), compression="gzip")
    return 1800 if "*" in name else 600


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_runs_from_end_to_end(path: Path, tmp_path: Path) -> None:
    config: Any = load_config(path)
    n_rows = make_input(config, tmp_path)
    if config.scheduler.slurm is not None:
        done = run("run", path, "--set", "scheduler={workers: 1}", cwd=tmp_path)
    elif config.scheduler.address is None:
        done = run("run", path, cwd=tmp_path)
    else:
        (tmp_path / "dask").mkdir()
        with dask_processes(tmp_path / "dask") as cluster:
            done = run("run", path, "--set", f"scheduler.address={cluster.address}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "components" in done.stdout
    fitted = sp.load(tmp_path / config.output.model)
    assert fitted.n_samples_ == n_rows
    scores = sp.open_source(tmp_path / config.output.scores)
    assert (scores.info.n_rows, scores.info.n_features) == (n_rows, fitted.n_components_)
    wanted = sp.open_source(str(tmp_path / config.input.path), dataset=config.input.dataset).read(slice(None))
    np.testing.assert_allclose(scores.read(slice(None)), fitted.transform(wanted), atol=1e-10)


def test_a_wish_for_checkpoints_is_fulfilled_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 3)))
    content = {"input": {"path": str(tmp_path / "x.npy")}, "method": {"n_components": 1}, "checkpoint": {"every": 30}}
    assert run_job(make_config(content), Observer())["warnings"] == []
