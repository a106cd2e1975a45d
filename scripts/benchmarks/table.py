"""Rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from benchmarks.compare import Row

Columns = dict[str, Callable[[Row], str]]


def column(field: str, form: str, unit: float = 1) -> Callable[[Row], str]:
    """Return the column of a number."""
    return lambda row: number(getattr(row, field), form, unit)


COLUMNS: Columns = {
    "seconds": column("seconds", "{:.3f}"),
    "/ floor": column("ratio_to_floor", "{:.2f}"),
    "/ us": column("ratio_to_us", "{:.2f}"),
    "process s": column("process_seconds", "{:.2f}"),
    "peak RSS MiB": column("peak_rss", "{:.0f}", 2**20),
    "GB read": column("bytes_read", "{:.3f}", 1e9),
    "passes": column("passes", "{:g}"),
    "error s[0]": column("error_first", "{:.0e}"),
    "error s[k-1]": column("error_last", "{:.0e}"),
    "1-MEV": column("one_minus_mev", "{:.0e}"),
}


def rows_table(rows: list[Row], columns: Columns = COLUMNS) -> str:
    """Return the table of a case."""
    return markdown(("data", "who", *columns), (_cells(row, columns) for row in rows))


def markdown(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table.

    >>> print(markdown(("a", "b"), [("1", "2")]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head = list(header)
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, *lines]).replace("\n", "\n|" + "---|" * len(head) + "\n", 1)


def _cells(row: Row, columns: Columns) -> list[str]:
    if row.failure is not None:
        reason = " ".join(row.failure.split()).replace("|", "/")
        return [row.label, f"{row.who}: failed ({reason[:120]})", *["–"] * len(columns)]
    return [row.label, _who(row), *(cell(row) for cell in columns.values())]


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
