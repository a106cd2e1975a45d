"""Reports and pictures of stored models: load the model and its manifest, pass over the rows if they are given, draw, write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streampca import plotting
from streampca.errors import OutputError, UsageError, did_you_mean
from streampca.estimators import StreamingTransformer, load
from streampca.events import Observer
from streampca.jobs.config import InputConfig, SchedulerConfig
from streampca.jobs.manifest import manifest_path
from streampca.jobs.run import Summary, open_input, scheduler_of
from streampca.memory import peak_rss
from streampca.plotting.theme import matplotlib_module
from streampca.report import check_report, summarize_rows, write_report
from streampca.staging import check_target, staged
from streampca.statistics.row_summary import RowSummary

KINDS = ("scree", "biplot", "loadings", "outliers", "loglike")
FORMATS = (".png", ".svg", ".pdf")


def report_job(
    model: str,
    to: str,
    *,
    data: InputConfig | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    scheduler: SchedulerConfig,
    observer: Observer,
) -> Summary:
    """Write the report of a stored model; with data, one pass tells of its rows."""
    began = time.perf_counter()
    check_report(to, overwrite)
    estimator = load(model)
    rows = None if data is None else _summary(estimator, data, memory, scheduler, observer)
    write_report(estimator, to, summary=rows, manifest=manifest_of(model), overwrite=overwrite)
    return _summed_up(estimator, rows, began, {"report": to})


def plot_job(
    kind: str,
    model: str,
    to: str,
    *,
    data: InputConfig | None = None,
    memory: str | int | None = None,
    theme: str = "light",
    dpi: int = 160,
    overwrite: bool = False,
    scheduler: SchedulerConfig,
    observer: Observer,
) -> Summary:
    """Draw one picture of a stored model to a file."""
    began = time.perf_counter()
    if kind not in KINDS:
        raise UsageError(f"unknown picture {kind!r}: choose one of {', '.join(KINDS)}.{did_you_mean(kind, KINDS)}")
    if Path(to).suffix.lower() not in FORMATS:
        raise OutputError(f"cannot tell the format of {to!r}: its name must end in {', '.join(FORMATS)}")
    if kind == "outliers" and data is None:
        raise UsageError("outlying rows are found in the data: give it with --data")
    check_target(to, overwrite)
    estimator = load(model)
    rows = None if data is None else _summary(estimator, data, memory, scheduler, observer)
    _save(lambda: _draw(kind, estimator, rows, theme), to, dpi, overwrite)
    return _summed_up(estimator, rows, began, {"plot": to})


def manifest_of(model: str) -> dict[str, Any] | None:
    """Return the manifest beside a model, if there is one that can be read."""
    try:
        content = json.loads(Path(manifest_path(model.rstrip("/"))).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _summary(
    estimator: StreamingTransformer, data: InputConfig, memory: str | int | None, scheduler: SchedulerConfig, observer: Observer
) -> RowSummary:
    estimator.memory = memory
    with scheduler_of(scheduler) as where:
        return summarize_rows(estimator, open_input(data), scheduler=where, observer=observer)


def _draw(kind: str, estimator: Any, rows: RowSummary | None, theme: str) -> Any:
    if kind == "biplot":
        return plotting.biplot(estimator, rows, theme=theme)
    if kind == "outliers":
        return plotting.outliers(rows, theme=theme)  # type: ignore[arg-type]
    return getattr(plotting, kind)(estimator, theme=theme)


def _save(draw: Callable[[], Any], to: str, dpi: int, overwrite: bool) -> None:
    """Write a picture to a file that appears when it is complete, without a screen."""
    pyplot = matplotlib_module("pyplot")
    pyplot.switch_backend("agg")
    figure = draw().figure
    try:
        with matplotlib_module("style").context({"svg.fonttype": "none"}), staged(to, overwrite) as file:
            figure.savefig(file, format=Path(to).suffix[1:].lower(), dpi=dpi, facecolor=figure.get_facecolor())
    finally:
        pyplot.close(figure)


def _summed_up(estimator: StreamingTransformer, rows: RowSummary | None, began: float, output: dict[str, str]) -> Summary:
    return {
        "rows": estimator.n_samples_ if rows is None else rows.rows,
        "rows_read": 0 if rows is None else rows.rows,
        "components": estimator.n_components_,
        "seconds": {"total": time.perf_counter() - began},
        "output": output,
        "peak_memory": peak_rss(),
    }
