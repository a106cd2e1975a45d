"""Laws that hold for every criterion of the table."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streampca
from streampca.errors import UsageError
from streampca.selection import CRITERIA, Selection, Spectrum, select_components
from tests.selection.planted import first, planted, spectrum_of

OPTIONS: dict[str, dict[str, Any]] = {
    "fraction": {"threshold": 0.7},
    "threshold": {"threshold": 5.0},
    "soft": {"threshold": 5.0},
    "rank-penalty": {"threshold": 25.0},
    "held-out": {"held_out": {0: -3.0, 1: -2.0}},
}
every_criterion = pytest.mark.parametrize("criterion", CRITERIA)


def choose(spectrum: Any, criterion: str, **more: Any) -> Selection:
    return select_components(spectrum, criterion, **{**OPTIONS.get(criterion, {}), **more})


def spectra() -> st.SearchStrategy[Spectrum]:
    """Any complete spectrum: flat, steep, with zeros, with ties; of any shape."""

    @st.composite
    def build(draw: st.DrawFn) -> Spectrum:
        d, n = draw(st.integers(1, 12)), draw(st.integers(2, 40))
        size = min(n - 1, d)
        values = draw(st.lists(st.sampled_from([0.0, 1e-300, 1e-12, 0.5, 1.0, 1.0, 2.0, 7.0, 1e6]), min_size=size, max_size=size))
        variances = np.sort(np.array(values))[::-1]
        return Spectrum(variances, n, d, float(variances.sum()))

    return build()


@every_criterion
@given(spectrum=spectra(), keep=st.integers(1, 12))
def test_every_spectrum_gets_an_answer_or_a_plain_refusal(criterion: str, spectrum: Spectrum, keep: int) -> None:
    for each in (spectrum, first(spectrum, min(keep, spectrum.known))):
        try:
            chosen = choose(each, criterion)
        except UsageError:
            assert criterion in ("mle", "elbow") or not each.complete or criterion == "held-out"
            continue
        assert 0 <= chosen.k <= max(each.known, 1)
        assert not np.isnan(chosen.values).any()
        assert chosen.values.shape == chosen.candidates.shape
        assert not (chosen.bound and each.complete) or criterion == "held-out"
        assert "nan" not in chosen.reason
        assert chosen.criterion == criterion


@every_criterion
@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 2), (2, 50), (3, 1), (50, 1), (5, 4), (4, 40)])
def test_tiny_data_and_fewer_rows_than_features(criterion: str, n: int, d: int) -> None:
    X = np.random.default_rng([n, d]).standard_normal((n, d))
    if criterion == "mle" and n < d:
        with pytest.raises(UsageError, match="as many samples as features"):
            choose(spectrum_of(X), criterion)
    else:
        assert 0 <= choose(spectrum_of(X), criterion).k <= min(n - 1, d)


@pytest.mark.parametrize("criterion", [name for name in CRITERIA if name != "held-out"])
def test_constant_data_has_no_components(criterion: str) -> None:
    for n, d in ((2, 1), (10, 3), (3, 10)):
        chosen = choose(Spectrum(np.zeros(min(n - 1, d)), n, d, 0.0), criterion)
        assert (chosen.k, chosen.bound) == (0, False)
        assert "no variance" in chosen.reason


@pytest.mark.parametrize("criterion", ["bic", "aic", "gaic", "mle", "gavish-donoho", "parallel", "elbow"])
@pytest.mark.parametrize(("n", "d"), [(50, 12), (13, 40)])
def test_exact_low_rank_is_seen_through_rounding(criterion: str, n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    X = np.linalg.qr(rng.standard_normal((n, 3)))[0] @ rng.standard_normal((3, d)) + 5
    if criterion == "mle" and n < d:
        return
    assert choose(spectrum_of(X), criterion).k == 3


@pytest.mark.parametrize("criterion", ["bic", "aic", "gaic", "mle", "elbow", "gavish-donoho", "parallel", "fraction"])
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_units_do_not_matter(criterion: str, scale: float) -> None:
    X = planted(80, 15, 3, 3, np.random.default_rng(2))
    assert choose(spectrum_of(X * scale), criterion).k == choose(spectrum_of(X), criterion).k


@every_criterion
@pytest.mark.parametrize("keep", [1, 2, 3, 4, 6, 9, 14])
def test_a_truncated_spectrum_agrees_or_bounds_or_refuses(criterion: str, keep: int) -> None:
    spectrum = spectrum_of(planted(80, 15, 3, 4, np.random.default_rng(2)))
    wanted = choose(spectrum, criterion)
    try:
        chosen = choose(first(spectrum, keep), criterion)
    except UsageError:
        assert criterion in ("mle", "elbow") or ("noise" in CRITERIA[criterion].takes and keep < 8)  # 8 reach the median of 15
        return
    assert chosen.k == wanted.k or (chosen.bound and chosen.k <= wanted.k)
    if criterion != "elbow":  # the share of the last one known depends on those after it
        np.testing.assert_allclose(chosen.values, wanted.values[: chosen.values.size], rtol=1e-9, atol=1e-9)


KNOWN_NOISE = {"gavish-donoho", "parallel", "gaic", "residual-aic", "residual-bic"}


@pytest.mark.parametrize("criterion", ["fraction", "threshold", "soft", "rank-penalty", *sorted(KNOWN_NOISE)])
@given(spectrum=spectra(), keep=st.integers(1, 12), noise=st.sampled_from([0.0, 0.01, 0.3, 2.0]))
def test_the_end_of_a_truncated_spectrum_is_bounded_never_guessed(criterion: str, spectrum: Spectrum, keep: int, noise: float) -> None:
    more = {"noise_variance": noise} if criterion in KNOWN_NOISE else {}
    part = first(spectrum, min(keep, spectrum.known))
    chosen, wanted = choose(part, criterion, **more), choose(spectrum, criterion, **more)
    assert chosen.k == wanted.k or (chosen.bound and chosen.k < wanted.k)


@pytest.mark.parametrize("criterion", ["gavish-donoho", "parallel", "gaic"])
@pytest.mark.parametrize("keep", [1, 2, 4, 6, 14])
def test_the_tails_noise_needs_no_more_than_the_signal(criterion: str, keep: int) -> None:
    spectrum = spectrum_of(planted(80, 15, 3, 5, np.random.default_rng(2)))
    chosen = choose(first(spectrum, keep), criterion, noise="tail")
    assert (chosen.k, chosen.bound) == (min(keep, 3), keep < 3)


@pytest.mark.parametrize("shape", [(300, 60), (60, 300)])
@pytest.mark.parametrize(("criterion", "more"), [("bic", {}), ("gavish-donoho", {}), ("parallel", {}), ("gaic", {}), ("elbow", {})])
def test_the_planted_rank_is_found_in_95_of_100_draws(criterion: str, more: dict[str, Any], shape: tuple[int, int], draws: Any) -> None:
    assert sum(choose(spectrum, criterion, **more).k == 4 for spectrum in draws(shape)) >= 95


@pytest.mark.parametrize("criterion", ["bic", "gavish-donoho", "parallel"])
@pytest.mark.parametrize("more", [{"noise_variance": 1.0}, {"noise": "tail"}])
def test_the_planted_rank_is_found_with_other_noises(criterion: str, more: dict[str, Any], draws: Any) -> None:
    if criterion == "bic" and "noise" in more:
        more = {}
    assert sum(choose(first(s, 20), criterion, **more).k == 4 for s in draws((300, 60))) >= 95


@pytest.mark.parametrize("criterion", ["bic", "gavish-donoho", "parallel"])
def test_nothing_is_found_in_noise(criterion: str) -> None:
    rng = np.random.default_rng(0)
    assert sum(choose(spectrum_of(rng.standard_normal((100, 30))), criterion).k == 0 for _ in range(50)) >= 48


@pytest.fixture(scope="module")
def draws() -> Any:
    known: dict[tuple[int, int], list[Spectrum]] = {}

    def of(shape: tuple[int, int]) -> list[Spectrum]:
        if shape not in known:
            rng = np.random.default_rng(5)
            known[shape] = [spectrum_of(planted(*shape, 4, 3, rng)) for _ in range(100)]
        return known[shape]

    return of


def test_a_fitted_model_is_read() -> None:
    X = planted(100, 10, 2, 5, np.random.default_rng(0))
    assert select_components(streampca.PCA().fit(X)).k == 2
    assert select_components(streampca.PCA(4).fit(X), "bic").k == 2
    assert select_components(streampca.PCA(4).fit(X)._model, "gavish-donoho", noise="tail").k == 2


def test_a_selection_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        select_components([2.0, 1.0], n_samples=9).k = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("criterion", "keywords", "message"),
    [
        ("bicc", {}, "Did you mean 'bic'"),
        (3, {}, "must be a fraction"),
        (1.5, {}, "between 0 and 1"),
        (0.5, {"threshold": 0.5}, "fraction itself"),
        ("fraction", {}, "needs threshold"),
        ("threshold", {"threshold": -1.0}, "at least 0"),
        ("soft", {"threshold": np.nan}, "at least 0"),
        ("bic", {"threshold": 1.0}, "no use for threshold"),
        ("bic", {"noise": "tail"}, "no use for noise"),
        ("mle", {"noise_variance": 1.0}, "it takes none"),
        ("held-out", {}, "needs held_out"),
        ("held-out", {"held_out": []}, "needs held_out"),
        ("held-out", {"held_out": [np.nan]}, "NaN"),
        ("held-out", {"held_out": {9: -1.0}}, "0 to 2"),
        ("parallel", {"confidence": 1.0}, "confidence=1.0"),
        ("gavish-donoho", {"noise_variance": -1.0}, "at least 0"),
    ],
)
def test_wrong_requests_are_refused(criterion: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        select_components([2.0, 1.0], criterion, n_samples=9, **keywords)
