"""Colours and type of all pictures, light and dark: blue for what is kept, orange for what stands out (safe for colour-blind eyes)."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from streampca.errors import MissingExtraError, UsageError, did_you_mean


@dataclass(frozen=True)
class Theme:
    """Named colours."""

    paper: str
    ink: str
    muted: str  # secondary text
    rule: str  # grid lines and frames
    main: str  # what is kept
    faint: str  # what is not
    accent: str  # what stands out
    negative: str
    positive: str


THEMES = {
    "light": Theme("#ffffff", "#1b2430", "#5b6675", "#dfe4ea", "#1f6fb2", "#b9c4d0", "#c8500a", "#1f6fb2", "#c8500a"),
    "dark": Theme("#12171e", "#e6ebf1", "#9aa7b5", "#2b3440", "#5fb0ee", "#46535f", "#ff9a4d", "#5fb0ee", "#ff9a4d"),
}


def theme_of(name: str) -> Theme:
    """Return a theme by name."""
    if name not in THEMES:
        raise UsageError(f"theme={name!r}: choose one of {', '.join(THEMES)}.{did_you_mean(name, THEMES)}")
    return THEMES[name]


def matplotlib_module(name: str) -> Any:
    """Return a module of matplotlib, which only pictures need."""
    try:
        return importlib.import_module(f"matplotlib.{name}")
    except ImportError as error:
        raise MissingExtraError("pictures need matplotlib, which is not installed: pip install 'streampca[report]'") from error


def new_axes(theme: Theme, width: float = 7.0, height: float = 4.4) -> Any:
    """Return the axes of a new figure in the colours of a theme."""
    style = {
        "figure.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.rule,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "text.color": theme.ink,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "grid.color": theme.rule,
        "font.size": 10,
        "font.family": "sans-serif",
        "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    }
    with matplotlib_module("pyplot").rc_context(style):
        _, axes = matplotlib_module("pyplot").subplots(figsize=(width, height), layout="constrained")
    return axes


def colours(theme: Theme, *stops: str) -> Any:
    """Return a colour map from one colour of a theme to the next."""
    found = [getattr(theme, stop) for stop in stops]
    return matplotlib_module("colors").LinearSegmentedColormap.from_list("-".join(stops), found)
