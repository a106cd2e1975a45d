"""Probabilistic PCA and factor analysis of rows with missing entries, by EM: one pass per iteration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streampca.errors import DataError
from streampca.models.latent import LatentModel
from streampca.models.pca import Floats
from streampca.solvers.likelihood import Parameters, Run, Track, check_variance, noise_floor, random_start
from streampca.statistics.missing import Missing
from streampca.statistics.observed import ObservedMoments
from streampca.statistics.posterior import unpack

_PANEL_BYTES = 2**24


def em_missing(
    run: Run,
    n_features: int,
    n_components: int,
    *,
    per_feature_noise: bool = False,
    start: Parameters | None = None,
    expand: bool = True,
    tol: float = 1e-6,
    max_iter: int = 100,
    seed: int | None = None,
    names: Sequence[str] | None = None,
    moments: ObservedMoments | None = None,
) -> LatentModel:
    """Return probabilistic PCA, or factor analysis with ``per_feature_noise``, of rows with missing entries (NaN).

    One pass for the moments of the columns, then one per iteration of EM, and one that finds the last log-likelihood: that of the
    observed entries, which never falls. With ``expand`` z may have any mean and covariance within a step (parameter-expanded
    EM: Liu, Rubin & Wu 1998), which takes fewer iterations; without, it is plain EM. ``moments`` saves the pass for them.
    """
    moments = run("moments", ObservedMoments(n_features)) if moments is None else moments
    _check_observed(moments.counts, names)
    variances = moments.variance
    check_variance(float(variances.sum()))
    floor = noise_floor(variances, per_feature_noise)
    now = random_start(moments.mean, variances, n_components, per_feature_noise, seed) if start is None else start
    now = now._replace(noise=np.maximum(now.noise, floor) if per_feature_noise else max(float(now.noise), float(floor)))
    track = Track(tol, max_iter)
    while True:
        statistic = run(f"em-{len(track.loglike) + 1}", Missing(now.W, now.mean, now.noise))
        if track.ends(statistic.loglike, statistic.count):
            break
        now = maximise(statistic, now.mean, floor, per_feature_noise=per_feature_noise, expand=expand)
    return track.model(now, statistic.count, n_skipped=statistic.skipped)


def maximise(statistic: Missing, mean: Floats, floor: float | Floats, *, per_feature_noise: bool, expand: bool) -> Parameters:
    """Return the parameters that an EM pass at ``mean`` leads to: for each feature, a regression on (z, 1) over its observed rows."""
    d, r = statistic.n_features, statistic.n_components
    solution, rest = np.empty((d, r + 1)), np.empty(d)
    panel = max(_PANEL_BYTES // (8 * (r + 1) ** 2), 1)
    for start in range(0, d, panel):
        features = slice(start, start + panel)
        right = statistic.products[features]
        solution[features] = np.linalg.solve(statistic.gram(features), right[:, :, None])[:, :, 0]
        rest[features] = statistic.squares[features] - np.einsum("ij,ij->i", right, solution[features])
    W, mean = solution[:, :r], mean + solution[:, r]
    observed = statistic.observed
    noise = np.maximum(rest / observed, floor) if per_feature_noise else max(float(rest.sum() / observed.sum()), float(floor))
    if expand:
        moments = unpack(statistic.total, r + 1) / statistic.count
        shift = moments[r, :r]
        values, vectors = np.linalg.eigh(moments[:r, :r] - np.outer(shift, shift))
        mean = mean + W @ shift
        W = W @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    return Parameters(W, mean, noise)


def _check_observed(counts: Floats, names: Sequence[str] | None) -> None:
    if (counts > 0).all():
        return
    never = np.flatnonzero(counts == 0)
    name = f" ({names[never[0]]!r})" if names else ""
    more = f", and {len(never) - 1} more" if len(never) > 1 else ""
    raise DataError(f"column {never[0]}{name}{more}: no row has a value there, so nothing can be learnt of it; leave it out")
