"""The command line: one function per command, no logic. Errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from streampca.cli.progress import LogFormat, choose_observer, log_error
from streampca.cli.report_commands import register as register_report_commands
from streampca.cli.show import show_facts, show_json, show_summary
from streampca.errors import StreamPCAError
from streampca.events import Observer
from streampca.jobs import (
    Change,
    Summary,
    describe,
    load_config,
    make_config,
    merge_job,
    plan_job,
    run_job,
    subtract_job,
    transform_job,
    update_job,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Principal component analysis of more data than memory: exact, streamed from HDF5, Zarr and NumPy files, on Dask.\n\n"
    "Example: [bold]streampca fit data.h5 -k 50 --memory 2GiB --model m.zarr --scores z.zarr[/bold]",
    epilog="Exit codes: 0 done; 2 wrong request; 65 bad data; 73 cannot write; 75 interrupted, run again; 76 locked by another run.",
)

Input = Annotated[str, typer.Argument(help="A path, glob or URL, with an optional dataset: 'runs/*.h5::/group/X'.")]
Config = Annotated[str, typer.Argument(help="A YAML or TOML file; see configs/.")]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the config, e.g. memory=1GiB.")]
Dataset = Annotated[str | None, typer.Option(help="The dataset or array in the file, if it has several.")]
SamplesAxis = Annotated[int, typer.Option(min=0, max=1, help="Which axis holds the samples: 0 (rows) or 1 (columns).")]
Columns = Annotated[str | None, typer.Option(help="Columns to use: 'a:b', or names or numbers separated by commas.")]
Rows = Annotated[str | None, typer.Option(help="Rows to use: 'start:stop' or 'start:stop:step'.")]
Memory = Annotated[str | None, typer.Option(help="Memory budget of the process, e.g. 2GiB. Default: half of what is free.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs, once the new ones are complete.")]
Address = Annotated[str | None, typer.Option("--scheduler", help="Address of a Dask scheduler, e.g. tcp://127.0.0.1:8786.")]
SchedulerFile = Annotated[str | None, typer.Option(help="Scheduler file of a Dask cluster.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of local threads. Default: all processors.")]
MissingChunks = Annotated[str, typer.Option(help="Absent chunks read as the fill value: warn, error or fill (say nothing).")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over: throw away what an interrupted run has left to go on with.")]
CheckpointEvery = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Time between checkpoints, at least; 0: as many as can be.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Log = Annotated[
    LogFormat | None,
    typer.Option(help="Progress as lines of text, or as JSON objects, on standard error. Default: a bar, or text without a terminal."),
]


@app.command(epilog="Example: streampca run configs/quickstart.yaml --set memory=1GiB")
def run(
    config: Config, set_: Overrides = None, fresh: Fresh = False, log: Log = None, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Fit, transform and write whatever the config asks for; goes on where an interrupted run was."""
    _report(lambda observer: run_job(load_config(config, set_ or ()), observer, fresh=fresh), as_json, quiet, log)


@app.command(epilog="Example: streampca plan configs/quickstart.yaml")
def plan(config: Config, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Say what a run would do: solver, passes, bytes, memory. Reads no data."""
    result = plan_job(load_config(config, set_ or ()))
    if as_json:
        show_json(result.to_dict())
    else:
        typer.echo(result.explain())


@app.command(epilog="Example: streampca fit 'runs/*.h5::X' -k 50 --memory 2GiB --model m.zarr --scores z.zarr")
def fit(
    input: Input,
    method: Annotated[str, typer.Option(help="The method: pca, ppca, fa, ...: those of configs.")] = "pca",
    n_components: Annotated[
        str | None,
        typer.Option("-k", "--components", help="Number of components, a fraction of variance in (0, 1), or a criterion such as bic."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Where to store the model, e.g. m.zarr.")] = None,
    scores: Annotated[str | None, typer.Option(help="Where to store the scores: .zarr, .h5 or .npy.")] = None,
    report: Annotated[str | None, typer.Option(help="Where to write a report of it all, e.g. r.html (one more pass).")] = None,
    memory: Memory = None,
    solver: Annotated[str, typer.Option(help="auto, covariance, tsqr, sketch or dual.")] = "auto",
    whiten: Annotated[bool, typer.Option("--whiten", help="Scale scores to unit variance.")] = False,
    standardize: Annotated[bool, typer.Option("--standardize", help="Divide columns by their standard deviation.")] = False,
    precision: Annotated[str, typer.Option(help="Precision of the products: auto, float64 or float32.")] = "auto",
    dataset: Dataset = None,
    samples_axis: SamplesAxis = 0,
    columns: Columns = None,
    rows: Rows = None,
    missing_chunks: MissingChunks = "warn",
    overwrite: Overwrite = False,
    scheduler: Address = None,
    scheduler_file: SchedulerFile = None,
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = 30.0,
    fresh: Fresh = False,
    log: Log = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to the rows of a file, and optionally write their scores."""
    content = {
        "input": _input(input, dataset, samples_axis, columns, rows, missing_chunks),
        "method": {
            "name": method,
            "n_components": _number(n_components),
            **_given(solver=solver, whiten=whiten, standardize=standardize, precision=precision),
        },
        "memory": memory,
        "output": {"model": model, "scores": scores, "report": report, "overwrite": overwrite},
        "scheduler": {"address": scheduler, "file": scheduler_file, "workers": workers},
        "checkpoint": {"every": checkpoint_every},
    }
    _report(lambda observer: run_job(make_config(content), observer, fresh=fresh), as_json, quiet, log)


@app.command(epilog="Example: streampca transform m.zarr new.h5 --to z.zarr")
def transform(
    model: Annotated[str, typer.Argument(help="A stored model.")],
    input: Input,
    to: Annotated[str, typer.Option(help="Where to store the scores: .zarr, .h5 or .npy.")],
    memory: Memory = None,
    dataset: Dataset = None,
    samples_axis: SamplesAxis = 0,
    columns: Columns = None,
    rows: Rows = None,
    missing_chunks: MissingChunks = "warn",
    overwrite: Overwrite = False,
    scheduler: Address = None,
    scheduler_file: SchedulerFile = None,
    workers: Workers = None,
    checkpoint_every: CheckpointEvery = 30.0,
    fresh: Fresh = False,
    log: Log = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write the scores of rows under a stored model."""
    content = _rows(input, dataset, samples_axis, columns, rows, missing_chunks, scheduler, scheduler_file, workers)

    def work(observer: Any) -> Summary:
        config = make_config(content)
        return transform_job(
            model,
            config.input,
            to,
            memory=memory,
            overwrite=overwrite,
            scheduler=config.scheduler,
            observer=observer,
            checkpoint=checkpoint_every,
            fresh=fresh,
        )

    _report(work, as_json, quiet, log)


Model = Annotated[str, typer.Argument(help="A stored model.")]
To = Annotated[str | None, typer.Option(help="Where to store the new model. Default: it replaces the old one.")]
Force = Annotated[bool, typer.Option("--force", help="Count rows again that the model is known to hold.")]


def _changing(job: Callable[[Change, Observer], Summary]) -> Callable[..., None]:
    """Return the command that changes a stored model by some rows."""

    def command(
        model: Model,
        input: Input,
        to: To = None,
        force: Force = False,
        memory: Memory = None,
        dataset: Dataset = None,
        samples_axis: SamplesAxis = 0,
        columns: Columns = None,
        rows: Rows = None,
        missing_chunks: MissingChunks = "warn",
        overwrite: Overwrite = False,
        scheduler: Address = None,
        scheduler_file: SchedulerFile = None,
        workers: Workers = None,
        checkpoint_every: CheckpointEvery = 30.0,
        fresh: Fresh = False,
        log: Log = None,
        as_json: AsJson = False,
        quiet: Quiet = False,
    ) -> None:
        content = _rows(input, dataset, samples_axis, columns, rows, missing_chunks, scheduler, scheduler_file, workers)
        how = {"to": to, "force": force, "memory": memory, "overwrite": overwrite, "every": checkpoint_every, "fresh": fresh}
        _report(lambda observer: job(_asked(model, content, how), observer), as_json, quiet, log)

    return command


app.command(
    "update",
    help="Add new rows to a model, exactly, reading only them: files it does not hold yet, and what has been appended to those it does.",
    epilog="Example: streampca update m.zarr 'runs/*.h5'",
)(_changing(update_job))
app.command(
    "subtract",
    help="Take rows out of a model by the covariance, reading only them: the result is that of the rows that are left.",
    epilog="Example: streampca subtract m.zarr old.h5 --to rest.zarr",
)(_changing(subtract_job))


@app.command(epilog="Example: streampca merge all.zarr site1.zarr site2.zarr")
def merge(
    out: Annotated[str, typer.Argument(help="Where to store the joined model.")],
    models: Annotated[list[str], typer.Argument(help="Stored models of different rows.")],
    force: Force = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Join the models of several files, sites or nights, exactly, reading no rows."""
    _report(lambda observer: merge_job(out, models, overwrite=overwrite, force=force), as_json, quiet)


@app.command(epilog="Example: streampca inspect data.h5::X")
def inspect(path: Input, dataset: Dataset = None, samples_axis: SamplesAxis = 0, as_json: AsJson = False) -> None:
    """Tell what is in a file (shape, chunks, codecs, checksums, missing chunks), or sum up a model."""
    facts = describe(path, dataset, samples_axis)
    if as_json:
        show_json(facts)
    else:
        show_facts(facts)


register_report_commands(app)


def main() -> None:
    """Run the command line; every foreseen error is one line on standard error and its exit code."""
    try:
        app()
    except StreamPCAError as error:
        facts = {"type": type(error).__name__, "message": str(error), "exit_code": error.exit_code}
        if "--log json" in " ".join(sys.argv).replace("--log=", "--log "):
            log_error(facts)
        else:
            sys.stderr.write(f"error: {error}\n")
        if "--json" in sys.argv:
            show_json({"error": facts})
        sys.exit(error.exit_code)


def _report(work: Callable[[Any], Summary], as_json: bool, quiet: bool, log: LogFormat | None = None) -> None:
    with choose_observer(quiet or as_json, log) as observer:
        summary = work(observer)
    if as_json:
        show_json(summary)
    else:
        show_summary(summary)


def _input(path: str, dataset: str | None, samples_axis: int, columns: str | None, rows: str | None, missing_chunks: str) -> dict[str, Any]:
    names: Any = columns
    if columns is not None and ":" not in columns:
        names = [int(each) if each.lstrip("-").isdigit() else each for each in columns.split(",")]
    return {
        "path": path,
        "dataset": dataset,
        "samples_axis": samples_axis,
        "columns": names,
        "rows": rows,
        "missing_chunks": missing_chunks,
    }


def _rows(
    input: str,
    dataset: str | None,
    samples_axis: int,
    columns: str | None,
    rows: str | None,
    missing_chunks: str,
    address: str | None,
    file: str | None,
    workers: int | None,
) -> dict[str, Any]:
    return {
        "input": _input(input, dataset, samples_axis, columns, rows, missing_chunks),
        "scheduler": {"address": address, "file": file, "workers": workers},
    }


def _asked(model: str, content: dict[str, Any], how: dict[str, Any]) -> Change:
    config = make_config(content)
    return Change(model, config.input, scheduler=config.scheduler, **how)


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults: other methods do not have them."""
    return {name: value for name, value in options.items() if value not in ("auto", False)}


def _number(text: str | None) -> int | float | str | None:
    """Return '50' as an integer and '0.9' as a fraction; anything else is refused later, by name."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
