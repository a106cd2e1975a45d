"""docs/benchmarks.md: a section for each case, which says when and with what it was measured; a run renews its own and keeps the others."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from benchmarks.bench import Bench, Section
from benchmarks.cases import CASES
from benchmarks.dataset import SIZES

PATH = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

Written by `scripts/bench --write`; do not edit. `scripts/bench --help` says how to renew a part of it. Every figure
is a ratio of runs that took turns in one session on one machine; absolute seconds differ from machine to machine.

- **Data.** Unless a section says otherwise, rank 40 + noise + a mean, float32, s[0] / s[19] = 4.6: {tables}.
  Chunks of 1 MiB, whole rows. Files are read from the page cache. The exact answer: products in float64, sums in float64 or longer.
- **Runs.** Each is a process of its own; the best of several counts, and the highest of their peak memory. *seconds* is the fit alone,
  after imports and opening (streampca opens again, on the clock); *process s* the whole process. *GB read* is what read calls returned.
- **Floor.** Decoding of every chunk with all cores into reused buffers, plus `X.T @ X` in float32 of every block of 8 MiB at full BLAS
  speed (one block again and again), each measured alone, the fastest of several ways, and added up.
- **Us.** `sp.PCA(k, memory="1GiB").fit(path)`.
- **Errors.** Relative, of the first and the last singular value; *1-MEV* is the mean squared sine of the angles to the exact subspace.
"""
HEADING = "\n## "
ENVIRONMENT = re.compile(r"^- \*\*Environment (\d+)\.\*\* (.*)$", re.MULTILINE)


def write(path: Path, size: str, bench: Bench, machine: dict[str, str], sections: dict[str, Section]) -> None:
    """Write the document: these sections, and those of the other cases as they are."""
    head, *old = path.read_text().split(HEADING) if path.exists() else [""]
    texts = {title: text.strip() for title, _, text in (section.partition("\n") for section in old)}
    environments = {int(number): facts for number, facts in ENVIRONMENT.findall(head)}
    number = _number(environments, "; ".join(f"{name} {value}" if name != "cores" else f"{value} cores" for name, value in machine.items()))
    texts |= {CASES[name].TITLE: f"{_measured(size, bench, number)}\n\n{section.markdown}" for name, section in sections.items()}
    kept = {case.TITLE: texts[case.TITLE] for case in CASES.values() if case.TITLE in texts}
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join([_head(environments, "".join(kept.values())), *(f"{HEADING}{title}\n\n{text}\n" for title, text in kept.items())])
    )


def _number(environments: dict[int, str], facts: str) -> int:
    """Return the number of an environment, which gets one if it is new."""
    number = next((each for each, known in environments.items() if known == facts), max(environments, default=0) + 1)
    environments[number] = facts
    return number


def _measured(size: str, bench: Bench, environment: int) -> str:
    """Return when and with what a section was measured."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    how = f"size {size}, the best of {bench.settings.repeat}, {bench.bits} bits of mantissa"
    return f"*Measured on {today}, {how}, environment {environment}.*"


def _head(environments: dict[int, str], text: str) -> str:
    """Return the introduction, with the environments that the sections name."""
    tables = ", ".join(f"{each.n_rows:,} x {each.n_features}, k = {each.k} (size {name})" for name, each in SIZES.items() if name != "tiny")
    named = (f"- **Environment {number}.** {facts}\n" for number, facts in environments.items() if f", environment {number}.*" in text)
    return INTRODUCTION.format(tables=tables) + "".join(named)
