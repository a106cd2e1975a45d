"""Cases: each is a module with a ``TITLE`` and ``run(bench) -> Section``, registered here by the name that ``--case`` takes."""

from __future__ import annotations

from benchmarks.cases import fit, growth, kernel, missing, peers, profile, selection, spectrum, transform, wide

CASES = {
    "fit": fit,
    "peers": peers,
    "transform": transform,
    "growth": growth,
    "wide": wide,
    "spectrum": spectrum,
    "missing": missing,
    "kernel": kernel,
    "selection": selection,
    "profile": profile,  # last: it ends the document
}
