from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn import decomposition

import streampca
from streampca.errors import UsageError
from streampca.selection import Spectrum, as_spectrum
from tests.selection.planted import first, spectrum_of

X = np.random.default_rng(0).standard_normal((40, 6)) * np.arange(1, 7) + 1e3


def test_singular_values_are_those_of_the_centred_data() -> None:
    singular = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    spectrum = spectrum_of(X)
    np.testing.assert_allclose(spectrum.singular_values, singular, rtol=1e-13)
    np.testing.assert_allclose(spectrum.residuals, [(singular[r:] ** 2).sum() for r in range(7)], rtol=1e-13)
    assert spectrum.residuals[-1] == 0


@pytest.mark.parametrize("keep", range(1, 7))
def test_residuals_of_a_truncated_spectrum_are_exact(keep: int) -> None:
    full, part = spectrum_of(X), spectrum_of(X, keep)
    np.testing.assert_allclose(part.residuals, full.residuals[: keep + 1], rtol=1e-12)
    assert part.complete == (keep == 6)


def test_fewer_rows_than_features_leave_n_minus_one_variances() -> None:
    wide = np.random.default_rng(1).standard_normal((5, 9))
    spectrum = spectrum_of(wide)
    assert (spectrum.limit, spectrum.known, spectrum.complete) == (4, 4, True)
    assert first(spectrum, 3).complete is False


def test_what_the_trace_leaves_nothing_for_is_zero() -> None:
    spectrum = Spectrum(np.array([3.0, 1.0]), 100, 5, 4.0)
    np.testing.assert_array_equal(spectrum.variances, [3, 1, 0, 0, 0])
    assert spectrum.complete
    assert spectrum.rank == 2


def test_the_values_are_frozen() -> None:
    spectrum = spectrum_of(X)
    with pytest.raises(ValueError, match="read-only"):
        spectrum.variances[0] = 0
    with pytest.raises(FrozenInstanceError):
        spectrum.n_samples = 3  # type: ignore[misc]


def test_models_of_both_libraries_give_the_same_spectrum() -> None:
    for keep in (2, None):
        ours, theirs = as_spectrum(streampca.PCA(keep).fit(X)._model), as_spectrum(decomposition.PCA(keep).fit(X))
        np.testing.assert_allclose(ours.variances, theirs.variances, rtol=1e-10)
        assert ours.total_variance == pytest.approx(theirs.total_variance, rel=1e-12)
        assert as_spectrum(streampca.PCA(keep).fit(X)).total_variance == pytest.approx(ours.total_variance, rel=1e-12)
        assert (ours.n_samples, ours.n_features, ours.known) == (40, 6, keep or 6)


def test_a_stated_total_is_taken() -> None:
    model = SimpleNamespace(explained_variance_=np.array([2.0]), n_samples_=9, n_features_in_=4, total_variance=5.0)
    assert as_spectrum(model).total_variance == 5


def test_sums_of_fractional_weights_do_not_limit_the_rank() -> None:
    assert Spectrum(np.ones(5), 2.5, 5, 5.0).limit == 5


@pytest.mark.parametrize(
    ("variances", "keywords", "message"),
    [
        ([3.0, 1.0], {}, "n_samples is missing"),
        ([3.0, 1.0], {"n_samples": 1}, "at least 2 rows"),
        ([3.0, 1.0], {"n_samples": 9, "n_features": 4}, "total_variance is needed"),
        ([1.0, 3.0], {"n_samples": 9}, "sorted, largest first"),
        ([3.0, -1.0], {"n_samples": 9}, "at least 0"),
        ([3.0, np.nan], {"n_samples": 9}, "finite"),
        ([3.0, 1.0], {"n_samples": 9, "n_features": 1}, "1 to 1"),
        ([3.0, 1.0], {"n_samples": 9, "total_variance": 5.0}, "add up to 4"),
        ([3.0, 1.0], {"n_samples": 9, "n_features": 4, "total_variance": 3.5}, "add up to 4"),
        ([3.0, 2.0, 1.0], {"n_samples": 3}, "at most 2 components"),
        ([[3.0], [1.0]], {"n_samples": 9}, "vector"),
        ([], {"n_samples": 9}, "vector"),
        ("words", {"n_samples": 9}, "not str"),
    ],
)
def test_contradictions_are_refused(variances: object, keywords: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        as_spectrum(variances, **keywords)  # type: ignore[arg-type]


def test_a_spectrum_is_not_overridden() -> None:
    with pytest.raises(UsageError, match="leave out"):
        as_spectrum(spectrum_of(X), n_samples=3)
