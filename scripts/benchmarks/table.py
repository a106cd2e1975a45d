"""Rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.compare import Row

HEADER = (
    "data",
    "who",
    "seconds",
    "/ floor",
    "/ us",
    "process s",
    "peak RSS MiB",
    "GB read",
    "passes",
    "error s[0]",
    "error s[k-1]",
    "1-MEV",
)


def rows_table(rows: list[Row]) -> str:
    """Return the table of a case."""
    return markdown(HEADER, (_cells(row) for row in rows))


def markdown(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head = list(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, *lines]).replace("\n", "\n|" + "---|" * len(head) + "\n", 1)


def _cells(row: Row) -> list[str]:
    if row.failure is not None:
        reason = " ".join(row.failure.split()).replace("|", "/")
        return [row.label, f"{row.who}: failed ({reason[:120]})", *["–"] * (len(HEADER) - 2)]
    return [
        row.label,
        _who(row),
        number(row.seconds, "{:.3f}"),
        number(row.ratio_to_floor, "{:.2f}"),
        number(row.ratio_to_us, "{:.2f}"),
        number(row.process_seconds, "{:.2f}"),
        number(row.peak_rss, "{:.0f}", 2**20),
        number(row.bytes_read, "{:.3f}", 1e9),
        number(row.passes, "{:g}"),
        number(row.error_first, "{:.0e}"),
        number(row.error_last, "{:.0e}"),
        number(row.one_minus_mev, "{:.0e}"),
    ]


def _who(row: Row) -> str:
    if len(row.parts) < 2:
        return row.who
    return f"{row.who}: " + " + ".join(f"{name} {seconds:.3f}" for name, seconds in row.parts.items())


def number(value: float | None, form: str, unit: float = 1) -> str:
    """Return a number in a format, or a dash.

    >>> number(2**21, "{:.0f}", 2**20), number(None, "{}")
    ('2', '–')
    """
    return "–" if value is None else form.format(value / unit if unit != 1 else value)
