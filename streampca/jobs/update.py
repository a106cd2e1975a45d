"""Rows added to a stored model or taken out of it, and models joined: exact, reading only those rows.

The model on disk is replaced in one step. A run that was killed goes on, or finds that it was done: no row is ever added twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streampca.engine import Scheduler
from streampca.errors import DataError, UsageError
from streampca.estimators import StreamingTransformer, load
from streampca.estimators.updatable import UpdatableTransformer
from streampca.events import Observer
from streampca.failpoints import failpoint
from streampca.jobs.config import InputConfig, SchedulerConfig
from streampca.jobs.inputs import News, Record, news_of, parts_of, records_of
from streampca.jobs.ledger import DiskLedger
from streampca.jobs.lock import locked, refuse_if_locked
from streampca.jobs.manifest import Recorder, package_version, write_manifest
from streampca.jobs.run import Summary, clear, complete, kept_if_useful, missing_chunks, model_digest, open_input, scheduler_of
from streampca.jobs.work import Work
from streampca.memory import peak_rss
from streampca.report import drift_between
from streampca.sources.base import Source
from streampca.sources.many import ManySource
from streampca.staging import check_target


@dataclass(frozen=True)
class Change:
    """A request to change a stored model by some rows."""

    model: str
    input: InputConfig
    to: str | None = None  # where the new model goes; by default it replaces the old one
    force: bool = False  # whatever is known of the rows
    overwrite: bool = False  # of ``to``
    fresh: bool = False
    memory: str | int | None = None
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    every: float = 30.0

    @property
    def target(self) -> str:
        """Where the new model goes."""
        return self.to or self.model


def update_job(change: Change, observer: Observer) -> Summary:
    """Fold new rows into a stored model: the result is that of one fit to all rows."""
    return _change(change, observer, "update", _news, UpdatableTransformer.merge)


def subtract_job(change: Change, observer: Observer) -> Summary:
    """Take rows out of a stored model: the result is that of a fit to the rows that are left."""
    return _change(change, observer, "subtract", _leaving, UpdatableTransformer.subtract)


def merge_job(out: str, models: Sequence[str], *, overwrite: bool = False, force: bool = False) -> Summary:
    """Join stored models of different rows: the result is that of one fit to the rows of all."""
    began = time.perf_counter()
    refuse_if_locked(out)
    check_target(out, overwrite)
    with locked(out):
        total, *others = [_updatable(path) for path in models]
        for path, other in zip(models[1:], others, strict=True):
            _refuse_common(path, total.inputs_, other.inputs_, force)
            total.merge(other)
            total.inputs_ = [*total.inputs_, *other.inputs_]
        total.save(out, overwrite=overwrite)
        summary = _summary(total, began, total.n_samples_, out, [])
        write_manifest(out, {"command": "merge", "models": list(models), "inputs": total.inputs_, "summary": summary})
    return summary


def _change(
    change: Change,
    observer: Observer,
    command: str,
    select: Callable[[UpdatableTransformer, Source, Change], News],
    apply: Callable[[UpdatableTransformer, UpdatableTransformer], Any],
) -> Summary:
    began = time.perf_counter()
    refuse_if_locked(change.target)
    work = Work(change.target)
    source = open_input(change.input)
    of = {"command": command, "input": change.input.model_dump(), "fingerprint": source.info.fingerprint}
    with locked(change.target), scheduler_of(change.scheduler, observer) as scheduler:
        fit = _updatable(change.model)
        if not change.fresh and _was_done(work, of, change.target):
            done = _updatable(change.target)
            clear([change.target], fresh=False)
            complete([change.target], work)
            return _summary(done, began, 0, change.target, ["an interrupted run had done this already"])
        if change.to:
            check_target(change.to, change.overwrite or "model" in work.known().get("publishing", []))
        _, warnings = missing_chunks(source, change.input.missing_chunks, observer)
        clear([change.target], change.fresh)
        work.open({"streampca": package_version("streampca"), "model": model_digest(fit), **of}, change.fresh)
        recorder = Recorder(observer)
        with kept_if_useful([change.target]):
            news = select(fit, source, change)
            rows = news.parts[0] if len(news.parts) == 1 else ManySource(tuple(news.parts))
            apply(fit, _part(fit, rows, change, work, scheduler, recorder))
        drift = _drift(load(change.model), fit)
        fit.inputs_ = news.records
        work.about_to_publish("model", model_digest(fit))
        failpoint("model-before-write")
        fit.save(change.target, overwrite=True)
        summary = _summary(fit, began, rows.info.n_rows, change.target, warnings)
        about = {"command": command, "model": change.model, "inputs": fit.inputs_, "passes": recorder.passes, "summary": summary}
        write_manifest(change.target, {**about, "drift": drift})
        complete([change.target], work)
    return summary


def _drift(old: StreamingTransformer, new: StreamingTransformer) -> dict[str, Any] | None:
    """Return how far the model has moved, for the report of the morning; None where there are no components to compare."""
    try:
        return drift_between(old, new).to_plain()
    except UsageError:
        return None


def _part(
    fit: UpdatableTransformer, rows: Source, change: Change, work: Work, scheduler: Scheduler, observer: Observer
) -> UpdatableTransformer:
    """Return the sums of the rows, or the rest of them after an interruption."""
    fit._check_columns(rows)
    fitted_with, fit.memory = fit.memory, change.memory
    plan = work.same_plan(fit.plan_part(rows, scheduler=scheduler))
    fit.memory = fitted_with
    return fit.part_of(rows, plan=plan, scheduler=scheduler, observer=observer, ledger=DiskLedger(work, change.every, observer))


def _was_done(work: Work, of: dict[str, Any], target: str) -> bool:
    """Return whether an interrupted run of the same change had just put the new model in place."""
    known = work.known()
    same = all(known.get("identity", {}).get(name) == value for name, value in of.items())
    return bool(known.get("result")) and same and Path(target).exists() and model_digest(_updatable(target)) == known["result"]


def _updatable(path: str) -> UpdatableTransformer:
    model = load(path)
    if not isinstance(model, UpdatableTransformer) or not model.can_be_updated:
        how = f"fit with {model.kept_by} and keep the state, or " if isinstance(model, UpdatableTransformer) else ""
        raise UsageError(
            f"{path} ({model.kind} by {model.solver_!r}) holds no sums that rows could be added to or taken from: {how}fit all rows again"
        )
    return model


def _news(fit: UpdatableTransformer, source: Source, change: Change) -> News:
    """Return the rows to add: those that the model does not hold yet, or all if forced."""
    if change.force:
        return News(parts_of(source), [*fit.inputs_, *records_of(source)], [])
    news = news_of(source, fit.inputs_)
    if not news.parts:
        raise UsageError(
            f"{change.model} holds all {source.info.n_rows} rows of {source.info.description} already: nothing is new; "
            "--force would add them once more"
        )
    return news


def _leaving(fit: UpdatableTransformer, source: Source, change: Change) -> News:
    """Return the rows to take out, and which inputs are left."""
    gone = {record["fingerprint"] for record in records_of(source)}
    left = [record for record in fit.inputs_ if record["fingerprint"] not in gone]
    taken = [record for record in left if record.get("taken") in gone]
    if taken and not change.force:
        raise UsageError(f"{source.info.description} was taken out of {change.model} already: --force would do it once more")
    notes: list[Record] = []
    if len(left) == len(fit.inputs_):  # a part of some input: which one is not known
        info = source.info
        notes = [
            {"input": info.description, "fingerprint": "", "rows": -info.n_rows, "sample": None, "taken": each} for each in sorted(gone)
        ]
    return News(parts_of(source), [*left, *notes], [])


def _refuse_common(path: str, ours: list[Record], theirs: list[Record], force: bool) -> None:
    known = {record["fingerprint"] for record in ours if record["fingerprint"]}
    common = [record["input"] for record in theirs if record["fingerprint"] in known]
    if common and not force:
        raise DataError(f"{path} holds rows of {common[0]}, as another of the models does: --force would count them twice")


def _summary(fit: UpdatableTransformer, began: float, rows: int, target: str, warnings: list[str]) -> Summary:
    return {
        "rows": rows,
        "rows_in_all": fit.n_samples_,
        "components": fit.n_components_,
        "solver": fit.solver_,
        **fit.summary(),
        "seconds": {"total": time.perf_counter() - began},
        "output": {"model": target},
        "warnings": warnings,
        "peak_memory": peak_rss(),
    }
