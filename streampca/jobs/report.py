"""Reports and pictures of stored models: load the model and its manifest, pass over the rows if they are given, draw, write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from streampca import plotting
from streampca.errors import OutputError, StreamPCAError, UsageError, did_you_mean
from streampca.estimators import PCA, StreamingTransformer, load
from streampca.events import Observer
from streampca.jobs.config import InputConfig, SchedulerConfig
from streampca.jobs.manifest import manifest_path
from streampca.jobs.run import Summary, open_input, scheduler_of
from streampca.memory import peak_rss
from streampca.plotting.theme import matplotlib_module
from streampca.report import check_report, drift_between, summarize_rows, write_report
from streampca.staging import check_target, staged
from streampca.statistics.score_density import ScoreDensity

KINDS = ("scree", "biplot", "loadings", "outliers", "loglike")
_OF_ROWS = ("biplot", "outliers")
FORMATS = (".png", ".svg", ".pdf")


def report_job(
    model: str,
    to: str,
    *,
    data: InputConfig | None = None,
    memory: str | int | None = None,
    since: str | None = None,
    overwrite: bool = False,
    scheduler: SchedulerConfig,
    observer: Observer,
) -> Summary:
    """Write the report of a stored model; with data, one pass tells of its rows; with an older model, what has changed since."""
    began = time.perf_counter()
    check_report(to, overwrite)
    estimator, manifest = load(model), manifest_of(model)
    old = _updated_from(model, estimator, manifest) if since is None else load(since)
    if since is not None:
        drift_between(old, estimator)  # refuses what cannot be compared before the pass over the rows
    rows = None if data is None else _summary(estimator, data, memory, scheduler, observer)
    write_report(estimator, to, summary=rows, manifest=manifest, since=old, overwrite=overwrite)
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
    if kind == "outliers" and not isinstance(estimator, PCA):
        raise UsageError(f"outlying rows are told of a PCA only, not of {type(estimator).__name__}: T2 and SPE are those of its components")
    rows = None if data is None or kind not in _OF_ROWS else _summary(estimator, data, memory, scheduler, observer)
    _save(lambda: _draw(kind, estimator, rows, theme), to, dpi, overwrite)
    return _summed_up(estimator, rows, began, {"plot": to})


def manifest_of(model: str) -> dict[str, Any] | None:
    """Return the manifest beside a model, if there is one that can be read."""
    try:
        content = json.loads(Path(manifest_path(model.rstrip("/"))).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _updated_from(model: str, estimator: StreamingTransformer, manifest: dict[str, Any] | None) -> StreamingTransformer | None:
    """Return the model that this one was made of by ``update`` or ``subtract``, if it is still there."""
    facts = manifest or {}
    old, summary = facts.get("model"), facts.get("summary")
    if facts.get("command") not in ("update", "subtract") or not isinstance(old, str) or not isinstance(summary, dict):
        return None
    if not Path(old).exists() or Path(old).resolve() == Path(model).resolve():
        return None
    with suppress(StreamPCAError):
        found = load(old)
        added = summary.get("rows", 0) if facts["command"] == "update" else -summary.get("rows", 0)
        if found.n_samples_ + added == estimator.n_samples_:  # else something else is there by now
            drift_between(found, estimator)  # refuses what cannot be compared
            return found
    return None


def _summary(
    estimator: StreamingTransformer, data: InputConfig, memory: str | int | None, scheduler: SchedulerConfig, observer: Observer
) -> ScoreDensity:
    estimator.memory = memory
    with scheduler_of(scheduler, observer) as where:
        return summarize_rows(estimator, open_input(data), scheduler=where, observer=observer)


def _draw(kind: str, estimator: Any, rows: ScoreDensity | None, theme: str) -> Any:
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


def _summed_up(estimator: StreamingTransformer, rows: ScoreDensity | None, began: float, output: dict[str, str]) -> Summary:
    return {
        "rows": estimator.n_samples_ if rows is None else rows.rows,
        "rows_read": 0 if rows is None else rows.rows,
        "components": estimator.n_components_,
        "seconds": {"total": time.perf_counter() - began},
        "output": output,
        "peak_memory": peak_rss(),
    }
