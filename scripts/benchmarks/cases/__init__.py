"""Cases: each is a module with a ``TITLE`` and ``run(bench) -> Section``, registered here by the name that ``--case`` takes."""

from __future__ import annotations

from benchmarks.cases import fit, growth, peers, profile, transform

CASES = {"fit": fit, "peers": peers, "transform": transform, "growth": growth, "profile": profile}  # profile last: it ends the document
