"""Small drawings as SVG text: a panel with two axes, and marks that tell their values on hover. Colours are classes of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

import numpy as np

from streampca.report.numbers import compact

WIDTH, HEIGHT = 480.0, 330.0
_LETTER = 7.6  # width of a letter of an axis, about


@dataclass(frozen=True)
class Axis:
    """From one value to another, straight or by logarithms."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies between the ends, 0 to 1; beyond them, just outside."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        return min(max((at - low) / ((high - low) or 1.0), -0.02), 1.02)

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values between the ends, not more than about so many.

        >>> Axis(0.0, 1.0).ticks(), Axis(0.5, 2000.0, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 10.0, 100.0, 1000.0])
        """
        if self.log:
            powers = np.arange(np.ceil(np.log10(self.low) - 1e-9), np.floor(np.log10(self.high) + 1e-9) + 1)
            step = max(int(np.ceil(len(powers) / most)), 1)
            return [float(10.0**power) for power in powers[::step]]
        rough = (self.high - self.low) / most or 1.0
        unit = 10.0 ** np.floor(np.log10(rough))
        step = next(unit * each for each in (1, 2, 5, 10) if unit * each >= rough * 0.999)
        first = np.ceil(self.low / step - 1e-9)
        return [float(f"{each * step:.12g}") + 0.0 for each in np.arange(first, np.floor(self.high / step + 1e-9) + 1)]


@dataclass
class Panel:
    """A drawing with two axes. Marks are added in values of the axes and kept as SVG text."""

    x: Axis
    y: Axis
    label: str  # what it shows, for who cannot see it
    width: float = WIDTH
    height: float = HEIGHT
    left: float = 66.0
    right: float = 12.0
    top: float = 12.0
    bottom: float = 46.0
    marks: list[str] = field(default_factory=list)

    def px(self, value: float) -> float:
        """Return the place of a value of x."""
        return self.left + self.x.place(value) * (self.width - self.left - self.right)

    def py(self, value: float) -> float:
        """Return the place of a value of y."""
        return self.height - self.bottom - self.y.place(value) * (self.height - self.top - self.bottom)

    def grid(self, x_label: str, y_label: str, *, percent: bool = False, whole: bool = False) -> None:
        """Draw the axes: rules, numbers and names."""
        for value in self.y.ticks():
            y = self.py(value)
            text = f"{compact(100 * value)}%" if percent else compact(value)
            self.marks.append(f'<path class="rule" d="M{self.left:.1f} {y:.1f}H{self.width - self.right:.1f}"/>')
            self.marks.append(f'<text class="tick" x="{self.left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        self.across(x_label, whole=whole)
        y = (self.top + self.height - self.bottom) / 2
        self.marks.append(f'<text class="axis" transform="translate(13 {y:.1f}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')

    def across(self, label: str, *, whole: bool = False, most: int = 8) -> None:
        """Draw the axis of x alone."""
        for value in self.x.ticks(most):
            if whole and value != round(value):
                continue
            x = self.px(value)
            self.marks.append(f'<path class="rule" d="M{x:.1f} {self.height - self.bottom:.1f}v4"/>')
            self.marks.append(
                f'<text class="tick" x="{x:.1f}" y="{self.height - self.bottom + 18:.1f}" text-anchor="middle">{compact(value)}</text>'
            )
        middle = (self.left + self.width - self.right) / 2
        self.marks.append(f'<text class="axis" x="{middle:.1f}" y="{self.height - 6:.1f}" text-anchor="middle">{escape(label)}</text>')

    def rect(self, kind: str, x0: float, x1: float, y0: float, y1: float, says: str, grow: float = 0.0) -> None:
        """Draw a rectangle between values; grown by part of a pixel, neighbours leave no seam."""
        a, b = sorted((self.px(x0), self.px(x1)))
        c, d = sorted((self.py(y0), self.py(y1)))
        size = f'width="{b - a + grow:.1f}" height="{max(d - c, 0.5) + grow:.1f}"'
        self.marks.append(f'<rect class="{kind}" x="{a:.1f}" y="{c:.1f}" {size}>{title(says)}</rect>')

    def dot(self, kind: str, x: float, y: float, says: str, radius: float = 3) -> None:
        """Draw a point."""
        self.marks.append(f'<circle class="{kind}" cx="{self.px(x):.1f}" cy="{self.py(y):.1f}" r="{radius:g}">{title(says)}</circle>')

    def line(self, kind: str, points: list[tuple[float, float]]) -> None:
        """Draw a line through points."""
        path = "L".join(f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in points)
        self.marks.append(f'<path class="{kind}" d="M{path}"/>')

    def text(self, kind: str, x: float, y: float, words: str, *, anchor: str = "start", dx: float = 0, dy: float = 0) -> None:
        """Write at a place, so many pixels beside it."""
        place = f'x="{self.px(x) + dx:.1f}" y="{self.py(y) + dy:.1f}"'
        self.marks.append(f'<text class="{kind}" {place} text-anchor="{anchor}">{escape(words)}</text>')

    def vertical(self, x: float, words: str = "") -> None:
        """Draw a broken line across, with its meaning."""
        at = self.px(x)
        self.marks.append(f'<path class="limit" d="M{at:.1f} {self.top:.1f}V{self.height - self.bottom:.1f}"/>')
        if words:
            anchor, dx = ("end", -5) if self.x.place(x) > 0.6 else ("start", 5)
            self.marks.append(f'<text class="note" x="{at + dx:.1f}" y="{self.top + 11:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def horizontal(self, y: float, words: str = "") -> None:
        """Draw a broken line along, with its meaning."""
        at = self.py(y)
        self.marks.append(f'<path class="limit" d="M{self.left:.1f} {at:.1f}H{self.width - self.right:.1f}"/>')
        if words:
            self.marks.append(f'<text class="note" x="{self.left + 5:.1f}" y="{at - 5:.1f}">{escape(words)}</text>')

    def render(self) -> str:
        """Return the drawing."""
        return drawing(self.width, self.height, self.label, self.marks)


def drawing(width: float, height: float, label: str, marks: list[str]) -> str:
    """Return marks as one SVG element that scales with the page."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(marks)}</svg>'


def title(says: str) -> str:
    """Return what a mark tells on hover."""
    return f"<title>{escape(says)}</title>" if says else ""


def text_width(words: str) -> float:
    """Return about how wide a text of an axis is."""
    return _LETTER * len(words)


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Return places at least ``gap`` apart, as near as possible to the wanted ones, in the same order.

    >>> spread([10.0, 11.0, 50.0], 10, 0, 100)
    [10.0, 20.0, 50.0]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    found, last = [0.0] * len(places), low - gap
    for index in order:
        last = found[index] = max(places[index], last + gap)
    limit = high
    for index in reversed(order):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found
