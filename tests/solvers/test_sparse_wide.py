"""Sparse PCA without a covariance: against the one with it, where a few directions and a mean variance are all there is to know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampca.errors import UsageError
from streampca.solvers import sparse_pca, sparse_wide
from streampca.solvers.sparse_pca import Effort, ElasticNets, Penalty, sparse_components
from streampca.solvers.sparse_wide import LowRankNets
from streampca.solvers.spectrum import Spectrum


def spectra(d: int = 300, rest: float = 0.3, seed: int = 0) -> tuple[Spectrum, Spectrum, np.ndarray]:
    """Return the leading part and the whole of a spectrum whose other variances are equal, and the planted supports."""
    rng = np.random.default_rng(seed)
    support = np.zeros((3, d), bool)
    for j in range(3):
        support[j, 10 * j : 10 * j + 8] = True
    V = support * rng.uniform(0.7, 1.3, (3, d)) * rng.choice([-1, 1], (3, d))
    V = np.vstack([V / np.linalg.norm(V, axis=1, keepdims=True), rng.standard_normal((2, d)) / np.sqrt(d)])
    Q = np.linalg.qr(np.vstack([V, rng.standard_normal((d - 5, d))]).T)[0].T
    variances = np.r_[16.0, 9.0, 4.0, 1.0, 0.8, np.full(d - 5, rest)]
    trace = float(variances.sum())
    return Spectrum(variances[:5], Q[:5], trace), Spectrum(variances, Q, trace), support


PENALTIES = [
    *(Penalty(*pair) for pair in ((0.0, 1.0), (0.0, 0.0), (0.5, 1.0), (1.0, 0.1), (2.0, 5.0))),
    Penalty(n_nonzero=8),
    Penalty(n_nonzero=3),
]


@pytest.mark.parametrize("rest", [0.3, 0.0])
@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_components_are_those_from_the_whole_covariance(penalty: Penalty, rest: float) -> None:
    leading, whole, support = spectra(rest=rest)
    effort = Effort(400, 1e-9)
    ours, wanted = (sparse_components(each, 3, penalty, effort, make) for each, make in ((leading, LowRankNets), (whole, ElasticNets)))
    np.testing.assert_allclose(ours.components, wanted.components, atol=1e-5)
    np.testing.assert_array_equal(ours.components != 0, wanted.components != 0)
    if penalty.n_nonzero == 8 and rest:
        np.testing.assert_array_equal(ours.components != 0, support)
    adjusted = sparse_pca.adjusted_variances(whole, ours.components)
    np.testing.assert_allclose(sparse_wide.adjusted_variances(leading, ours.components), adjusted, rtol=1e-9)


def test_products_are_those_of_the_covariance() -> None:
    leading, whole, _ = spectra()
    M = np.random.default_rng(1).standard_normal((300, 4))
    S = (whole.vectors.T * whole.variances) @ whole.vectors
    nets = LowRankNets(leading, Penalty(), 1.0)
    np.testing.assert_allclose(nets.times(M), S @ M, atol=1e-12)
    np.testing.assert_allclose(nets.times(M[:, 0]), S @ M[:, 0], atol=1e-12)


def test_columns_are_taken_in_until_the_conditions_of_an_optimum_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_wide, "_FIRST", 2)
    leading, whole, _ = spectra()
    effort = Effort(100, 1e-9)
    ours, wanted = (sparse_components(each, 3, Penalty(0.3), effort, make) for each, make in ((leading, LowRankNets), (whole, ElasticNets)))
    np.testing.assert_allclose(ours.components, wanted.components, atol=1e-5)


def test_a_component_of_too_many_columns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    leading: Any = spectra()[0]
    monkeypatch.setattr(sparse_wide, "MOST", 150)
    with pytest.raises(UsageError, match=r"more than 150 columns at once.*raise alpha"):
        sparse_components(leading, 5, Penalty(1e-6), Effort(), LowRankNets)
