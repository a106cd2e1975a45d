from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import UsageError
from streampca.selection import Spectrum, select_components
from streampca.selection.elbow import lower_hull


def spectrum(variances: list[float], keep: int | None = None) -> Spectrum:
    return Spectrum(np.array(variances[:keep]), 1000, len(variances), float(sum(variances)))


@pytest.mark.parametrize(
    ("variances", "k"),
    [
        ([100, 90, 80, 1, 0.9, 0.8], 3),
        ([1000, 100, 90, 80] + [1] * 56, 4),
        ([9, 1, 1, 1, 1], 1),
        ([5, 4, 3, 0, 0, 0], 3),
        ([1, 1, 1, 1], 0),
        ([7], 1),
        ([7, 3], 2),
        ([7, 0], 1),
    ],
)
def test_bends_that_are_plain_to_see(variances: list[float], k: int) -> None:
    assert select_components(spectrum(variances), "elbow").k == k


variances_of_any_shape = (
    st.lists(st.floats(0, 100), min_size=3, max_size=12).filter(lambda v: max(v) > 1e-6).map(lambda v: sorted(v, reverse=True))
)


@given(variances=variances_of_any_shape)
def test_shares_are_those_of_a_grid_of_weights(variances: list[float]) -> None:
    values = select_components(spectrum(variances), "elbow").values
    assert values.sum() == pytest.approx(1)
    angles = (np.arange(2000) + 0.5) / 2000 * np.pi / 2
    heights = np.array(variances) / np.mean(variances)
    best = np.argmin(np.cos(angles)[:, None] * heights + np.sin(angles)[:, None] * np.arange(len(heights)), axis=1)
    np.testing.assert_allclose(values, np.bincount(best, minlength=len(heights)) / 2000, atol=2e-3)


@given(variances=variances_of_any_shape)
def test_the_hull_is_below_and_convex(variances: list[float]) -> None:
    heights = np.array(variances)
    corners = lower_hull(heights)
    assert (np.interp(np.arange(heights.size), corners, heights[corners]) <= heights + 1e-9).all()
    assert (np.diff(np.diff(heights[corners]) / np.diff(corners)) >= -1e-9).all()


@given(variances=variances_of_any_shape, data=st.data())
def test_a_truncated_answer_is_that_of_every_spectrum_that_begins_so(variances: list[float], data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, len(variances) - 1))
    whole, part = spectrum(variances), spectrum(variances, keep)
    if part.complete:
        return
    try:
        chosen = select_components(part, "elbow")
    except UsageError:
        return
    assert chosen.k == select_components(whole, "elbow").k
    assert not chosen.bound


def test_a_plain_bend_is_settled_by_few_components() -> None:
    variances = [100, 90, 80, 1] + [0.9] * 50
    assert select_components(spectrum(variances, 8), "elbow").k == 3
    with pytest.raises(UsageError, match="2 components known of 54 do not settle"):
        select_components(spectrum(variances, 2), "elbow")
