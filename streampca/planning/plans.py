"""The plan: what a fit will do, as a frozen value. Pure arithmetic on facts about the data; nothing is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streampca.blocks import Partition
from streampca.memory import format_bytes
from streampca.planning.table import plan_table
from streampca.sources.base import SourceInfo


@dataclass(frozen=True)
class PassPlan:
    """One stage of a run: a pass over the data, or the final small problem (which reads nothing)."""

    name: str
    bytes_read: int
    memory: Mapping[str, int]  # bytes by purpose
    flops: float = 0.0  # of the products, for an estimate of the time
    times: int = 1  # passes of this kind; bytes_read and flops are those of all

    @property
    def peak_memory(self) -> int:
        """Bytes of all purposes together."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class Plan:
    """What a run will do: solver, passes, bytes, blocks, shards and projected peak memory."""

    method: str
    solver: str
    n_rows: int
    n_features: int
    n_components: int | float | str | None
    precision: str
    block_rows: int
    shard_rows: int
    n_shards: int
    workers: int
    budget: int
    stages: tuple[PassPlan, ...]
    reasons: tuple[str, ...] = ()
    scratch_bytes: int = 0
    rank: int | None = None  # directions that a sketch keeps
    max_rank: int | None = None  # directions that it may grow to, where the data decides how many are needed
    sums: str = "float64"
    max_passes: int | None = None  # where the data decides how many are needed
    by_columns: bool = False  # whether slabs of columns are read instead of blocks of rows
    seconds: float | None = None  # an estimate, see ``estimated``

    @property
    def n_passes(self) -> int:
        """Passes over the data."""
        return sum(stage.times for stage in self.stages if stage.bytes_read > 0)

    @property
    def bytes_read(self) -> int:
        """Decoded bytes that all passes read."""
        return sum(stage.bytes_read for stage in self.stages)

    @property
    def peak_memory(self) -> int:
        """Projected peak memory of one process: the largest of all stages."""
        return max(stage.peak_memory for stage in self.stages)

    def partition(self, info: SourceInfo) -> Partition:
        """Return the cut of the source that this plan fixes."""
        return Partition(info.segments, self.block_rows, self.shard_rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for ``--json``."""
        derived = {"n_passes": self.n_passes, "bytes_read": self.bytes_read, "peak_memory": self.peak_memory}
        return {**asdict(self), **derived, "explanation": self.explain()}

    def explain(self) -> str:
        """Say in plain words what will be done and why."""
        k = "all" if self.n_components is None else self.n_components
        rows = "columns" if self.by_columns else "rows"
        lines = [
            f"{self.method} of {self.n_rows:,} rows x {self.n_features:,} features, components: {k}",
            f"solver: {self.solver}; products in {self.precision}, sums in {self.sums}",
            *(f"  because {reason}" for reason in self.reasons),
            self._explain_passes(),
            f"{self.n_shards:,} shard(s) in blocks of {self.block_rows:,} {rows}; {self.workers} at a time in a process",
            f"projected peak memory {format_bytes(self.peak_memory)} of a budget of {format_bytes(self.budget)}:",
        ]
        for stage in self.stages:
            parts = ", ".join(f"{name} {format_bytes(n_bytes)}" for name, n_bytes in stage.memory.items())
            times = f" ({stage.times} times)" if stage.times > 1 else ""
            lines.append(f"  {stage.name}{times}: {format_bytes(stage.peak_memory)} ({parts})")
        return "\n".join(lines)

    def _explain_passes(self) -> str:
        most = f", at most {self.max_passes} if the data needs them" if self.max_passes else ""
        text = f"{self.n_passes} pass(es){most}, {format_bytes(self.bytes_read)} read (decoded)"
        return text if self.seconds is None else f"{text}; about {_rough(self.seconds)} (an estimate)"

    def __str__(self) -> str:
        """Return the explanation."""
        return self.explain()

    def _repr_html_(self) -> str:
        """Return a table, for notebooks."""
        return plan_table(self)


def _rough(seconds: float) -> str:
    """Return a time as people say it.

    >>> _rough(0.4), _rough(75), _rough(8000)
    ('1 s', '80 s', '2.2 h')
    """
    if seconds < 100:
        return f"{max(float(f'{seconds:.1g}'), 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
