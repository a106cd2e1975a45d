"""The work folder of a run, hidden beside its output: what the run is, what it has done so far, what it was about to publish.

It appears when there is something to keep and is removed when the run is complete. A run that finds one goes on with it if it is the same
run, and refuses, naming what differs, if it is not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from streampca.errors import OtherDataError, OtherRunError
from streampca.planning import Plan
from streampca.planning.plans import PassPlan
from streampca.staging import remove_partials, remove_tree, work_folder, write_text

LAYOUT = 1  # of what is kept
_PLAN = ("solver", "rank", "precision", "sums", "block_rows", "shard_rows", "by_columns")  # what decides the order of sums


class Work:
    """What is kept of one run."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.folder = work_folder(output)
        self._content: dict[str, Any] = {}
        self._stored = False

    @property
    def file(self) -> Path:
        """What says which run it is."""
        return self.folder / "run.json"

    def known(self) -> dict[str, Any]:
        """Return what an interrupted run has left, or nothing."""
        try:
            content = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def open(self, identity: Mapping[str, Any], fresh: bool = False) -> None:
        """Go on with what is there if it is of this run; refuse it if it is of another, unless ``fresh`` throws it away."""
        known = self.known()
        if fresh or not known:
            remove_tree(self.folder)
            known = {}
        plain = json.loads(json.dumps({"layout": LAYOUT, **identity}, default=str))
        if known:
            self._refuse_differences(known.get("identity", {}), plain)
            remove_partials(self.folder / "passes" / "any")
        self._content = {"publishing": [], **known, "identity": plain}
        self._stored = bool(known)

    def _refuse_differences(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        old, new = _flat(before), _flat(now)
        names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        if not names:
            return
        what = "; ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in names)
        message = f"an interrupted run on {self.output} was another one ({what}): run that one again, or start over with --fresh"
        raise (OtherDataError if names == ["fingerprint"] else OtherRunError)(message)

    def same_plan(self, plan: Plan) -> Plan:
        """Return the plan to follow: that of the interrupted run if the memory still allows it, for the order of sums must be the same."""
        before = self._content.setdefault("plan", json.loads(json.dumps(plan.to_dict(), default=str)))
        differing = [name for name in _PLAN if before.get(name) != getattr(plan, name)]
        if not differing:
            return plan
        if before["peak_memory"] <= plan.budget:
            return replace(_plan(before), budget=plan.budget, workers=min(plan.workers, before["workers"]))
        what = "; ".join(f"{name} was {before.get(name)!r} and would be {getattr(plan, name)!r}" for name in differing)
        raise OtherRunError(
            f"the interrupted run on {self.output} had more memory ({what}): give {before['peak_memory']} bytes, or start over with --fresh"
        )

    @property
    def publishing(self) -> list[str]:
        """Outputs that may be there because this run, interrupted, put them there."""
        return list(self._content.get("publishing", []))

    def begin(self) -> None:
        """Have the folder, with what says which run it is."""
        if not self._stored:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.file, json.dumps(self._content, indent=1))
            self._stored = True

    def about_to_publish(self, name: str, result: str | None = None) -> None:
        """Note that an output, with what digest, will appear: a later run may find, and replace, it."""
        if name not in self.publishing or result is not None:
            self._content["publishing"] = [*self.publishing, *([] if name in self.publishing else [name])]
            self._content["result"] = result
            self._stored = False
        self.begin()

    def remove(self) -> None:
        """Forget everything: first what says which run it was, so that half a folder is never taken for one."""
        self.file.unlink(missing_ok=True)
        remove_tree(self.folder)


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted names.

    >>> _flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _plan(stored: dict[str, Any]) -> Plan:
    """Return the plan that ``to_dict`` described."""
    values = {each.name: stored[each.name] for each in fields(Plan) if each.name in stored}
    stages = tuple(PassPlan(**stage) for stage in stored["stages"])
    return Plan(**{**values, "stages": stages, "reasons": tuple(stored["reasons"])})
