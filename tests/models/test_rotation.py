from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.decomposition import FactorAnalysis

from streampca.errors import UsageError
from streampca.models.rotation import promax, quartimax, varimax

Rotate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
ROTATIONS: dict[str, tuple[Rotate, float]] = {"varimax": (varimax, 1.0), "quartimax": (quartimax, 0.0)}


def objective(loadings: np.ndarray, gamma: float) -> float:
    squares = loadings**2
    return float((squares**2).sum() - gamma * (squares.sum(axis=0) ** 2).sum() / len(loadings))


def simple_structure(d: int = 24, k: int = 4, seed: int = 0) -> np.ndarray:
    """Return loadings with one large entry in each row."""
    rng = np.random.default_rng(seed)
    loadings = 0.05 * rng.standard_normal((d, k))
    loadings[np.arange(d), np.arange(d) % k] += rng.uniform(0.5, 1, d)
    return loadings


def matched(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the columns of ``found`` in the order and with the signs of ``wanted``."""
    overlap = found.T @ wanted
    order = np.abs(overlap).argmax(axis=0)
    return found[:, order] * np.sign(overlap[order, np.arange(wanted.shape[1])])


@pytest.mark.parametrize("method", ROTATIONS)
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_rotations_are_scikit_learns(load: Callable[[], object], k: int, method: str) -> None:
    X = load().data[:150]  # type: ignore[attr-defined]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = FactorAnalysis(k, svd_method="lapack").fit(X).components_.T
    reference = FactorAnalysis(k, rotation=method, svd_method="lapack").fit(X).components_.T
    rotate, gamma = ROTATIONS[method]
    rotated, _ = rotate(plain)
    assert objective(rotated, gamma) >= objective(reference, gamma) - 1e-9  # scikit-learn stops earlier
    np.testing.assert_allclose(matched(rotated, reference), reference, atol=5e-3)


@pytest.mark.parametrize("method", ROTATIONS)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 12), k=st.integers(1, 5), scale=st.sampled_from([1e-100, 1.0, 1e100]))
def test_laws(method: str, seed: int, d: int, k: int, scale: float) -> None:
    loadings = np.random.default_rng(seed).standard_normal((d, k)) * scale
    rotate, gamma = ROTATIONS[method]
    rotated, rotation = rotate(loadings)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(rotated, loadings @ rotation, atol=1e-12 * scale)
    np.testing.assert_allclose(rotated @ rotated.T / scale**2, loadings @ loadings.T / scale**2, atol=1e-10)
    assert objective(rotated / scale, gamma) >= objective(loadings / scale, gamma) - 1e-9
    again, _ = rotate(rotated)
    assert objective(again / scale, gamma) == pytest.approx(objective(rotated / scale, gamma), rel=1e-8, abs=1e-9)


@pytest.mark.parametrize("method", ROTATIONS)
def test_no_small_turn_is_better(method: str) -> None:
    rotate, gamma = ROTATIONS[method]
    loadings = np.random.default_rng(3).standard_normal((15, 4))
    best, _ = rotate(loadings)
    rng = np.random.default_rng(4)
    for _ in range(200):
        near = np.linalg.qr(np.eye(4) + rng.choice([1e-3, 1e-1]) * rng.standard_normal((4, 4)))[0]
        assert objective(best @ near, gamma) <= objective(best, gamma) + 1e-10


@pytest.mark.parametrize("method", ROTATIONS)
def test_a_simple_structure_is_found_again(method: str) -> None:
    loadings = simple_structure()
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    rotate, _ = ROTATIONS[method]
    np.testing.assert_allclose(matched(rotate(loadings @ turn)[0], loadings), matched(rotate(loadings)[0], loadings), atol=1e-7)
    np.testing.assert_allclose(matched(rotate(loadings @ turn)[0], loadings), loadings, atol=0.1)


def test_promax_finds_oblique_factors() -> None:
    loadings = simple_structure()
    correlations = np.full((4, 4), 0.4) + 0.6 * np.eye(4)
    mixed = loadings @ np.linalg.cholesky(correlations) @ np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    rotated, rotation = promax(mixed)
    np.testing.assert_allclose(rotated, mixed @ rotation, atol=1e-12)
    found = np.linalg.inv(rotation.T @ rotation)
    np.testing.assert_allclose(found.diagonal(), 1, atol=1e-12)
    np.testing.assert_allclose(rotated @ found @ rotated.T, mixed @ mixed.T, atol=1e-10)  # the same covariance
    oblique, orthogonal = (np.abs(matched(each, loadings) - loadings).max() for each in (rotated, varimax(mixed)[0]))
    assert oblique < 0.12 < orthogonal
    np.testing.assert_allclose(np.abs(found[np.triu_indices(4, 1)]), 0.4, atol=0.12)


def test_promax_by_its_definition() -> None:
    loadings = np.random.default_rng(0).standard_normal((10, 3))
    start, turn = varimax(loadings)
    onto = np.linalg.inv(start.T @ start) @ start.T @ (np.sign(start) * np.abs(start) ** 3)
    onto = onto @ np.diag(np.sqrt(np.diag(np.linalg.inv(onto.T @ onto))))
    rotated, rotation = promax(loadings, power=3)
    np.testing.assert_allclose(rotation, turn @ onto, rtol=1e-9)
    np.testing.assert_allclose(rotated, start @ onto, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rotate", [varimax, quartimax, promax])
def test_one_factor_stays(rotate: Rotate) -> None:
    loadings = np.array([[1.0], [-2.0], [0.0]])
    rotated, rotation = rotate(loadings)
    np.testing.assert_allclose(rotated, loadings)
    np.testing.assert_allclose(rotation, [[1.0]])


@pytest.mark.parametrize("rotate", [varimax, quartimax])
def test_degenerate_loadings(rotate: Rotate) -> None:
    for loadings in (np.zeros((4, 3)), np.ones((4, 3)), np.eye(3), np.ones((1, 3))):
        rotated, rotation = rotate(loadings)
        assert np.isfinite(rotated).all()
        np.testing.assert_allclose(rotation.T @ rotation, np.eye(3), atol=1e-12)


@pytest.mark.parametrize(("loadings", "message"), [(np.ones(3), "shape"), (np.ones((0, 2)), "shape"), (np.full((2, 2), np.nan), "finite")])
@pytest.mark.parametrize("rotate", [varimax, quartimax, promax])
def test_wrong_loadings_are_refused(rotate: Rotate, loadings: np.ndarray, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rotate(loadings)


def test_promax_refuses_what_it_cannot_turn() -> None:
    with pytest.raises(UsageError, match="depend on each other"):
        promax(np.ones((4, 2)))
    with pytest.raises(UsageError, match="more than 1"):
        promax(np.eye(3), power=1)
