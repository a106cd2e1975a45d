"""The pictures of a fitted model as matplotlib axes: scree, biplot, loadings, outlying rows, log-likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from streampca.errors import UsageError
from streampca.plotting.fitted import Fitted, as_fitted
from streampca.plotting.theme import Theme, colours, matplotlib_module, new_axes, theme_of
from streampca.statistics.row_summary import RowSummary
from streampca.statistics.score_density import ScoreDensity

_MANY_ROWS = 4000  # from here on, rows are drawn as a density


def scree(model: Any, ax: Any = None, *, theme: str = "light") -> Any:
    """Draw the part of the variance of each component and of all up to it, with the number that was chosen.

    Parameters
    ----------
    model : estimator
        A fitted estimator.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.
    theme : {"light", "dark"}
        Colours.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> model = sp.PCA(2).fit(np.random.default_rng(0).normal(size=(50, 4)))
    >>> sp.plot.scree(model).get_ylabel()
    'part of the variance'
    """
    fit, colour = as_fitted(model), theme_of(theme)
    ax = new_axes(colour) if ax is None else ax
    n = fit.shown()
    places, ratios = np.arange(1, n + 1), fit.ratios[:n]
    kept = places <= fit.k
    ax.bar(places[kept], ratios[kept], color=colour.main, width=0.8, label=f"kept: {fit.k}")
    if not kept.all():
        ax.bar(places[~kept], ratios[~kept], color=colour.faint, width=0.8, label="not kept")
    cumulative = np.cumsum(ratios)
    ax.plot(places, cumulative, color=colour.accent, marker="o", markersize=3.5, linewidth=1.6, label="cumulative")
    last = min(fit.k, n)
    ax.axvline(last + 0.5, color=colour.muted, linewidth=1, linestyle=(0, (4, 3)))
    ax.annotate(
        f"{fit.ratios[: fit.k].sum():.1%} with {fit.k}",
        (last, cumulative[last - 1]),
        xytext=(8, -14),
        textcoords="offset points",
        ha="right" if last > 0.7 * n else "left",
        color=colour.ink,
        weight="bold",
    )
    _percent(ax.yaxis)
    ax.xaxis.set_major_locator(matplotlib_module("ticker").MaxNLocator(integer=True))
    ax.set(xlabel="component", ylabel="part of the variance", ylim=(0, 1.12), xlim=(0.4, n + 0.6))
    _title(ax, "Variance by component")
    ax.yaxis.grid(True)
    _legend(ax, colour, "center right")
    return ax


def biplot(
    model: Any,
    summary: ScoreDensity | None = None,
    scores: ArrayLike | None = None,
    ax: Any = None,
    *,
    arrows: int = 10,
    theme: str = "light",
) -> Any:
    """Draw rows in the plane of the first two components, and the features with the longest arrows there (of a kernel there are none).

    Parameters
    ----------
    model : estimator
        A fitted estimator with two components or more.
    summary : RowSummary or ScoreDensity, optional
        Of the rows, as :func:`streampca.summarize_rows` makes it: drawn as a density.
    scores : array-like, optional
        Scores of rows, instead: points if they are few, else a density.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.
    arrows : int
        Number of features with an arrow.
    theme : {"light", "dark"}
        Colours.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> sp.plot.biplot(sp.PCA(2).fit(X), scores=X[:, :2]).get_xlabel()
    'component 1 (...%)'
    """
    fit, colour = as_fitted(model), theme_of(theme)
    if fit.k < 2:
        raise UsageError(f"a biplot needs two components, and this model has {fit.k}: fit with n_components=2 or more")
    if summary is not None and scores is not None:
        raise UsageError("give the summary or the scores of the rows, not both")
    ax = new_axes(colour, 6.6, 5.6) if ax is None else ax
    deviations = np.sqrt(np.maximum(fit.variances[:2], 0.0))
    if summary is not None:
        deviations = summary.deviations
        _density(ax, summary, colour)
    elif scores is not None:
        deviations = _rows(ax, np.asarray(scores, np.float64), colour)
    reach = 4 * np.where(deviations > 0, deviations, 1.0)
    _arrows(ax, fit, arrows, reach, colour)
    ax.set_box_aspect(1)
    ax.set(xlim=(-reach[0], reach[0]), ylim=(-reach[1], reach[1]), **_axis_labels(fit))
    _title(ax, "Rows and features" if fit.table else "Rows")
    return ax


def loadings(model: Any, ax: Any = None, *, n_components: int = 12, n_features: int = 30, theme: str = "light") -> Any:
    """Draw the loadings of the leading features on the first components, or a mixing matrix, as a heat map.

    Parameters
    ----------
    model : estimator
        A fitted estimator.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.
    n_components, n_features : int
        How many are shown at most; features by their largest loading.
    theme : {"light", "dark"}
        Colours.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> model = sp.PCA(2).fit(np.random.default_rng(0).normal(size=(50, 4)))
    >>> [label.get_text() for label in sp.plot.loadings(model).get_yticklabels()]
    ['x0', 'x1', 'x2', 'x3']
    """
    fit, colour = as_fitted(model), theme_of(theme)
    if not fit.table:
        raise UsageError(f"{fit.kind} has no components in the features, and so no loadings: draw scree or biplot")
    k = min(fit.k, n_components)
    chosen = fit.leading_features(k, n_features)
    values = fit.components[:k, chosen].T
    ax = new_axes(colour, 2.6 + 0.42 * k, 1.6 + 0.24 * len(chosen)) if ax is None else ax
    most = float(np.abs(values).max()) or 1.0
    image = ax.imshow(values, cmap=colours(colour, "negative", "paper", "positive"), vmin=-most, vmax=most, aspect="auto")
    ax.set_xticks(range(k), [str(each + 1) for each in range(k)])
    ax.set_yticks(range(len(chosen)), [fit.names[each] for each in chosen])
    ax.set(xlabel="component")
    _title(ax, fit.table.capitalize())
    ax.tick_params(length=0)
    bar = ax.figure.colorbar(image, ax=ax, shrink=0.6, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=colour.muted)
    return ax


def outliers(summary: RowSummary, ax: Any = None, *, theme: str = "light") -> Any:
    """Draw T2 (far within the plane of the components) against SPE (far from it): a sample of rows, and the most outlying ones.

    Parameters
    ----------
    summary : RowSummary
        Of the rows, as :func:`streampca.summarize_rows` makes it.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.
    theme : {"light", "dark"}
        Colours.

    Examples
    --------
    >>> import numpy as np, streampca as sp
    >>> X = np.random.default_rng(0).normal(size=(50, 4))
    >>> sp.plot.outliers(sp.summarize_rows(sp.PCA(2).fit(X), X)).get_xscale()
    'log'
    """
    if not isinstance(summary, RowSummary):
        raise UsageError("outlying rows are told of a PCA only: T2 and SPE are those of its components")
    colour = theme_of(theme)
    ax = new_axes(colour) if ax is None else ax
    sample, worst = summary.sample, summary.outlying
    beyond = worst.excess > 1
    ax.scatter(_positive(sample.t2), _positive(sample.spe), s=9, color=colour.main, alpha=0.45, linewidth=0, label="sample of rows")
    ax.scatter(worst.t2[beyond], _positive(worst.spe[beyond]), s=20, color=colour.accent, linewidth=0, label="most outlying")
    for row, x, y in _apart(worst.row[beyond], worst.t2[beyond], worst.spe[beyond]):
        ax.annotate(f"row {row:,}", (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8, color=colour.ink)
    ax.set(xscale="log", yscale="log", xlabel="T² (within the components)", ylabel="SPE (outside them)")
    _title(ax, "Outlying rows")
    for limit, line in zip(summary.limits, (ax.axvline, ax.axhline), strict=True):
        if np.isfinite(limit):
            line(limit, color=colour.muted, linewidth=1, linestyle=(0, (4, 3)))
    ax.grid(True)
    _legend(ax, colour, "lower left")
    return ax


def loglike(model: Any, ax: Any = None, *, theme: str = "light") -> Any:
    """Draw the log-likelihood after each pass of EM.

    Parameters
    ----------
    model : estimator
        A fitted estimator with ``loglike_``.
    ax : matplotlib axes, optional
        Where to draw; by default a new figure.
    theme : {"light", "dark"}
        Colours.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import numpy as np, streampca as sp
    >>> model = SimpleNamespace(W_=np.ones((3, 1)), noise_variance_=1.0, loglike_=[-30.0, -12.0, -11.5])
    >>> sp.plot.loglike(model).get_xlabel()
    'pass'
    """
    fit, colour = as_fitted(model), theme_of(theme)
    if not fit.loglike.size:
        raise UsageError(f"{fit.kind} has no log-likelihood by pass: only fits by EM have one (ProbabilisticPCA, FactorAnalysis)")
    ax = new_axes(colour) if ax is None else ax
    passes = np.arange(1, fit.loglike.size + 1)
    ax.plot(passes, fit.loglike, color=colour.main, marker="o", markersize=4)
    ax.xaxis.set_major_locator(matplotlib_module("ticker").MaxNLocator(integer=True))
    ax.set(xlabel="pass", ylabel="log-likelihood")
    _title(ax, "Log-likelihood by pass")
    ax.grid(True)
    return ax


def _density(ax: Any, summary: ScoreDensity, colour: Theme) -> None:
    """Draw counts by their logarithm: with many rows, the few at the edge matter as well."""
    counts = np.ma.masked_equal(summary.density.T, 0)
    norm = matplotlib_module("colors").LogNorm(vmin=max(counts.min(), 1e-300), vmax=counts.max()) if counts.count() else None
    ax.pcolormesh(*summary.edges, counts, cmap=colours(colour, "rule", "main"), norm=norm, rasterized=True)


def _rows(ax: Any, scores: Any, colour: Theme) -> Any:
    """Draw rows by their scores; return the standard deviations of these, which may be whitened."""
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise UsageError(f"scores of shape {scores.shape} have no two columns to draw: give an array of rows x components")
    if len(scores) > _MANY_ROWS:
        ax.hexbin(scores[:, 0], scores[:, 1], gridsize=60, cmap=colours(colour, "rule", "main"), bins="log", mincnt=1, linewidths=0)
    else:
        ax.scatter(scores[:, 0], scores[:, 1], s=10, color=colour.main, alpha=0.45, linewidth=0)
    return scores[:, :2].std(axis=0)


def _arrows(ax: Any, fit: Fitted, most: int, reach: Any, colour: Theme) -> None:
    """Draw the longest arrows, the longest of them as long as most of the picture; what they say is their ratio."""
    chosen = fit.longest_arrows(most)
    tips = fit.components[:2, chosen].T
    longest = np.linalg.norm(tips, axis=1).max(initial=0.0) or 1.0
    tips = tips / longest * 0.8 * reach
    arrow = {"arrowstyle": "-|>", "color": colour.accent, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    for feature, (x, y) in zip(chosen, tips, strict=True):
        ax.annotate("", (x, y), (0, 0), arrowprops=arrow)
        side = "left" if x >= 0 else "right"
        box = {"boxstyle": "round,pad=0.15", "facecolor": colour.paper, "edgecolor": "none", "alpha": 0.75}
        ax.annotate(fit.names[feature], (x * 1.04, y * 1.04), ha=side, va="center", fontsize=9, color=colour.ink, bbox=box)


def _axis_labels(fit: Fitted) -> dict[str, str]:
    return {f"{axis}label": f"component {number + 1} ({fit.ratios[number]:.1%})" for number, axis in enumerate("xy")}


def _apart(rows: Any, x: Any, y: Any, most: int = 5) -> list[tuple[int, float, float]]:
    """Return the first rows that are far enough from each other on logarithmic axes for their names to be read."""
    places = np.log10(np.maximum(np.column_stack([x, y]), 1e-300))
    size = np.ptp(places, axis=0) if len(places) else np.ones(2)
    chosen: list[int] = []
    for index in range(len(places)):
        distances = np.abs((places[index] - places[chosen]) / np.where(size > 0, size, 1.0))
        if not chosen or ((distances > [0.25, 0.08]).any(axis=1)).all():
            chosen.append(index)
    return [(int(rows[index]), float(x[index]), float(y[index])) for index in chosen[:most]]


def _title(ax: Any, words: str) -> None:
    ax.set_title(words, loc="left", weight="bold", fontsize=12, pad=12)


def _positive(values: Any) -> Any:
    """Return the values, zeros lifted to what a logarithmic axis can show."""
    found = values[values > 0]
    return np.maximum(values, found.min() if found.size else 1.0)


def _percent(axis: Any) -> None:
    axis.set_major_formatter(matplotlib_module("ticker").PercentFormatter(1.0, decimals=0))


def _legend(ax: Any, colour: Theme, place: str) -> None:
    ax.legend(loc=place, frameon=False, fontsize=9, labelcolor=colour.ink)
