"""One configured run: check the outputs, open the input, fit, write the model and the scores, and sum it up."""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streampca.engine import Scheduler, choose_scheduler, connect
from streampca.errors import DataError, InterruptedRunError, UsageError
from streampca.estimators import METHODS, StreamingTransformer, load, with_time
from streampca.events import Observer
from streampca.jobs.config import InputConfig, JobConfig, OutputConfig, SchedulerConfig
from streampca.memory import peak_rss
from streampca.planning import Plan
from streampca.sinks import check_sink
from streampca.sources import open_source
from streampca.sources.base import Source
from streampca.staging import check_target

Summary = dict[str, Any]


def plan_job(config: JobConfig) -> Plan:
    """Return what a run would do, reading no data."""
    estimator = _estimator(config)
    with scheduler_of(config.scheduler) as scheduler:
        return with_time(_plan(config, estimator, open_input(config.input), scheduler))


def run_job(config: JobConfig, observer: Observer) -> Summary:
    """Do everything that the config asks for, and return a summary of plain values."""
    began = time.perf_counter()
    output = config.output
    _check_outputs(output, config.input)
    source = open_input(config.input)
    warnings = _missing_chunks(source, config.input.missing_chunks, observer) + _no_checkpoints(config, observer)
    estimator = _estimator(config)
    with scheduler_of(config.scheduler) as scheduler:
        plan = _plan(config, estimator, source, scheduler)
        estimator.fit_source(source, plan=plan, scheduler=scheduler, observer=observer)
        fitted = time.perf_counter()
        # The model comes last: a run that was stopped in the middle of the scores leaves nothing in the way of the next one.
        if output.scores:
            estimator.transform_to(source, output.scores, overwrite=output.overwrite, scheduler=scheduler, observer=observer)
        if output.model:
            estimator.save(output.model, overwrite=output.overwrite)
    ended = time.perf_counter()
    seconds = {"fit": fitted - began, "write": ended - fitted, "total": ended - began}
    return {**_facts(estimator, source), "seconds": seconds, "output": output.model_dump(), "warnings": warnings, "peak_memory": peak_rss()}


def transform_job(
    model: str, input: InputConfig, to: str, *, memory: str | int | None, overwrite: bool, scheduler: SchedulerConfig, observer: Observer
) -> Summary:
    """Stream the scores of new rows to a file."""
    began = time.perf_counter()
    _check_outputs(OutputConfig(scores=to, overwrite=overwrite), input, model)
    estimator = load(model)
    estimator.memory = memory
    source = open_input(input)
    warnings = _missing_chunks(source, input.missing_chunks, observer)
    with scheduler_of(scheduler) as where:
        estimator.transform_to(source, to, overwrite=overwrite, scheduler=where, observer=observer)
    return {
        "rows": source.info.n_rows,
        "components": int(estimator._n_features_out),
        "seconds": {"total": time.perf_counter() - began},
        "output": {"scores": to},
        "warnings": warnings,
        "peak_memory": peak_rss(),
    }


def _check_outputs(output: OutputConfig, input: InputConfig, *more_inputs: str) -> None:
    """Refuse outputs that cannot be written, that are the same, or that would replace what is read."""
    if output.model:
        check_target(output.model, output.overwrite)
    if output.scores:
        check_sink(output.scores, overwrite=output.overwrite)
    paths = [Path(os.path.realpath(path)) for path in (output.model, output.scores) if path]
    if len(paths) == 2 and (paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])):
        raise UsageError(f"the model and the scores cannot both go to {output.scores}: choose two paths, neither inside the other")
    read = [*_local_paths(input.path), *_local_paths(list(more_inputs))]
    for path in paths:
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
def scheduler_of(config: SchedulerConfig) -> Iterator[Scheduler]:
    """Give the scheduler that a config, or ``DASK_SCHEDULER_ADDRESS``, names; close what was opened for it."""
    address = config.address or (None if config.file else os.environ.get("DASK_SCHEDULER_ADDRESS"))
    if not (address or config.file):
        yield choose_scheduler(workers=config.workers)
        return
    client = connect(address or _address_in(str(config.file)))
    try:
        yield choose_scheduler(client)
    finally:
        client.close()


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
    return METHODS[config.method.name](**config.method.parameters, memory=config.memory)


def _plan(config: JobConfig, estimator: StreamingTransformer, source: Source, scheduler: Scheduler) -> Plan:
    return estimator.plan_for(source, scheduler=scheduler, scores=config.output.scores is not None)


def _missing_chunks(source: Source, policy: str, observer: Observer) -> list[str]:
    """Apply the policy on absent chunks, which read as the fill value: refuse, warn, or say nothing."""
    missing = 0 if policy == "fill" else source.missing_chunks()
    if not missing:
        return []
    message = f"{missing} stored chunk(s) of {source.info.description} are absent and read as the fill value"
    if policy == "error":
        raise DataError(message + "; missing_chunks: warn or fill would accept them")
    observer.warned(message)
    return [message]


def _no_checkpoints(config: JobConfig, observer: Observer) -> list[str]:
    """Warn of a wish that is not fulfilled yet."""
    if "checkpoint" not in config.model_fields_set:
        return []
    message = "checkpoint: no checkpoints are written yet; a run that is interrupted starts over"
    observer.warned(message)
    return [message]


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
