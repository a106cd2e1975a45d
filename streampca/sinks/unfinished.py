"""An output under way that survives the process: staged at a fixed place, with a note of the rows that are safely there.

The note is written after the rows have reached the disk, so a row that is noted is never lost; one that is not is written again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streampca.failpoints import failpoint
from streampca.sinks.base import Layout, Sink
from streampca.staging import StrPath, remove_tree, work_folder, write_text

Ranges = list[tuple[int, int]]
_SHARE = 0.03  # of the time that notes may take


@dataclass
class Unfinished:
    """Where an output is staged, and which of its rows are there."""

    folder: Path
    identity: Mapping[str, Any]  # of the rows: an output of others is not gone on with
    every: float = 30.0  # seconds between notes
    ranges: Ranges = field(default_factory=list)
    _sink: Sink | None = None
    _new: Ranges = field(default_factory=list)
    _noted: float = field(default_factory=time.monotonic)
    _cost: float = 0.0

    @classmethod
    def of(cls, path: StrPath, identity: Mapping[str, Any], every: float = 30.0) -> Unfinished:
        """Return that of an output."""
        return cls(work_folder(path), identity, every)

    @property
    def staged_at(self) -> Path:
        """Where the output grows."""
        return self.folder / "rows"

    def begin(self, kind: type[Sink], layout: Layout, attributes: Mapping[str, Any], dataset: str) -> Sink:
        """Return the sink to write to: the one that an earlier run left, if it is of the same rows, else a new one."""
        note = self._read()
        self.ranges = []
        if kind.resumable and note.get("identity") == self._facts(layout) and self.staged_at.exists():
            self.ranges = [(int(a), int(b)) for a, b in note["ranges"]]
            self._sink = kind.reopen(layout, self.ranges)
        else:
            remove_tree(self._note)
            remove_tree(self.staged_at)
            self.folder.mkdir(exist_ok=True)
            self._sink = kind.create(layout, attributes, dataset)
        self._layout, self._noted = layout, time.monotonic()
        return self._sink

    def wrote(self, start: int, stop: int) -> None:
        """Take note of rows, now or a little later. Called by one thread at a time."""
        self._new.append((start, stop))
        if time.monotonic() - self._noted >= max(self.every, self._cost / _SHARE if self.every else 0.0):
            self.note()

    def note(self) -> None:
        """Bring the rows to the disk, then note them."""
        if self._sink is None or not type(self._sink).resumable or not self._new:
            return
        began = time.monotonic()
        self._sink.flush(self._new)
        self.ranges, self._new = joined([*self.ranges, *self._new]), []
        self._write(self.ranges)
        self._noted = time.monotonic()
        self._cost = self._noted - began
        failpoint("rows-noted")

    def about_to_publish(self, partial: Path) -> None:
        """Note which file or folder the finished output will be."""
        self._write(self.ranges, inode=partial.stat().st_ino)

    def is_published(self, path: StrPath) -> bool:
        """Return whether the output is already in place, left by a run that was killed just after."""
        known = self._read().get("inode")
        target = Path(path)
        return known is not None and target.exists() and target.stat().st_ino == known

    def _write(self, ranges: Ranges, **more: Any) -> None:
        write_text(self._note, json.dumps({"identity": self._facts(self._layout), "ranges": ranges, **more}))

    @property
    def _note(self) -> Path:
        return self.folder / "rows.json"

    def _read(self) -> dict[str, Any]:
        try:
            note = json.loads(self._note.read_text())
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _facts(self, layout: Layout) -> dict[str, Any]:
        shape = {"rows": layout.n_rows, "columns": layout.n_columns, "dtype": str(layout.dtype), "chunk_rows": layout.chunk_rows}
        facts: dict[str, Any] = json.loads(json.dumps({**self.identity, **shape}))
        return facts


def joined(ranges: Ranges) -> Ranges:
    """Return ranges in order, with neighbours as one.

    >>> joined([(4, 6), (0, 2), (2, 4), (8, 9)])
    [(0, 6), (8, 9)]
    """
    result: Ranges = []
    for start, stop in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(stop, result[-1][1])
        else:
            result.append((start, stop))
    return result
