"""The command: run the cases, print their tables, store the numbers and the document."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks import document, machine
from benchmarks.bench import Bench, Section
from benchmarks.cases import CASES
from benchmarks.compare import Settings
from benchmarks.dataset import FORMATS, SIZES

ROOT = Path(__file__).resolve().parents[2]
BUSY = 0.5  # load average before anything has been run
JSON_HELP = """\
The JSON has size, bits, machine and cases. A case with a table has rows, each with label, who, seconds, ratio_to_floor, ratio_to_us,
process_seconds, peak_rss, bytes_read (bytes), sizes_read (the same, in sizes of the file), passes, iteration_seconds, error_first,
error_last, one_minus_mev, estimated_error (1 - MEV as the method itself tells it), parts (seconds), details, failure (null, or why), and
runs (all of them, raw). The profile has total (seconds, processor seconds), cores and parts (seconds, processor seconds, calls); the
selection has cells, each with label, strength and found (the share of right answers by criterion).
"""


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/bench", description="Compare streampca with its peers and the floor.", epilog=JSON_HELP)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--case", choices=CASES, nargs="+", action="extend", help="unless given, all of them")
    parser.add_argument("--format", choices=FORMATS, nargs="+", action="extend", help="for fit and transform; unless given, all of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store all raw numbers")
    parser.add_argument("--repeat", type=_positive, default=3, metavar="N", help="the best of N runs counts (default: 3)")
    parser.add_argument("--timeout", type=float, default=3600, metavar="S", help="seconds after which a run is stopped (default: 3600)")
    parser.add_argument(
        "--bits", type=int, choices=range(1, 24), default=23, metavar="N", help="bits of mantissa kept; fewer compress better"
    )
    parser.add_argument("--data", type=Path, default=ROOT / "out" / "bench", metavar="DIR", help="where the tables are made, once")
    parser.add_argument("--write", action="store_true", help=f"renew the sections of these cases in {document.PATH.relative_to(ROOT)}")
    args = parser.parse_args(argv)
    if args.write and args.format:
        parser.error("--write renews whole sections: leave --format out")
    return args


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    facts = machine.facts()
    bench = Bench(SIZES[args.size], str(args.data.resolve()), Settings(args.repeat, args.timeout), tuple(args.format or FORMATS), args.bits)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    if os.getloadavg()[0] > BUSY:
        print(f"this machine is busy (load {os.getloadavg()[0]:.1f}): even ratios will be noisy", file=sys.stderr)
    sections: dict[str, Section] = {}
    for name in [name for name in CASES if not args.case or name in args.case]:
        sections[name] = CASES[name].run(bench)
        print(f"\n## {CASES[name].TITLE}\n\n{sections[name].markdown}", flush=True)
    if args.json:
        cases = {name: section.values for name, section in sections.items()}
        args.json.write_text(json.dumps({"size": args.size, "bits": args.bits, "machine": facts, "cases": cases}, indent=1))
    if args.write:
        document.write(document.PATH, args.size, bench, facts, sections)
    return 0


if __name__ == "__main__":
    sys.exit(main())
