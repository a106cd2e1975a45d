"""Numbers as people read them in a report."""

from __future__ import annotations

import math


def compact(value: float) -> str:
    """Return a number in few letters.

    >>> [compact(each) for each in (0, 12, 0.25, 12_345, 3_400_000, 1e-7, 123.456)]
    ['0', '12', '0.25', '12.3k', '3.4M', '1e-7', '123']
    """
    size = abs(value)
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if size < 1e-3 or size >= 1e12:
        mantissa, power = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= scale * (10 if unit == "k" else 1):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.3g}"


def whole(value: float) -> str:
    """Return a count with thousands apart; sums of weights may have a fraction.

    >>> whole(1234567.0), whole(2.5)
    ('1,234,567', '2.5')
    """
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def share(part: float) -> str:
    """Return a part of the whole in percent, never rounded up to all or down to nothing.

    >>> share(0.12345), share(0.99999), share(1.0), share(2e-6)
    ('12.3%', '99.999%', '100%', '0.0002%')
    """
    if part in (0, 1):
        return f"{part:.0%}"
    for digits in range(1, 8):
        if 0 < float(f"{100 * part:.{digits}f}") < 100:
            return f"{100 * part:.{digits}f}%"
    return f"{part:.1%}"


def duration(seconds: float) -> str:
    """Return a time.

    >>> duration(0.5), duration(75), duration(7300)
    ('0.50 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds:.2f} s"
    minutes = round(seconds / 60)
    return f"{int(seconds // 60)} min {round(seconds % 60)} s" if seconds < 3600 else f"{minutes // 60} h {minutes % 60} min"
