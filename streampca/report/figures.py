"""The figures of a report as inline SVG: what each mark means is told on hover."""

from __future__ import annotations

from html import escape

import numpy as np

from streampca.plotting.fitted import Fitted, Floats
from streampca.report.drift import Drift
from streampca.report.numbers import compact, share, whole
from streampca.report.svg import Axis, Panel, drawing, spread, text_width, title
from streampca.statistics.row_summary import RowSummary
from streampca.statistics.score_density import GRID, REACH, ScoreDensity

_SAMPLE_DOTS = 800
_ARROWS = 10
_SHADES = 12  # of the density, as in the page's style
_LONGEST_NAME = 24


def scree(fit: Fitted) -> str:
    """Draw the part of the variance of each component; by logarithms where it spans more than two decades."""
    n = fit.shown()
    ratios = fit.ratios[:n]
    seen = ratios[ratios > 1e-12 * ratios.max(initial=0)]
    log = bool(seen.size) and seen.max() > 100 * seen.min()
    axis = Axis(float(seen.min()) / 2, float(seen.max()) * 1.4, log=True) if log else Axis(0, float(ratios.max(initial=0)) * 1.1 or 1.0)
    panel = Panel(Axis(0.4, n + 0.6), axis, f"Part of the variance of each of the first {n} components; {fit.k} are kept.")
    panel.grid("component", "part of the variance" + (" (log)" if log else ""), percent=True, whole=True)
    for index, ratio in enumerate(ratios):
        kind = "kept" if index < fit.k else "left"
        says = f"component {index + 1}: {share(float(ratio))} of the variance ({compact(fit.spectrum[index])})"
        panel.rect(kind, index + 0.62, index + 1.38, axis.low, max(float(ratio), axis.low), says)
    if fit.k < n:
        panel.vertical(fit.k + 0.5, f"{fit.k} kept")
    return panel.render()


def cumulative(fit: Fitted) -> str:
    """Draw the part of the variance that the first components explain together."""
    n = fit.shown()
    parts = np.minimum(np.cumsum(fit.ratios[:n]), 1.0)
    panel = Panel(
        Axis(0.4, n + 0.6), Axis(0, 1.05), f"Cumulative variance: {share(float(parts[min(fit.k, n) - 1]))} with {fit.k} components."
    )
    panel.grid("number of components", "variance explained", percent=True, whole=True)
    panel.line("curve", [(index + 1, float(part)) for index, part in enumerate(parts)])
    for index, part in enumerate(parts):
        says = f"{index + 1} components: {share(float(part))} of the variance"
        panel.dot(
            "chosen" if index + 1 == fit.k else "kept" if index < fit.k else "left",
            index + 1,
            float(part),
            says,
            5 if index + 1 == fit.k else 3,
        )
    last = min(fit.k, n)
    right = last > 0.6 * n
    panel.text(
        "callout",
        last,
        float(parts[last - 1]),
        f"{share(float(fit.ratios[: fit.k].sum()))} with {fit.k}",
        anchor="end" if right else "start",
        dx=-9 if right else 8,
        dy=-5 if right else 22,  # a curve that never falls is neither there nor there
    )
    return panel.render()


def biplot(fit: Fitted, summary: ScoreDensity | None) -> str:
    """Draw the density of the rows in the plane of the first two components, and the longest arrows of features, where there are some."""
    reach = _reach(summary)
    panel = Panel(
        Axis(-reach, reach),
        Axis(-reach, reach),
        f"Rows{' and features' if fit.table else ''} in the plane of the first two components.",
        height=450,
        right=14,
    )
    panel.grid(*(f"component {number + 1} ({share(float(fit.ratios[number]))}), in standard deviations" for number in range(2)))
    if summary is not None:
        _density(panel, summary, reach)
    _arrows(panel, fit, reach)
    return panel.render()


def _reach(summary: ScoreDensity | None) -> float:
    """Return how many standard deviations to show: all but one row in a thousand, at least 2.5."""
    if summary is None or not summary.density.any():
        return 3.0
    cells = np.abs(np.arange(GRID) - (GRID - 1) / 2)
    rings = np.maximum(*np.meshgrid(cells, cells, indexing="ij"))
    within = [summary.density[rings <= ring].sum() for ring in cells[GRID // 2 :]]
    enough = int(np.argmax(np.array(within) >= 0.999 * summary.density.sum())) + 1
    return max(enough * 2 * REACH / GRID, 2.5)


def _density(panel: Panel, summary: ScoreDensity, reach: float) -> None:
    """Draw the counts of rows by their logarithm: the few at the edge matter as well."""
    edges = np.linspace(-REACH, REACH, GRID + 1)
    most = float(np.log1p(summary.density.max()))
    for i, j in np.argwhere(summary.density > 0):
        (x0, x1), (y0, y1) = edges[i : i + 2], edges[j : j + 2]
        if max(abs(x0 + x1), abs(y0 + y1)) / 2 > reach:
            continue
        count = float(summary.density[i, j])
        shade = 1 + round((_SHADES - 1) * float(np.log1p(count)) / most)
        panel.rect(f"cell c{shade}", x0, x1, y0, y1, f"{whole(count)} rows near ({(x0 + x1) / 2:.2f}, {(y0 + y1) / 2:.2f})", grow=0.6)


def _arrows(panel: Panel, fit: Fitted, reach: float) -> None:
    chosen = fit.longest_arrows(_ARROWS)
    tips = fit.components[:2, chosen].T
    tips = tips / (np.linalg.norm(tips, axis=1).max(initial=0.0) or 1.0) * 0.78 * reach
    for feature, (x, y) in zip(chosen, tips, strict=True):
        says = f"{fit.names[feature]}: {fit.components[0, feature]:+.3f} on component 1, {fit.components[1, feature]:+.3f} on component 2"
        panel.marks.append(
            f'<g class="arrow">{title(says)}<path d="M{panel.px(0):.1f} {panel.py(0):.1f}L{panel.px(x):.1f} {panel.py(y):.1f}"/>'
            f'<circle cx="{panel.px(x):.1f}" cy="{panel.py(y):.1f}" r="3.2"/></g>'
        )
    for side in (False, True):
        _arrow_names(panel, [(_short(fit.names[chosen[i]]), *tips[i]) for i in range(len(chosen)) if (tips[i, 0] >= 0) == side], side)


def _arrow_names(panel: Panel, arrows: list[tuple[str, float, float]], right: bool) -> None:
    """Write the names of arrows that point to one side beside their tips, apart from each other; above the arrow if there is no room."""
    places, wanted = [], []
    for name, x, y in arrows:
        at = panel.px(x) + (8 if right else -8)
        room = panel.width - panel.right - text_width(name) if right else panel.left + text_width(name)
        places.append(min(at, room) if right else max(at, room))
        wanted.append(panel.py(y) - (0 if places[-1] == at else 12))
    heights = spread(wanted, 15, panel.top + 8, panel.height - panel.bottom - 6)
    anchor = "start" if right else "end"
    for (name, _, _), at, height in zip(arrows, places, heights, strict=True):
        panel.marks.append(f'<text class="name" x="{at:.1f}" y="{height + 4:.1f}" text-anchor="{anchor}">{escape(name)}</text>')


def loadings(fit: Fitted, n_components: int = 12, n_features: int = 28) -> str:
    """Draw the loadings of the leading features on the first components, or a mixing matrix, as a heat map."""
    k = min(fit.k, n_components)
    chosen = fit.leading_features(k, n_features)
    values = fit.components[:k, chosen].T
    most = float(np.abs(values).max()) or 1.0
    names = [_short(fit.names[feature]) for feature in chosen]
    left, wide, tall, top = 16 + max(map(text_width, names)), max(26.0, min(64.0, 360 / k)), 17.0, 24.0
    marks = [
        f'<text class="tick" x="{left + (j + 0.5) * wide:.1f}" y="{top - 8:.1f}" text-anchor="middle">{j + 1}</text>' for j in range(k)
    ]
    for i, feature in enumerate(chosen):
        y = top + i * tall
        marks.append(f'<text class="tick" x="{left - 7:.1f}" y="{y + 12.5:.1f}" text-anchor="end">{escape(names[i])}</text>')
        for j in range(k):
            value = float(values[i, j])
            kind = "positive" if value >= 0 else "negative"
            says = title(f"{fit.names[feature]} on component {j + 1}: {value:+.4g}")
            marks.append(
                f'<rect class="{kind}" x="{left + j * wide:.1f}" y="{y:.1f}" width="{wide - 1.5:.1f}" height="{tall - 1.5:.1f}" '
                f'fill-opacity="{abs(value) / most:.2f}">{says}</rect>'
            )
    label = f"{fit.table.capitalize()} of {len(chosen)} features on {k} components."
    return drawing(left + k * wide + 8, top + len(chosen) * tall + 8, label, marks)


def outliers(summary: RowSummary, names: list[str]) -> str:
    """Draw T2 against SPE: a sample of rows, the most outlying ones, and the limits; T2 alone where there is no SPE."""
    sample, worst = summary.sample, summary.outlying
    t2_limit, spe_limit = map(float, summary.limits)
    flat = not np.isfinite(spe_limit)
    shown = slice(None, None, max(-(-len(sample.row) // _SAMPLE_DOTS), 1))
    x, y = (_log_axis(np.append(sample.t2, worst.t2), t2_limit), _log_axis(np.append(sample.spe, worst.spe), spe_limit))
    panel = Panel(x, y, "T2 against SPE of a sample of rows and of the most outlying ones.", height=400)
    panel.grid("T² (distance within the components)", "SPE (distance from them)")
    for row, t2, spe in zip(sample.row[shown], sample.t2[shown], sample.spe[shown], strict=True):
        panel.dot("row", float(t2), y.low if flat else float(spe), f"row {row:,}: T² {compact(t2)}, SPE {compact(spe)}", 2.6)
    panel.vertical(t2_limit, "99% limit")
    if not flat:
        panel.horizontal(spe_limit, "99% limit")
    for row, excess, t2, spe, feature in zip(worst.row, worst.excess, worst.t2, worst.spe, worst.feature, strict=True):
        if excess > 1:
            says = f"row {row:,}: T² {compact(t2)}, SPE {compact(spe)}, {compact(excess)} times the limit, mostly by {names[feature]}"
            panel.dot("outlying", float(t2), y.low if flat else float(spe), says, 4)
    return panel.render()


def _log_axis(values: Floats, limit: float) -> Axis:
    """Return an axis that shows all but the smallest values, and the limit."""
    found = values[(values > 0) & np.isfinite(values)]
    ends = [limit] if np.isfinite(limit) else []
    ends += [float(np.quantile(found, 0.01)), float(found.max())] if found.size else []
    return Axis(min(ends or [0.1]) / 1.5, max(ends or [1.0]) * 1.5, log=True)


def loglike(fit: Fitted) -> str:
    """Draw the log-likelihood after each pass."""
    values = fit.loglike
    low, high = float(values.min()), float(values.max())
    margin = 0.08 * (high - low) or 1.0
    panel = Panel(
        Axis(0.5, len(values) + 0.5), Axis(low - margin, high + margin), "Log-likelihood after each pass.", width=680, height=300, left=76
    )
    panel.grid("pass", "log-likelihood", whole=True)
    panel.line("curve", [(index + 1, float(value)) for index, value in enumerate(values)])
    for index, value in enumerate(values):
        gain = "" if index == 0 else f", {value - values[index - 1]:+.6g}"
        panel.dot("kept", index + 1, float(value), f"pass {index + 1}: {value:.8g}{gain}", 3.5)
    return panel.render()


def variances(drift: Drift) -> str:
    """Draw the variances of an older model beside those of this one; by logarithms where they span more than two decades."""
    rows = drift.variances()
    values = np.array([[row["before"], row["now"]] for row in rows])
    seen = values[values > 1e-12 * values.max(initial=0)]
    log = bool(seen.size) and seen.max() > 100 * seen.min()
    axis = Axis(float(seen.min()) / 2, float(seen.max()) * 1.4, log=True) if log else Axis(0, float(values.max(initial=0)) * 1.1 or 1.0)
    panel = Panel(Axis(0.4, len(rows) + 0.6), axis, f"Variances of the first {len(rows)} components, before and now.", height=290)
    panel.grid("component", "variance" + (" (log)" if log else ""), whole=True)
    for number, pair in enumerate(values, 1):
        for kind, word, value, side in (("left", "before", pair[0], -0.36), ("kept", "now", pair[1], 0.02)):
            says = f"component {number}: variance {compact(value)} {word}"
            panel.rect(kind, number + side, number + side + 0.34, axis.low, max(float(value), axis.low), says)
    return panel.render()


def moves(drift: Drift) -> str:
    """Draw how far the mean of the features that have moved most went, in standard deviations."""
    rows = drift.features()
    lengths = [float(np.clip(row["moved"], -1e6, 1e6)) for row in rows]
    low, high = min(0.0, *lengths), max(0.0, *lengths)
    names = [_short(row["feature"]) for row in rows]
    left = 16 + max(map(text_width, names))
    margin = 0.05 * (high - low) or 1.0
    across = Axis(low - (margin if low < 0 else 0.0), high + margin)
    panel = Panel(across, Axis(len(rows) + 0.5, 0.5), "Features whose mean has moved most.", height=74 + 21.0 * len(rows), left=left)
    panel.across("standard deviations", most=5)
    panel.marks.append(f'<path class="rule" d="M{panel.px(0):.1f} {panel.top:.1f}V{panel.height - panel.bottom:.1f}"/>')
    for number, (row, name, length) in enumerate(zip(rows, names, lengths, strict=True), 1):
        kind = "positive" if length >= 0 else "negative"
        panel.text("tick", across.low, number, name, anchor="end", dx=-7, dy=4)
        says = f"{row['feature']}: mean moved by {row['moved']:+.3g} standard deviations"
        panel.rect(kind, 0.0, length, number - 0.36, number + 0.36, says)
    return panel.render()


def _short(name: str) -> str:
    """Return a name that fits beside a drawing; its whole is told on hover."""
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
