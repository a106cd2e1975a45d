"""Probabilistic PCA and factor analysis of a table without missing entries, fitted and scored."""

from __future__ import annotations

from benchmarks.bench import Bench, Section, section
from benchmarks.table import COLUMNS
from benchmarks.task import US, Group, Task, single

TITLE = "Probabilistic PCA and factor analysis"
FORMAT = "hdf5-gzip"
SHOWN = {name: COLUMNS[name] for name in ("seconds", "/ us", "process s", "peak RSS MiB", "GB read", "passes")}


def run(bench: Bench) -> Section:
    """Compare us with scikit-learn, which holds the table in memory."""
    data = bench.table("low-rank", bench.size.latent, FORMAT)
    ppca = (
        single(US, Task("streampca-latent", data, FORMAT, {"method": "ppca"})),
        single(f"{US}, method='em'", Task("streampca-latent", data, FORMAT, {"method": "ppca", "parameters": {"method": "em"}})),
        single("scikit-learn PCA and its score (in memory)", Task("sklearn-latent", data, FORMAT, {"method": "ppca"})),
    )
    fa = (
        single(US, Task("streampca-latent", data, FORMAT, {"method": "fa"})),
        single("scikit-learn FactorAnalysis (in memory)", Task("sklearn-latent", data, FORMAT, {"method": "fa"})),
    )
    rows = bench.compare([Group("probabilistic PCA", ppca), Group("factor analysis", fa)])
    how = ". ".join(f"{row.label} {row.who}: {'; '.join(row.details)}" for row in rows if row.details)
    about = f"{data.n_rows:,} x {data.n_features} float32, k = {data.k}: a fit, and the mean log-likelihood of its rows (one more pass)."
    return section(rows, about, f"How: {how}.", columns=SHOWN)
