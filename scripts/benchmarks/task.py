"""What is run and how it is grouped: plain values, which go to the measured processes as JSON.

A *task* is one process. An *entry* is one line of a table, the sum of its parts; of a part the fastest choice counts (the floor may
have several decoders). A *group* is what is compared: its tasks take turns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.dataset import Dataset


@dataclass(frozen=True)
class Task:
    """A runner (see ``benchmarks.runners``), the table and its format, and options of the runner."""

    runner: str
    data: Dataset
    format: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return str(self.data.path(self.format))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Task:
        return cls(**{**values, "data": Dataset(**values["data"])})


@dataclass(frozen=True)
class Part:
    """Something that is measured alone."""

    name: str
    choices: tuple[Task, ...]


@dataclass(frozen=True)
class Entry:
    """One line of a table."""

    who: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Group:
    """Entries that are compared with each other: the floor, us, peers."""

    label: str
    entries: tuple[Entry, ...]


FLOOR, US = "floor", "streampca"


def single(who: str, task: Task) -> Entry:
    """Return the line of one task."""
    return Entry(who, (Part(who, (task,)),))
