"""A run described by a YAML or TOML file: parsed safely, checked completely, every mistake named with its remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from streampca.errors import ConfigError, did_you_mean
from streampca.estimators import METHODS


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputConfig(_Section):
    """What to read."""

    path: str | list[str]
    dataset: str | None = None
    samples_axis: Literal[0, 1] = 0
    columns: list[int | str] | str | None = None
    rows: list[int] | str | None = None
    weights: str | None = None  # a path::dataset, or ::dataset in the same file
    missing_chunks: Literal["warn", "error", "fill"] = "warn"
    nan: Literal["error", "skip"] = "error"  # rows with a NaN: of PCA; other methods take them as missing entries, or refuse them


class MethodConfig(BaseModel):
    """What to fit: the name of a method and any parameter of its estimator."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "pca"

    @property
    def parameters(self) -> dict[str, Any]:
        """The estimator's parameters that are given."""
        return dict(self.model_extra or {})


class OutputConfig(_Section):
    """What to write."""

    model: str | None = None
    scores: str | None = None
    report: str | None = None
    overwrite: bool = False


class SlurmConfig(_Section):
    """SLURM jobs to run on: what dask-jobqueue asks sbatch for, once for each of ``workers`` jobs."""

    cores: int = Field(ge=1)
    memory: str
    processes: int = Field(default=1, ge=1)  # that share a job's cores and memory
    queue: str | None = None
    account: str | None = None
    walltime: str | None = None
    interface: str | None = None  # of the network, such as ib0
    local_directory: str | None = None
    log_directory: str | None = None
    directives: list[str] = []  # more options of sbatch, such as --constraint=skylake
    prologue: list[str] = []  # of the job's script, such as module load python
    wait: float = Field(default=3600.0, ge=0)  # seconds, for the first worker

    @field_validator("walltime", mode="before")
    @classmethod
    def _quoted(cls, walltime: object) -> object:
        if isinstance(walltime, int):
            raise ValueError("write it in quotes, such as '12:00:00', for YAML takes this for a number")
        return walltime

    def options(self) -> dict[str, Any]:
        """Return what is given as options of dask-jobqueue, whose own config has the rest."""
        given = self.model_dump(exclude={"wait", "directives", "prologue"}, exclude_none=True)
        lines = {"job_extra_directives": self.directives, "job_script_prologue": self.prologue}
        return {**given, **{name: value for name, value in lines.items() if value}}


class SchedulerConfig(_Section):
    """Where to run: a Dask scheduler by address or file, worker processes on this machine, SLURM jobs, or else local threads."""

    address: str | None = None
    file: str | None = None
    processes: int | None = Field(default=None, ge=1)
    slurm: SlurmConfig | None = None
    workers: int | None = Field(default=None, ge=1)  # threads of this process or of each of ``processes``; or SLURM jobs
    performance_report: str | None = None  # Dask's own, as HTML

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        named = {"address or file": self.address or self.file, "processes": self.processes, "slurm": self.slurm}
        chosen = [name for name, value in named.items() if value]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other: a run has one scheduler")
        return self


class CheckpointConfig(_Section):
    """How often a run notes how far it has come, at most: seconds, or 0 for after every group of shards."""

    every: float = Field(default=30.0, ge=0)


class JobConfig(_Section):
    """A whole run."""

    input: InputConfig
    method: MethodConfig = MethodConfig()
    memory: str | int | None = None
    output: OutputConfig = OutputConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> JobConfig:
    """Return the run that a file describes, with ``key.key=value`` overrides applied.

    Parameters
    ----------
    path : str or Path
        A ``.yaml``, ``.yml`` or ``.toml`` file.
    overrides : sequence of str
        For example ``["memory=1GiB", "method.n_components=10"]``; values are read as YAML.
    """
    content = _parse(Path(path))
    for override in overrides:
        _override(content, override)
    return make_config(content, str(path))


def make_config(content: Mapping[str, Any], where: str = "the request") -> JobConfig:
    """Return a checked run from plain values."""
    try:
        config = JobConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{where}: " + "; ".join(_say(dict(each)) for each in error.errors())) from None
    if config.method.name not in METHODS:
        name = config.method.name
        known_names = ", ".join(map(repr, METHODS))
        raise ConfigError(f"{where}: method.name: must be one of {known_names} (got {name!r}).{did_you_mean(name, METHODS)}")
    known = METHODS[config.method.name]().get_params()
    skips = "skip" in (config.input.nan, config.method.parameters.get("nan"))
    if skips and config.output.report:
        raise ConfigError(
            f"{where}: output.report: a report tells of all rows, and so not of those that input.nan: skip leaves out; leave out one"
        )
    if config.input.nan == "skip" and "nan" not in known:
        raise ConfigError(
            f"{where}: input.nan: method {config.method.name!r} leaves out no rows; 'ppca' and 'fa' take NaN as missing entries"
        )
    for name in config.method.parameters:
        if name == "memory" or name not in known:
            names = sorted(set(known) - {"memory"})
            raise ConfigError(
                f"{where}: method {config.method.name!r} has no parameter {name!r}; it has {', '.join(names)}.{did_you_mean(name, names)}"
            )
    return config


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config {path}: {error}") from None
    try:
        content = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not valid {'TOML' if path.suffix == '.toml' else 'YAML'}: {_one_line(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold keys such as 'input' and 'method', not {type(content).__name__}")
    return content


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"cannot read --set {text!r}: write key=value, for example method.n_components=10")
    *sections, last = key.strip().split(".")
    for section in sections:
        content = content.setdefault(section, {})
        if not isinstance(content, dict):
            raise ConfigError(f"--set {text!r}: {section!r} is a value, not a section")
    try:
        content[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text!r}: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _say(problem: Mapping[str, Any]) -> str:
    """Return one of pydantic's findings as a sentence, with the nearest known key for an unknown one."""
    *sections, last = [str(part) for part in problem["loc"]]
    where = ".".join([*sections, last])
    if problem["type"] == "missing":
        return f"{where} is required"
    if problem["type"] != "extra_forbidden":
        return f"{where}: {problem['msg'].removeprefix('Value error, ').lower()} (got {problem['input']!r})"
    section: type[BaseModel] = JobConfig
    for name in sections:
        annotation = section.model_fields[name].annotation
        section = next(each for each in (annotation, *get_args(annotation)) if isinstance(each, type) and issubclass(each, BaseModel))
    known = list(section.model_fields)
    return f"unknown key {where!r}; known here: {', '.join(known)}.{did_you_mean(last, known)}"
