"""What a case is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.compare import Row, Settings, compare
from benchmarks.dataset import FORMATS, Dataset, Shape, Size
from benchmarks.generate import ensure
from benchmarks.table import COLUMNS, Columns, rows_table
from benchmarks.task import Group


@dataclass(frozen=True)
class Bench:
    """The size of the tables, where they are, and how they are run."""

    size: Size
    root: str
    settings: Settings
    formats: tuple[str, ...] = FORMATS
    bits: int = 23

    def data(self, *formats: str, n_rows: int | None = None) -> Dataset:
        """Return the table, made if it is missing in one of these formats."""
        data = Dataset(self.root, n_rows or self.size.n_rows, self.size.n_features, self.size.k, self.bits)
        ensure(data, formats)
        return data

    def table(self, kind: str, shape: Shape, *formats: str) -> Dataset:
        """Return a table of another kind (``benchmarks.rows``), made if it is missing in one of these formats."""
        data = Dataset(self.root, shape.n_rows, shape.n_features, shape.k, self.bits, kind)
        ensure(data, formats)
        return data

    def compare(self, groups: list[Group]) -> list[Row]:
        """Run groups and return their rows."""
        return compare(groups, self.settings)


@dataclass(frozen=True)
class Section:
    """The result of a case: Markdown for people, values for JSON."""

    markdown: str
    values: dict[str, Any] = field(default_factory=dict)


def section(rows: list[Row], *remarks: str, columns: Columns = COLUMNS) -> Section:
    """Return the table of rows, and remarks below it."""
    parts = [rows_table(rows, columns), *remarks]
    return Section("\n\n".join(part for part in parts if part), {"rows": [row.to_dict() for row in rows]})
