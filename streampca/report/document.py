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
from streampca.report.drift import Drift, drift_between
from streampca.report.facts import Fact
from streampca.report.numbers import compact, share, whole
from streampca.report.rows import empty_summary, summarize_rows
from streampca.sources.base import Source
from streampca.staging import check_target, staged
from streampca.statistics.row_summary import RowSummary
from streampca.statistics.score_density import ScoreDensity

_LONGEST_MANIFEST = 100_000  # letters
_NO_ROWS = "No rows were given to the report: with the data (--data, or summary=...) one more pass tells which rows are outlying."
_NO_DISTANCES = "T² and SPE of rows are told of a PCA only; score_samples gives the log-likelihood of each row where a model has one."


def write_report(
    estimator: Any,
    path: str | os.PathLike[str],
    *,
    summary: ScoreDensity | None = None,
    manifest: Mapping[str, Any] | None = None,
    since: Any = None,
    overwrite: bool = False,
) -> None:
    """Write what a fit found as one HTML file, for people: it needs no network and appears when it is complete.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator.
    path : str or Path
        Where to write, for example ``report.html``.
    summary : RowSummary or ScoreDensity, optional
        Of the rows, as :func:`streampca.summarize_rows` makes it: for the biplot and the outlying rows.
    manifest : mapping, optional
        What ``streampca run`` writes beside a model, or the summary that ``--json`` prints: its main facts are shown, all are listed.
    since : estimator, optional
        An older model of the same features: how far the components, the variances and the mean have moved from it is shown.
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
    page = render(estimator, summary, manifest or {}, since)
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
    summary: ScoreDensity | None = None,
    scheduler: Scheduler | None = None,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> None:
    """Write the report of a fit that has just been made; unless the summary is known, one more pass tells of its rows."""
    if summary is None and empty_summary(estimator) is not None:
        summary = summarize_rows(estimator, source, scheduler=scheduler, observer=observer)
    write_report(estimator, path, summary=summary, manifest=manifest, overwrite=overwrite)


def render(estimator: Any, summary: ScoreDensity | None, stored: Mapping[str, Any], since: Any = None) -> str:
    """Return the page."""
    fit, manifest, environment = as_fitted(estimator), facts.of_run(stored), _environment()
    drift = Drift.from_plain(manifest.get("drift")) if since is None else drift_between(since, estimator)
    found = {
        **_head(estimator, fit, manifest),
        **_variance(estimator, fit),
        **_rows(estimator, fit, summary),
        "figures": _figures(fit, summary, drift),
        "facts": facts.headline(estimator, fit, manifest),
        "checks": facts.checks(estimator, fit, summary, manifest),
        "table": fit.table,
        "features": facts.top_features(fit),
        "kernel": facts.kernel(estimator),
        "drift": facts.named(manifest.get("drift")) if drift is None else facts.drift(drift),
        "moved": None if drift is None else (facts.variance_rows(drift), drift.features()),
        "quality": facts.quality(estimator, fit, summary, manifest),
        "run": _run(estimator, fit, manifest),
        "manifest": _listed(stored),
    }
    safe = environment.globals["safe"]
    found["figures"] = {name: safe(text) for name, text in found["figures"].items()}
    page = {"style": safe(_file("style.css")), "script": safe(_file("script.js")), "sections": _sections(found)}
    return str(environment.get_template("report.html").render(**found, **page))


def _head(estimator: Any, fit: Fitted, manifest: Mapping[str, Any]) -> dict[str, Any]:
    headline = _headline(estimator, fit)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"title": f"{fit.kind}: {headline}", "headline": headline, "subject": manifest.get("input"), "made": made, "version": _version()}


def _variance(estimator: Any, fit: Fitted) -> dict[str, Any]:
    said = verdicts(estimator)
    about = {"k": fit.k, "some_left": fit.shown() > fit.k, "verdicts": said, "chosen_by": _chosen_by(estimator)}
    return {**about, **_truncation(estimator, fit, said)}


def _rows(estimator: Any, fit: Fitted, summary: ScoreDensity | None) -> dict[str, Any]:
    outlying = facts.outlying_rows(summary, fit.names) if isinstance(summary, RowSummary) else []
    return {
        "rows_shown": None if summary is None else _rows_shown(summary, float(getattr(estimator, "n_samples_", 0))),
        "outlying": outlying,
        "outlying_says": _outlying_says(summary, outlying),
        "no_rows": _NO_ROWS if isinstance(getattr(estimator, "_model", None), PCAModel) else _NO_DISTANCES,
    }


def _rows_shown(summary: ScoreDensity, n_rows: float) -> str:
    some = not isinstance(summary, RowSummary) and summary.rows < n_rows
    return f"{whole(summary.rows)} of {whole(n_rows)}" if some else whole(summary.rows)


def _sections(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the sections that there are, with their names."""
    drawn, table = found["figures"], str(found["table"])
    missing = {
        "biplot": "biplot" not in drawn,
        "loadings": not table,
        "outliers": table != "loadings",
        "loglike": "loglike" not in drawn,
        "kernel": not found["kernel"],
        "drift": not found["drift"],
    }
    names = {**_NAMES, "loadings": table.capitalize(), "biplot": "Rows and features" if table else "Rows"}
    return [(each, name) for each, name in names.items() if not missing.get(each)]


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


def _figures(fit: Fitted, summary: ScoreDensity | None, drift: Drift | None) -> dict[str, str]:
    """Return the drawings that there are of this fit."""
    drawn = {"scree": figures.scree(fit), "cumulative": figures.cumulative(fit)}
    if fit.table:
        drawn["loadings"] = figures.loadings(fit)
    if fit.k >= 2 and (fit.table or summary is not None):
        drawn["biplot"] = figures.biplot(fit, summary)
    if drift is not None:
        drawn |= {"variances": figures.variances(drift), "moves": figures.moves(drift)}
    if isinstance(summary, RowSummary) and summary.count:
        drawn["outliers"] = figures.outliers(summary, fit.names)
    if fit.loglike.size:
        drawn["loglike"] = figures.loglike(fit)
    return drawn


def _chosen_by(estimator: Any) -> str:
    selection = getattr(estimator, "selection_", None)
    return "" if selection is None else f", chosen by {selection.criterion}: {selection.reason}"


def _outlying_says(summary: ScoreDensity | None, outlying: list[dict[str, Any]]) -> str:
    if not isinstance(summary, RowSummary) or not summary.count:
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
