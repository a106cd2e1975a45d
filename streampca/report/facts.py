"""What a report says in words: headline facts, checks that something is amiss, top features, quality of the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.estimators import ICA
from streampca.memory import format_bytes
from streampca.models.kernel import KernelModel
from streampca.plotting.fitted import Fitted
from streampca.report.drift import Drift
from streampca.report.numbers import compact, duration, share, whole
from streampca.statistics.row_summary import RowSummary
from streampca.statistics.score_density import ScoreDensity

_TOP_FEATURES = 10
_TOP_COMPONENTS = 20
_EIGENVALUES = 8
_EXPECTED_BEYOND = 0.01  # of ordinary rows: what the limits stand for
_MANY_BEYOND = 0.05
_GOOD_SUBSPACE = 1e-3
_GOOD_RESIDUAL = 1e-4


@dataclass(frozen=True)
class Fact:
    """A number with its name, and a remark."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Check:
    """Something that was looked at: fine, or worth a look."""

    fine: bool
    text: str


def of_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a run by name: a manifest holds them in a summary of its own, beside its passes and missing chunks."""
    summary = manifest.get("summary")
    if not isinstance(summary, Mapping):
        return dict(manifest)
    around = {name: value for name, value in manifest.items() if name not in ("summary", "passes")}
    return {**around, **summary, "each_pass": manifest.get("passes") or ()}


def passes(manifest: Mapping[str, Any]) -> list[Fact]:
    """Return the time and speed of each pass, as far as the manifest tells."""
    found = []
    for each in manifest.get("each_pass") or ():
        seconds, n_bytes = each.get("seconds"), each.get("bytes_decoded")
        if seconds and n_bytes is not None:
            rows = f"{whole(each.get('rows', 0))} rows in {duration(seconds)}, {n_bytes / seconds / 1e9:.2f} GB/s"
            found.append(Fact(f"pass {each.get('name', '')}", rows))
    return found


def headline(estimator: Any, fit: Fitted, manifest: Mapping[str, Any]) -> list[Fact]:
    """Return the facts of the first look; what is not known is left out."""
    rows = float(getattr(estimator, "n_samples_", 0) or manifest.get("rows", 0))
    facts = [Fact("rows", whole(rows))] if rows else []
    facts += [
        Fact("features", whole(fit.n_features)),
        Fact("components", whole(fit.k), _how_chosen(estimator)),
        Fact("variance kept", share(float(min(fit.ratios[: fit.k].sum(), 1.0))), "" if fit.table else "in the feature space of the kernel"),
    ]
    solver, passes = getattr(estimator, "solver_", None), getattr(estimator, "n_passes_", None)
    if solver:
        facts.append(Fact("solver", str(solver), f"{passes} pass{'' if passes == 1 else 'es'}" if passes else ""))
    return facts + _speed(manifest) + _memory(manifest) + _accuracy(estimator)


def _how_chosen(estimator: Any) -> str:
    selection = getattr(estimator, "selection_", None)
    return f"chosen by {selection.criterion}" if selection is not None else ""


def _speed(manifest: Mapping[str, Any]) -> list[Fact]:
    seconds = manifest.get("seconds")
    if not isinstance(seconds, Mapping) or not seconds.get("total"):
        return []
    fit_seconds, n_bytes, passes = seconds.get("fit"), manifest.get("bytes_decoded"), manifest.get("passes")
    facts = [Fact("time", duration(seconds["total"]), f"fit {duration(fit_seconds)}" if fit_seconds else "")]
    if fit_seconds and n_bytes and passes:
        facts.append(Fact("speed", f"{n_bytes * passes / fit_seconds / 1e9:.2f} GB/s", f"{format_bytes(n_bytes * passes)} read"))
    return facts


def _memory(manifest: Mapping[str, Any]) -> list[Fact]:
    peak, budget = manifest.get("peak_memory"), manifest.get("memory_budget")
    if not peak:
        return []
    return [Fact("peak memory", format_bytes(peak), f"of a budget of {format_bytes(budget)}" if budget else "")]


def _accuracy(estimator: Any) -> list[Fact]:
    accuracy = getattr(estimator, "accuracy_", None)
    if not isinstance(accuracy, Mapping) or "subspace_error" not in accuracy:
        return []
    return [Fact("subspace error", compact(float(accuracy["subspace_error"])), "estimated 1 − MEV against the exact components")]


def checks(estimator: Any, fit: Fitted, summary: ScoreDensity | None, manifest: Mapping[str, Any]) -> list[Check]:
    """Return what was looked at, what is amiss first."""
    found = [*_check_accuracy(estimator), *_check_memory(manifest), *_check_rows(summary), *_check_convergence(estimator, fit)]
    warnings = [Check(False, str(message)) for message in manifest.get("warnings") or ()]
    constant = constant_columns(estimator, fit)
    if constant:
        found.append(
            Check(False, f"{len(constant):,} of {fit.n_features:,} columns are constant: {_some([fit.names[i] for i in constant])}")
        )
    return sorted([*warnings, *found], key=lambda check: check.fine)


def _check_accuracy(estimator: Any) -> list[Check]:
    accuracy = getattr(estimator, "accuracy_", None)
    if not isinstance(accuracy, Mapping) or "subspace_error" not in accuracy:
        return []
    error, residual = float(accuracy["subspace_error"]), float(np.max(accuracy.get("residuals", 0.0), initial=0.0))
    fine = error <= _GOOD_SUBSPACE and residual <= _GOOD_RESIDUAL
    words = f"subspace error {compact(error)}, largest residual of a component {compact(residual)}"
    return [Check(fine, f"The components are accurate: {words}." if fine else f"The components are not accurate to 0.1%: {words}.")]


def _check_memory(manifest: Mapping[str, Any]) -> list[Check]:
    peak, projected = manifest.get("peak_memory"), manifest.get("projected_memory")
    if not (peak and projected):
        return []
    fine = peak <= projected
    return [Check(fine, f"Peak memory {format_bytes(peak)}, {'within' if fine else 'above'} the projected {format_bytes(projected)}.")]


def _check_rows(summary: ScoreDensity | None) -> list[Check]:
    if not isinstance(summary, RowSummary) or not summary.count:
        return []
    found = []
    for what, name in (("t2", "T²"), ("spe", "SPE")):
        if np.isfinite(summary.limits[0 if what == "t2" else 1]):
            part = summary.beyond(what) / summary.count
            text = f"{share(part)} of the rows exceed the 99% limit of {name}"
            fine = part <= _MANY_BEYOND
            expected = f" ({_EXPECTED_BEYOND:.0%} of normally distributed rows would)."
            found.append(Check(fine, text + expected))
    return found


def _check_convergence(estimator: Any, fit: Fitted) -> list[Check]:
    converged = getattr(estimator, "converged_", None)
    change = getattr(getattr(estimator, "_model", None), "change", None)
    if isinstance(estimator, ICA) and change is not None:
        fine = change <= estimator.tol
        words = "converged" if fine else "did not converge: give a larger max_iter, or tol"
        return [Check(fine, f"The rotation {words} ({estimator.n_iter_} iterations, last change {compact(change)}).")]
    if converged is None:
        return []
    passes = fit.loglike.size or int(getattr(estimator, "n_iter_", 0))
    return [Check(bool(converged), f"EM {'converged' if converged else 'did not converge: give a larger max_iter'} ({passes} passes).")]


def constant_columns(estimator: Any, fit: Fitted) -> list[int]:
    """Return the columns that are known to be constant: no variance in the sums of the fit, or none in the model of all of it."""
    state = getattr(estimator, "_state", None)
    scatter = getattr(state, "scatter", None)
    if scatter is not None:
        return [int(each) for each in np.flatnonzero(np.diagonal(scatter) == 0)]
    return [int(each) for each in np.flatnonzero(~fit.components.any(axis=0))]


def quality(estimator: Any, fit: Fitted, summary: ScoreDensity | None, manifest: Mapping[str, Any]) -> list[Fact]:
    """Return what is known of the data itself."""
    constant = constant_columns(estimator, fit)
    facts = [Fact("constant columns", whole(len(constant)), _some([fit.names[index] for index in constant]))] if fit.table else []
    absent = [str(each) for each in manifest.get("warnings") or () if "chunk" in str(each)]
    known = manifest.get("missing_chunks")
    number = whole(known) if isinstance(known, int) else "some" if absent else "not known" if not manifest else "none reported"
    facts.append(Fact("missing chunks", number, absent[0] if absent else ""))
    skipped = getattr(getattr(estimator, "_model", None), "n_skipped", None)
    if skipped is not None:
        facts.append(Fact("rows without any entry", whole(float(skipped))))
    else:
        facts.append(Fact("NaN or infinite entries", "none", "a fit refuses them"))
    if summary is not None:
        weights = f"weights add up to {whole(summary.count)}" if summary.count != summary.rows else ""
        facts.append(Fact("rows looked at", whole(summary.rows), weights))
        facts.append(Fact("rows beyond the biplot", whole(summary.outside), "more than 5 standard deviations on component 1 or 2"))
    return facts


def kernel(estimator: Any) -> list[Fact]:
    """Return what kernel was used, and how well it was approximated; nothing of other models."""
    model = getattr(estimator, "_model", None)
    errors = named(getattr(estimator, "approximation_error_", None))
    if not isinstance(model, KernelModel):
        return errors
    of_kernel = {name: value for name in ("gamma", "degree", "coef0") if (value := getattr(model.kernel, name, None)) is not None}
    count = {"exact": "all rows", "nystrom": f"{len(model.matrix):,} landmarks", "fourier": f"{len(model.matrix):,} random features"}
    facts = [Fact("kernel", model.kernel.name), *named(of_kernel), Fact("method", estimator.solver_, count.get(estimator.solver_, ""))]
    facts += [Fact("frobenius error", compact(model.frobenius_error), "of the kernel matrix, relative, on pairs of sampled rows")]
    facts += [Fact("uncaptured trace", compact(model.uncaptured_trace), "part of the kernel matrix: what the approximation leaves out")]
    if model.negative_share > 0:
        facts.append(Fact("negative spectrum", share(model.negative_share), "dropped: the kernel is not positive semi-definite here"))
    first = ", ".join(compact(float(each)) for each in model.eigenvalues[:_EIGENVALUES])
    return [*facts, Fact("eigenvalues", first + (", ..." if model.n_components > _EIGENVALUES else ""))]


def drift(found: Drift) -> list[Fact]:
    """Return what has changed since an older model, in words."""
    changes, moved = np.abs(found.changes), np.abs(found.moved)
    one, other = int(changes.argmax()), int(moved.argmax())
    return [
        Fact("rows", f"{whole(found.rows[0])} before, {whole(found.rows[1])} now"),
        Fact("largest subspace angle", f"{compact(found.angle)}°", "(0° is the same subspace, 90° has a direction that is new altogether)"),
        Fact("largest variance change", _percent(found.changes[one]), f"of component {one + 1}"),
        Fact("largest mean shift", f"{found.moved[other]:+.3g} standard deviations", f"of {found.names[other]}"),
    ]


def variance_rows(found: Drift) -> list[dict[str, Any]]:
    """Return the variances before and now as rows of a table."""
    return [{**row, "change": _percent(row["change"])} for row in found.variances()]


def _percent(change: float) -> str:
    return f"{100 * change:+.3g}%" if np.isfinite(change) else "from nothing"


def named(found: Any) -> list[Fact]:
    """Return numbers by name as facts; a single number has none."""
    if found is None:
        return []
    pairs = found.items() if isinstance(found, Mapping) else [("relative error", found)]
    return [
        Fact(str(name).replace("_", " "), compact(float(value)) if isinstance(value, (int, float, np.number)) else str(value))
        for name, value in pairs
    ]


def top_features(fit: Fitted) -> list[dict[str, Any]]:
    """Return the features with the largest loadings on each component, as rows of a table."""
    rows = []
    for number, component in enumerate(fit.components[:_TOP_COMPONENTS]):
        order = np.argsort(-np.abs(component), kind="stable")[:_TOP_FEATURES]
        whole_length = float(np.square(component).sum()) or 1.0
        rows += [
            {
                "component": number + 1,
                "rank": rank + 1,
                "feature": fit.names[i],
                "loading": float(component[i]),
                "share": float(component[i]) ** 2 / whole_length,
            }
            for rank, i in enumerate(order)
        ]
    return rows


def outlying_rows(summary: RowSummary, names: list[str]) -> list[dict[str, Any]]:
    """Return the rows beyond a limit, the most outlying first, as rows of a table."""
    worst = summary.outlying
    return [
        {
            "row": int(worst.row[i]),
            "excess": float(worst.excess[i]),
            "t2": float(worst.t2[i]),
            "spe": float(worst.spe[i]),
            "feature": names[worst.feature[i]],
        }
        for i in range(len(worst.row))
        if worst.excess[i] > 1
    ]


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
