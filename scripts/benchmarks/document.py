"""docs/benchmarks.md: all sections of one run, with what they were measured with."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench import Bench, Section
from benchmarks.cases import CASES

PATH = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"

INTRODUCTION = """\
# Benchmarks

Written by `scripts/bench --size {size} --write`; do not edit. `scripts/bench --help` says how to run a part of it. Every figure
is a ratio of runs that took turns in one session on one machine; absolute seconds differ from machine to machine.

- **Data.** {n_rows:,} x {n_features} float32, rank 40 + noise + a mean, s[0] / s[19] = 4.6, k = {k}, {bits} bits of mantissa.
  Chunks of 1 MiB, whole rows. Files are read from the page cache. The exact answer: products in float64, sums in long double.
- **Runs.** Each is a process of its own; the best of {repeat} counts, and the highest of their peak memory. *seconds* is the fit alone,
  after imports and opening (streampca opens again, on the clock); *process s* the whole process. *GB read* is what read calls returned.
- **Floor.** Decoding of every chunk with all cores into reused buffers, plus `X.T @ X` in float32 of every block of 8 MiB at full BLAS
  speed (one block again and again), each measured alone, the fastest of several ways, and added up.
- **Us.** `sp.PCA({k}, memory="1GiB").fit(path)`.
- **Errors.** Relative, of the first and the last singular value; *1-MEV* is the mean squared sine of the angles to the exact subspace.
"""


def write(path: Path, size: str, bench: Bench, machine: dict[str, str], sections: dict[str, Section]) -> None:
    """Write the document."""
    described = bench.size
    values = {"n_rows": described.n_rows, "n_features": described.n_features, "k": described.k, "bits": bench.bits}
    head = INTRODUCTION.format(size=size, repeat=bench.settings.repeat, **values)
    head += "".join(f"- **{name[0].upper()}{name[1:]}.** {value}\n" for name, value in machine.items())
    parts = [head, *(f"## {CASES[name].TITLE}\n\n{section.markdown}\n" for name, section in sections.items())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(parts))
