from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.sparse.linalg import svds

from streampca.errors import UsageError
from streampca.selection import shrink
from streampca.selection.shrinkage import Kind

KINDS: tuple[Kind, ...] = ("hard", "soft", "optimal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(80, 80), (40, 160), (160, 40)])
def test_laws(kind: Kind, shape: tuple[int, int]) -> None:
    values = np.linspace(60, 0, 40)
    shrunk = shrink(values, *shape, kind, noise=1.0)
    assert (shrunk <= values).all()
    assert (shrunk >= 0).all()
    assert (np.diff(shrunk) <= 0).all()
    np.testing.assert_allclose(shrink(values * 1e5, *shape, kind, noise=1e5), shrunk * 1e5)
    np.testing.assert_array_equal(shrink(values, *shape[::-1], kind, noise=1.0), shrunk)
    np.testing.assert_array_equal(shrink(values, *shape, kind, noise=0.0), values)


def test_the_optimal_one_by_its_formula() -> None:
    beta, y = 0.25, np.array([1.6, 2.0, 5.0, 1e6])
    wanted = np.sqrt((y**2 - beta - 1) ** 2 - 4 * beta) / y
    np.testing.assert_allclose(shrink(y * 20, 100, 400, "optimal", noise=1.0), wanted * 20, rtol=1e-12)
    np.testing.assert_array_equal(shrink([30.0, 29.9], 100, 400, "optimal", noise=1.0), 0)  # the edge: 1.5 * 20


@pytest.mark.parametrize("shape", [(200, 200), (60, 240), (240, 60)])
def test_noise_of_unknown_variance(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    signal = 5 * rng.standard_normal((shape[0], 2)) @ rng.standard_normal((2, shape[1]))
    left, values, right = np.linalg.svd(signal + 3 * rng.standard_normal(shape), full_matrices=False)
    errors = {}
    for kind in KINDS:
        shrunk = shrink(values, *shape, kind)
        assert (shrunk > 0).sum() == 2
        np.testing.assert_allclose(shrunk, shrink(values, *shape, kind, noise=3.0), rtol=0.05)
        errors[kind] = np.linalg.norm((left * shrunk) @ right - signal)
    assert max(errors["optimal"], errors["hard"]) < errors["soft"] < np.linalg.norm(signal)


@cache
def squared_errors(x: float, n: int = 300, draws: int = 30) -> dict[str, float]:
    """Return the mean squared errors, in units of n sigma^2, of a rank-one n x n matrix of singular value x sqrt(n) in unit noise."""
    rng = np.random.default_rng(7)
    size = x * np.sqrt(n)
    errors: dict[str, list[float]] = {kind: [] for kind in ("truncation", *KINDS)}
    for _ in range(draws):
        noisy = rng.standard_normal((n, n))
        noisy[0, 0] += size
        left, values, right = svds(noisy, k=1, random_state=0)
        for kind, found in errors.items():
            kept: Any = values if kind == "truncation" else shrink(values, n, n, kind, noise=1.0)  # type: ignore[arg-type]
            found.append(float(kept[0] ** 2 + size**2 - 2 * kept[0] * size * left[0, 0] * right[0, 0]) / n)
    return {kind: float(np.mean(found)) for kind, found in errors.items()}


@pytest.mark.parametrize(
    ("kind", "worst_at", "bound"),
    [("truncation", 1.0, 5.0), ("hard", np.sqrt(3), 3.0), ("optimal", 50.0, 2.0), ("soft", 50.0, 6.0)],
)
def test_the_worst_errors_are_the_published_ones(kind: str, worst_at: float, bound: float) -> None:
    """Gavish and Donoho (2014): at most 5, 3, 2 and 6 n r sigma^2; at the weakest signal to be seen, at the threshold, far above."""
    assert squared_errors(worst_at)[kind] == pytest.approx(bound, rel=0.1)
    for x in (0.5, 1.0, 1.5, 3.0):
        assert squared_errors(x)[kind] < 1.05 * bound


def test_truncation_at_the_true_rank_is_at_worst_five_thirds_of_the_hard_threshold() -> None:
    worst = {kind: max(squared_errors(x)[kind] for x in (0.8, 1.0, np.sqrt(3))) for kind in ("truncation", "hard")}
    assert worst["truncation"] / worst["hard"] == pytest.approx(5 / 3, rel=0.1)


def test_the_hard_threshold_is_nowhere_worse_than_truncation() -> None:
    for x in (0.5, 1.0, 1.5, 3.0, 50.0):
        assert squared_errors(x)["hard"] <= 1.03 * squared_errors(x)["truncation"]


@pytest.mark.parametrize(
    ("values", "keywords", "message"),
    [
        ([1.0], {"kind": "best"}, "'hard', 'soft', 'optimal'"),
        ([1.0], {}, "median of all 4"),
        ([1.0] * 5, {}, "at most 4"),
        ([-1.0] * 4, {}, ">= 0"),
        ([np.nan] * 4, {}, "finite"),
        ([1.0] * 4, {"noise": -1.0}, "at least 0"),
        ([], {"n_samples": 0}, "at least 1"),
    ],
)
def test_wrong_requests_are_refused(values: list[float], keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shrink(values, **{"n_samples": 4, "n_features": 6, **keywords})


def test_values_without_noise_stay() -> None:
    np.testing.assert_array_equal(shrink([5.0, 0.0, 0.0], 3, 3), [5, 0, 0])
    np.testing.assert_array_equal(shrink([0.0], 1, 1, "optimal"), [0])
