"""Cases: each is a module with a ``TITLE`` and ``run(bench) -> Section``, registered here by the name that ``--case`` takes."""

from __future__ import annotations

from benchmarks.cases import fit, growth, kernel, latent, missing, nightly, peers, profile, selection, sparse, spectrum, transform, wide

CASES = {
    "fit": fit,
    "peers": peers,
    "transform": transform,
    "growth": growth,
    "wide": wide,
    "spectrum": spectrum,
    "ppca": latent,
    "missing": missing,
    "kernel": kernel,
    "nightly": nightly,
    "selection": selection,
    "sparse": sparse,
    "profile": profile,  # last: it ends the document
}
