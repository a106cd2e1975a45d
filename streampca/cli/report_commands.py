"""The commands for people: report, plot and doctor. One function per command, no logic."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from streampca.cli.progress import choose_observer
from streampca.cli.show import show_facts, show_json, show_summary
from streampca.errors import InterruptedRunError
from streampca.jobs.config import InputConfig, SchedulerConfig
from streampca.jobs.doctor import doctor as examine
from streampca.jobs.report import plot_job, report_job

Model = Annotated[str, typer.Argument(help="A stored model, e.g. m.zarr.")]
Data = Annotated[str | None, typer.Option(help="The rows, for one more pass over them: a path, glob or URL, as in fit.")]
Dataset = Annotated[str | None, typer.Option(help="The dataset or array in the file, if it has several.")]
SamplesAxis = Annotated[int, typer.Option(min=0, max=1, help="Which axis holds the samples: 0 (rows) or 1 (columns).")]
Memory = Annotated[str | None, typer.Option(help="Memory budget of the process, e.g. 2GiB. Default: half of what is free.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file, once the new one is complete.")]
Address = Annotated[str | None, typer.Option("--scheduler", help="Address of a Dask scheduler, e.g. tcp://127.0.0.1:8786.")]
SchedulerFile = Annotated[str | None, typer.Option(help="Scheduler file of a Dask cluster.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of local threads. Default: all processors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def report(
    model: Model,
    to: Annotated[str, typer.Option(help="Where to write the report, e.g. report.html.")],
    data: Data = None,
    dataset: Dataset = None,
    samples_axis: SamplesAxis = 0,
    since: Annotated[str | None, typer.Option(help="An older model of the same features: shows what has changed since.")] = None,
    memory: Memory = None,
    overwrite: Overwrite = False,
    scheduler: Address = None,
    scheduler_file: SchedulerFile = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write what a model found as one HTML file; with --data, also which rows are outlying; with --since, what has changed."""
    where = SchedulerConfig(address=scheduler, file=scheduler_file, workers=workers)
    with choose_observer(quiet or as_json) as observer:
        how: dict[str, Any] = {"data": _input(data, dataset, samples_axis), "memory": memory, "since": since, "overwrite": overwrite}
        summary = report_job(model, to, **how, scheduler=where, observer=observer)
    _show(summary, as_json)


def plot(
    kind: Annotated[str, typer.Argument(help="scree, biplot, loadings, outliers or loglike.")],
    model: Model,
    to: Annotated[str, typer.Option(help="Where to write the picture: .png, .svg or .pdf.")],
    data: Data = None,
    dataset: Dataset = None,
    samples_axis: SamplesAxis = 0,
    theme: Annotated[str, typer.Option(help="Colours: light or dark.")] = "light",
    dpi: Annotated[int, typer.Option(min=20, max=1200, help="Dots per inch of a .png.")] = 160,
    memory: Memory = None,
    overwrite: Overwrite = False,
    scheduler: Address = None,
    scheduler_file: SchedulerFile = None,
    workers: Workers = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Draw one picture of a model; outliers and the rows of a biplot need --data."""
    where = SchedulerConfig(address=scheduler, file=scheduler_file, workers=workers)
    how: dict[str, Any] = {"memory": memory, "theme": theme, "dpi": dpi, "overwrite": overwrite}
    with choose_observer(quiet or as_json) as observer:
        summary = plot_job(kind, model, to, data=_input(data, dataset, samples_axis), scheduler=where, observer=observer, **how)
    _show(summary, as_json)


def doctor(scheduler: Address = None, scheduler_file: SchedulerFile = None, as_json: AsJson = False) -> None:
    """Say what this installation and machine have, what is missing, and what that costs."""
    found = examine(SchedulerConfig(address=scheduler, file=scheduler_file))
    if as_json:
        show_json(found)
    else:
        show_facts({name: _lines(value) for name, value in found.items()})
    if found["scheduler"].endswith("does not answer"):
        raise typer.Exit(InterruptedRunError.exit_code)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(epilog="Example: streampca report m.zarr --to report.html --data 'runs/*.h5::X'")(report)
    app.command(epilog="Example: streampca plot biplot m.zarr --to biplot.svg --data data.h5")(plot)
    app.command(epilog="Example: streampca doctor --scheduler tcp://127.0.0.1:8786")(doctor)


def _input(path: str | None, dataset: str | None, samples_axis: int) -> InputConfig | None:
    return None if path is None else InputConfig.model_validate({"path": path, "dataset": dataset, "samples_axis": samples_axis})


def _lines(value: Any) -> Any:
    """Return several values as lines."""
    if isinstance(value, dict):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    return "\n".join(value) or "none" if isinstance(value, list) else value


def _show(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        show_json(summary)
    else:
        show_summary(summary)
