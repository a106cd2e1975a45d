"""The report: gathers facts and figures, fills the page, and writes one HTML file that needs no network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import numpy as np

from streampca.engine import Scheduler
from streampca.errors import MissingExtraError
from streampca.estimators.base import StreamingTransformer
from streampca.events import Observer
from streampca.models.pca import PCAModel
from streampca.plotting.fitted import Fitted, as_fitted
from streampca.report import facts, figures
from streampca.report.criteria import Verdict, verdicts
from streampca.report.facts import Fact
from streampca.report.numbers import compact, share, whole
from streampca.report.rows import summarize_rows
from streampca.sources.base import Source
from streampca.staging import check_target, staged
from streampca.statistics.row_summary import RowSummary

_LONGEST_MANIFEST = 100_000  # letters
_NO_ROWS = "No rows were given to the report: with the data (--data, or summary=...) one more pass tells which rows are outlying."
_NO_DISTANCES = "T² and SPE of rows are told of a PCA only; score_samples gives the log-likelihood of each row where a model has one."


def write_report(
    estimator: Any,
    path: str | os.PathLike[str],
    *,
    summary: RowSummary | None = None,
    manifest: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write what a fit found as one HTML file, for people: it needs no network and appears when it is complete.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator.
    path : str or Path
        Where to write, for example ``report.html``.
    summary : RowSummary, optional
        Of the rows, as :func:`streampca.summarize_rows` makes it: for the biplot and the outlying rows.
    manifest : mapping, optional
        What ``streampca run`` writes beside a model, or the summary that ``--json`` prints: its main facts are shown, all are listed.
    overwrite : bool
        Replace an existing file.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> model = sp.PCA(2).fit(X)
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "report.html"
    >>> write_report(model, file, summary=sp.summarize_rows(model, X))
    >>> file.read_text().count("<svg")
    5
    """
    page = render(estimator, summary, manifest or {})
    with staged(path, overwrite) as file:
        file.write_text(page, encoding="utf-8")


def check_report(path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Raise if a report cannot be written to a path, before the work that it is to tell of; create nothing."""
    _environment()
    check_target(path, overwrite)


def report_of_run(
    estimator: StreamingTransformer,
    source: Source,
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    *,
    scheduler: Scheduler | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> None:
    """Write the report of a fit that has just been made; where it is a PCA, one more pass tells of its rows."""
    told = isinstance(getattr(estimator, "_model", None), PCAModel)
    rows = summarize_rows(estimator, source, scheduler=scheduler, observer=observer) if told else None
    write_report(estimator, path, summary=rows, manifest=manifest, overwrite=overwrite)


def render(estimator: Any, summary: RowSummary | None, stored: Mapping[str, Any]) -> str:
    """Return the page."""
    fit, manifest = as_fitted(estimator), facts.of_run(stored)
    environment = _environment()
    said = verdicts(estimator)
    drawn = {name: environment.globals["safe"](text) for name, text in _figures(fit, summary).items()}
    kernel, drift = _named(getattr(estimator, "approximation_error_", None)), _named(manifest.get("drift"))
    outlying = [] if summary is None else facts.outlying_rows(summary, fit.names)
    sections = {
        "facts": True,
        "variance": True,
        "biplot": "biplot" in drawn,
        "loadings": True,
        "outliers": True,
        "loglike": "loglike" in drawn,
        "kernel": bool(kernel),
        "drift": bool(drift),
        "quality": True,
        "manifest": True,
    }
    template = environment.get_template("report.html")
    return str(
        template.render(
            title=f"{fit.kind}: {_headline(estimator, fit)}",
            headline=_headline(estimator, fit),
            subject=manifest.get("input"),
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=_version(),
            style=environment.globals["safe"](_file("style.css")),
            script=environment.globals["safe"](_file("script.js")),
            sections=[(name, _NAMES[name]) for name, there in sections.items() if there and name in _NAMES],
            facts=facts.headline(estimator, fit, manifest),
            checks=facts.checks(estimator, fit, summary, manifest),
            figures=drawn,
            k=fit.k,
            some_left=fit.shown() > fit.k,
            verdicts=said,
            chosen_by=_chosen_by(estimator),
            rows_shown=None if summary is None else whole(summary.rows),
            features=facts.top_features(fit),
            outlying=outlying,
            outlying_says=_outlying_says(summary, outlying),
            no_rows=_NO_ROWS if isinstance(getattr(estimator, "_model", None), PCAModel) else _NO_DISTANCES,
            kernel=kernel,
            drift=drift,
            quality=facts.quality(estimator, fit, summary, manifest),
            run=_run(estimator, fit, manifest),
            manifest=_listed(stored),
            **_truncation(estimator, fit, said),
        )
    )


_NAMES = {
    "variance": "Variance",
    "biplot": "Rows and features",
    "loadings": "Loadings",
    "outliers": "Outlying rows",
    "loglike": "Log-likelihood",
    "kernel": "Kernel",
    "drift": "Drift",
    "quality": "The data",
    "manifest": "The run",
}


def _environment() -> Any:
    """Return the templates of the page, which escape all that they are given but what is made here."""
    try:
        import jinja2
        import markupsafe
    except ImportError as error:
        raise MissingExtraError("the report needs jinja2, which is not installed: pip install 'streampca[report]'") from error
    environment = jinja2.Environment(loader=jinja2.FunctionLoader(_file), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["compact"] = compact
    environment.globals["safe"] = markupsafe.Markup  # figures escape the names in them; style and script are files of the package
    return environment


def _file(name: str) -> str:
    return (resources.files("streampca.report") / "page" / name).read_text(encoding="utf-8")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("streampca")
    except PackageNotFoundError:
        return "(not installed)"


def _headline(estimator: Any, fit: Fitted) -> str:
    kept = share(float(min(fit.ratios[: fit.k].sum(), 1.0)))
    rows = getattr(estimator, "n_samples_", None)
    table = f" of {whole(float(rows))} rows × {whole(fit.n_features)} features" if rows else f" of {whole(fit.n_features)} features"
    return f"{fit.k} component{'' if fit.k == 1 else 's'} keep{'s' if fit.k == 1 else ''} {kept} of the variance{table}"


def _figures(fit: Fitted, summary: RowSummary | None) -> dict[str, str]:
    """Return the drawings that there are of this fit."""
    drawn = {"scree": figures.scree(fit), "cumulative": figures.cumulative(fit), "loadings": figures.loadings(fit)}
    if fit.k >= 2:
        drawn["biplot"] = figures.biplot(fit, summary)
    if summary is not None and summary.count:
        drawn["outliers"] = figures.outliers(summary, fit.names)
    if fit.loglike.size:
        drawn["loglike"] = figures.loglike(fit)
    return drawn


def _chosen_by(estimator: Any) -> str:
    selection = getattr(estimator, "selection_", None)
    return "" if selection is None else f", chosen by {selection.criterion}: {selection.reason}"


def _outlying_says(summary: RowSummary | None, outlying: list[dict[str, Any]]) -> str:
    if summary is None or not summary.count:
        return ""
    within = f"{whole(summary.beyond('t2'))} rows ({share(summary.beyond('t2') / summary.count)}) exceed the limit of T²"
    if not np.isfinite(summary.limits[1]):
        return within + "; the components explain all variance, so SPE is nothing but rounding."
    beyond = f"{whole(summary.beyond('spe'))} ({share(summary.beyond('spe') / summary.count)}) that of SPE"
    return f"{within}, {beyond}; 1% of normally distributed rows would. The {len(outlying)} most outlying ones are listed."


def _truncation(estimator: Any, fit: Fitted, said: list[Verdict]) -> dict[str, Any]:
    model = getattr(estimator, "_model", None)
    limit = min(model.n_samples - 1, model.n_features) if isinstance(model, PCAModel) else len(fit.spectrum)
    known = min(len(fit.spectrum), limit)
    return {"truncated": bool(said) and known < limit, "known": whole(known), "limit": whole(limit)}


def _named(found: Any) -> list[Fact]:
    """Return numbers by name as facts; a single number has none."""
    if found is None:
        return []
    pairs = found.items() if isinstance(found, Mapping) else [("relative error", found)]
    return [
        Fact(str(name).replace("_", " "), compact(float(value)) if isinstance(value, (int, float, np.number)) else str(value))
        for name, value in pairs
    ]


def _run(estimator: Any, fit: Fitted, manifest: Mapping[str, Any]) -> list[Fact]:
    found = [Fact("method", fit.kind)]
    solver = getattr(estimator, "solver_", None)
    if solver:
        found.append(Fact("solver", str(solver)))
    parameters: dict[str, Any] = getattr(estimator, "get_params", dict)()
    given = ", ".join(f"{name}={value!r}" for name, value in sorted(parameters.items()) if value is not None)
    if given:
        found.append(Fact("parameters", given))
    found += [Fact(name, str(manifest[name])) for name in ("written", "host") if manifest.get(name)]
    found += facts.passes(manifest)
    output = manifest.get("output")
    if isinstance(output, Mapping):
        found += [Fact(str(name), str(where)) for name, where in output.items() if isinstance(where, str)]
    return found


def _listed(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as text, cut where it would make the page heavy."""
    if not manifest:
        return ""
    text = json.dumps(manifest, indent=2, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST_MANIFEST else text[:_LONGEST_MANIFEST] + f"\n... ({len(text) - _LONGEST_MANIFEST:,} letters more)"
