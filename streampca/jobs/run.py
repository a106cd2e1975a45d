"""One configured run: check the outputs, open the input, fit, write the model and the scores, and sum it up."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from streampca.engine import Scheduler, choose_scheduler, connect
from streampca.engine.launch import (
    describe,
    expected_jobs,
    expected_processes,
    local_processes,
    performance_reported,
    slurm_jobs,
    wait_for_a_worker,
)
from streampca.errors import DataError, InterruptedRunError, OutputError, RefusedResumeError, StreamPCAError, UsageError
from streampca.estimators import METHODS, StreamingTransformer, load, with_time
from streampca.events import Observer
from streampca.failpoints import failpoint
from streampca.jobs.config import InputConfig, JobConfig, OutputConfig, SchedulerConfig
from streampca.jobs.inputs import records_of
from streampca.jobs.ledger import DiskLedger
from streampca.jobs.lock import locked, refuse_if_locked
from streampca.jobs.manifest import Recorder, package_version, write_manifest
from streampca.jobs.work import Work
from streampca.memory import peak_rss
from streampca.planning import Plan
from streampca.report import check_report, empty_summary, report_of_run
from streampca.sinks import Unfinished, check_sink
from streampca.sources import open_source
from streampca.sources.base import Source
from streampca.staging import check_target, remove_partials
from streampca.statistics.gathered import Gathered
from streampca.statistics.score_density import ScoreDensity

Summary = dict[str, Any]
_CLOSE_SECONDS, _WORKER_SECONDS = 5, 60


def plan_job(config: JobConfig) -> Plan:
    """Return what a run would do, reading no data."""
    estimator = _estimator(config)
    with _scheduler_to_plan_for(config.scheduler) as scheduler:
        return with_time(_plan(config, estimator, open_input(config.input), scheduler))


def run_job(config: JobConfig, observer: Observer, *, fresh: bool = False) -> Summary:
    """Do everything that the config asks for, or what an interrupted run has left of it, and return a summary of plain values.

    ``fresh`` throws away what an interrupted run has left.
    """
    began = time.perf_counter()
    output = config.output
    outputs = [path for path in (output.model, output.scores) if path]
    refuse_if_locked(*outputs)
    work = Work(outputs[0]) if outputs else None
    with _swept(outputs):
        _check_outputs(output, config.input, resumed=work.known().get("publishing", []) if work and not fresh else [])
    source = open_input(config.input)
    recorder = Recorder(observer)
    missing, warnings = missing_chunks(source, config.input.missing_chunks, observer)
    estimator, rows = _estimator(config), None
    with locked(*outputs), scheduler_of(config.scheduler, observer) as scheduler:
        plan = _plan(config, estimator, source, scheduler)
        if work is not None:
            clear(outputs, fresh)
            work.open(_identity(config, source), fresh)
            plan = work.same_plan(plan)
        with kept_if_useful(outputs):
            ledger = None if work is None else DiskLedger(work, config.checkpoint.every, observer)
            estimator.fit_source(source, plan=plan, scheduler=scheduler, observer=recorder, ledger=ledger)
            fitted = time.perf_counter()
            if work is not None:
                # The model comes last: scores alone never look like a complete run.
                rows = _write_scores(config, estimator, source, work, scheduler, recorder)
                _write_model(config, estimator, source, work)
        ended = time.perf_counter()
        seconds = {"fit": fitted - began, "write": ended - fitted, "total": ended - began}
        facts = {"seconds": seconds, "output": output.model_dump(), "warnings": warnings, "peak_memory": peak_rss()}
        summary = {**_facts(estimator, source), **facts}
        about = {"config": config.model_dump(), "inputs": getattr(estimator, "inputs_", []), "plan": plan.to_dict(), "summary": summary}
        counts: dict[str, Any] = {"passes": recorder.passes, "missing_chunks": missing, "seed": estimator.get_params().get("random_state")}
        if ledger is not None:
            counts["checkpoints"] = {"written": ledger.count, "seconds": ledger.seconds}
        if work is not None:
            write_manifest(outputs[0], {**about, **counts})
        _write_report(config, estimator, source, work, scheduler, recorder, {**about, **counts}, rows)
        if work is not None:
            complete(outputs, work)
    return summary


def _write_scores(
    config: JobConfig, estimator: StreamingTransformer, source: Source, work: Work, scheduler: Scheduler, observer: Observer
) -> ScoreDensity | None:
    """Write the scores, or the rest of them, unless an interrupted run has done so; return what they tell of the rows, if all were seen."""
    output = config.output
    if not output.scores:
        return None
    identity = {"model": model_digest(estimator), "fingerprint": source.info.fingerprint}
    unfinished = Unfinished.of(output.scores, identity, config.checkpoint.every)
    if "scores" in work.publishing and unfinished.is_published(output.scores):
        return None
    overwrite = output.overwrite or "scores" in work.publishing
    work.about_to_publish("scores")
    empty = empty_summary(estimator) if output.report else None
    gathered = None if empty is None else Gathered(empty)
    how: dict[str, Any] = {"scheduler": scheduler, "observer": observer, "unfinished": unfinished, "gathered": gathered}
    estimator.transform_to(source, output.scores, overwrite=overwrite, **how)
    return None if gathered is None else gathered.complete(source.info.n_rows)


def _write_model(config: JobConfig, estimator: StreamingTransformer, source: Source, work: Work) -> None:
    output = config.output
    if not output.model:
        return
    estimator.inputs_ = records_of(source)
    overwrite = output.overwrite or "model" in work.publishing
    work.about_to_publish("model")
    failpoint("model-before-write")
    estimator.save(output.model, overwrite=overwrite)


def _write_report(
    config: JobConfig,
    estimator: StreamingTransformer,
    source: Source,
    work: Work | None,
    scheduler: Scheduler,
    observer: Observer,
    manifest: dict[str, Any],
    rows: ScoreDensity | None,
) -> None:
    """Write the report, in place of what an interrupted run has written of it."""
    output = config.output
    if not output.report:
        return
    overwrite = output.overwrite
    if work is not None:
        overwrite = overwrite or "report" in work.publishing
        work.about_to_publish("report")
    report_of_run(estimator, source, output.report, manifest, summary=rows, scheduler=scheduler, observer=observer, overwrite=overwrite)


@contextmanager
def kept_if_useful(outputs: list[str]) -> Iterator[None]:
    """Forget what was done so far if the same run, on the same data, would fail again."""
    try:
        yield
    except (DataError, UsageError) as error:
        if not isinstance(error, RefusedResumeError):
            for path in outputs:
                Work(path).remove()
        raise


@contextmanager
def _swept(outputs: list[str]) -> Iterator[None]:
    """If an output is refused, remove what a run that was killed in its last moments, all done, has left beside it."""
    try:
        yield
    except OutputError:
        with suppress(StreamPCAError, OSError), locked(*outputs):
            if not Work(outputs[0]).known():
                clear(outputs, fresh=True)
        raise


def clear(outputs: list[str], fresh: bool) -> None:
    """Remove what killed runs left under hidden names, and with ``fresh`` what they left to go on with."""
    for path in outputs:
        remove_partials(path)
        if fresh:
            Work(path).remove()


def complete(outputs: list[str], work: Work) -> None:
    """Remove what was kept to go on with: what says which run it was goes first."""
    failpoint("run-complete")
    work.remove()
    for path in outputs:
        Work(path).remove()


def _identity(config: JobConfig, source: Source) -> dict[str, Any]:
    """Return what makes a run the same run, wherever and with whatever memory it goes on."""
    method = {"name": config.method.name, **config.method.parameters}
    return {
        "streampca": package_version("streampca"),
        "method": method,
        "input": config.input.model_dump(),
        "fingerprint": source.info.fingerprint,
    }


def model_digest(estimator: StreamingTransformer) -> str:
    """Return a digest of the arrays of a model."""
    found = hashlib.sha256()
    for name, array in sorted(estimator._stored().items()):
        if name.startswith("model/"):
            found.update(name.encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def transform_job(
    model: str,
    input: InputConfig,
    to: str,
    *,
    memory: str | int | None,
    overwrite: bool,
    scheduler: SchedulerConfig,
    observer: Observer,
    checkpoint: float = 30.0,
    fresh: bool = False,
) -> Summary:
    """Stream the scores of new rows to a file, or the rest of what an interrupted run has written."""
    began = time.perf_counter()
    refuse_if_locked(to)
    work = Work(to)
    resumed = [] if fresh else work.known().get("publishing", [])
    with _swept([to]):
        _check_outputs(OutputConfig(scores=to, overwrite=overwrite), input, model, resumed=resumed)
    estimator = load(model)
    estimator.memory = memory
    source = open_input(input)
    _, warnings = missing_chunks(source, input.missing_chunks, observer)
    with locked(to), scheduler_of(scheduler, observer) as where:
        clear([to], fresh)
        of = {"model": model_digest(estimator), "fingerprint": source.info.fingerprint}
        work.open({"streampca": package_version("streampca"), "input": input.model_dump(), **of}, fresh)
        unfinished = Unfinished.of(to, of, checkpoint)
        if "scores" not in work.publishing or not unfinished.is_published(to):
            replace = overwrite or "scores" in work.publishing
            work.about_to_publish("scores")
            with kept_if_useful([to]):
                estimator.transform_to(source, to, overwrite=replace, scheduler=where, observer=observer, unfinished=unfinished)
        complete([to], work)
    return {
        "rows": source.info.n_rows,
        "components": int(estimator._n_features_out),
        "seconds": {"total": time.perf_counter() - began},
        "output": {"scores": to},
        "warnings": warnings,
        "peak_memory": peak_rss(),
    }


def _check_outputs(output: OutputConfig, input: InputConfig, *more_inputs: str, resumed: Collection[str] = ()) -> None:
    """Refuse outputs that cannot be written, that are the same, or that would replace what is read.

    Those that an interrupted run was about to publish may be there.
    """
    if output.model:
        check_target(output.model, output.overwrite or "model" in resumed)
    if output.scores:
        check_sink(output.scores, overwrite=output.overwrite or "scores" in resumed)
    if output.report:
        check_report(output.report, output.overwrite or "report" in resumed)
    named = {"model": output.model, "scores": output.scores, "report": output.report}
    real = {name: Path(os.path.realpath(path)) for name, path in named.items() if path}
    for (first, one), (second, other) in itertools.combinations(real.items(), 2):
        if one.is_relative_to(other) or other.is_relative_to(one):
            raise UsageError(f"the {first} and the {second} cannot both go to {named[second]}: choose two paths, neither inside the other")
    read = [*_local_paths(input.path), *_local_paths(list(more_inputs))]
    for path in real.values():
        if any(each.is_relative_to(path) for each in read):
            raise UsageError(f"{path} is what is read: an output cannot replace it, choose another path")


def _local_paths(path: str | list[str]) -> list[Path]:
    """Return the files that an input names, as far as they are on local disks."""
    found: list[str] = []
    for text in [path] if isinstance(path, str) else path:
        local = os.path.expanduser(text.rpartition("::")[0] or text)  # noqa: PTH111 - a pattern, not a path
        found += glob.glob(local, recursive=True) or [local]  # noqa: PTH207 - Path.glob takes no absolute pattern
    return [Path(os.path.realpath(each)) for each in found]


def open_input(config: InputConfig) -> Source:
    """Return the source that a config names."""
    rows: Any = tuple(config.rows) if isinstance(config.rows, list) else config.rows
    return open_source(
        config.path,
        dataset=config.dataset,
        samples_axis=config.samples_axis,
        columns=config.columns,
        rows=rows,
        weights=config.weights,
    )


@contextmanager
def scheduler_of(config: SchedulerConfig, observer: Observer | None = None) -> Iterator[Scheduler]:
    """Give the scheduler that a config, or ``DASK_SCHEDULER_ADDRESS``, names; close what was opened or started for it."""
    observer = observer or Observer()
    with _client_of(config) as client:
        if client is None:
            if config.performance_report:
                raise UsageError("scheduler.performance_report tells what a Dask cluster did, but none is named: leave it out, or name one")
            yield choose_scheduler(workers=config.workers)
            return
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # a lost cluster is told in one line, not in Dask's tracebacks
        wait_for_a_worker(client, observer, _WORKER_SECONDS if config.slurm is None else config.slurm.wait)
        observer.noted(describe(client))
        with performance_reported(client, config.performance_report):
            yield choose_scheduler(client)


@contextmanager
def _client_of(config: SchedulerConfig) -> Iterator[Any]:
    """Give a client of the cluster that a config names or asks to start, or None for threads of this process."""
    if config.slurm is not None:
        with slurm_jobs(config.slurm.options(), config.workers or 1) as client:
            yield client
    elif config.processes is not None:
        with local_processes(config.processes, config.workers) as client:
            yield client
    elif address := config.address or (_address_in(config.file) if config.file else os.environ.get("DASK_SCHEDULER_ADDRESS")):
        client = connect(address)
        try:
            yield client
        finally:
            client.close(timeout=_CLOSE_SECONDS)
    else:
        yield None


@contextmanager
def _scheduler_to_plan_for(config: SchedulerConfig) -> Iterator[Scheduler]:
    """Give the scheduler that a run would have; a plan starts no workers."""
    if config.slurm is not None:
        yield expected_jobs(config.slurm.cores, config.slurm.memory, config.slurm.processes)
    elif config.processes is not None:
        yield expected_processes(config.processes, config.workers)
    else:
        with scheduler_of(config) as scheduler:
            yield scheduler


def _address_in(file: str) -> str:
    """Return the address in a scheduler file. Dask itself would wait for ever for one that is not there."""
    try:
        return str(json.loads(Path(file).read_text())["address"])
    except OSError as error:
        message = f"no Dask scheduler answers at {file} ({error.strerror}): is it running, and reachable from here?"
        raise InterruptedRunError(message) from None
    except (ValueError, KeyError, TypeError) as error:
        message = f"{file} is not the scheduler file of a Dask cluster ({error!r}): give what 'dask scheduler --scheduler-file' wrote"
        raise UsageError(message) from None


def _estimator(config: JobConfig) -> StreamingTransformer:
    """Return the estimator that a config names, with a seed: a run that goes on must draw the same numbers as before."""
    rows = {"nan": config.input.nan} if config.input.nan != "error" else {}
    estimator = METHODS[config.method.name](**{**config.method.parameters, **rows}, memory=config.memory)
    if estimator.get_params().get("random_state", 0) is None:
        estimator.set_params(random_state=0)
    return estimator


def _plan(config: JobConfig, estimator: StreamingTransformer, source: Source, scheduler: Scheduler) -> Plan:
    return estimator.plan_for(source, scheduler=scheduler, scores=bool(config.output.scores or config.output.report))


def missing_chunks(source: Source, policy: str, observer: Observer) -> tuple[int, list[str]]:
    """Apply the policy on absent chunks, which read as the fill value: refuse, warn, or say nothing; return number and warnings."""
    missing = source.missing_chunks()
    if not missing or policy == "fill":
        return missing, []
    message = f"{missing} stored chunk(s) of {source.info.description} are absent and read as the fill value"
    if policy == "error":
        raise DataError(message + "; missing_chunks: warn or fill would accept them")
    observer.warned(message)
    return missing, [message]


def _facts(estimator: StreamingTransformer, source: Source) -> Summary:
    info, plan = source.info, estimator.plan_
    return {
        "input": info.description,
        "rows": info.n_rows,
        "features": info.n_features,
        "dtype": str(info.dtype),
        "bytes_decoded": info.bytes_decoded,
        "bytes_stored": info.bytes_stored,
        "method": estimator.kind,
        "solver": estimator.solver_,
        "passes": estimator.n_passes_,
        "components": estimator.n_components_,
        **estimator.summary(),
        "projected_memory": plan.peak_memory if plan else None,
        "memory_budget": plan.budget if plan else None,
    }
