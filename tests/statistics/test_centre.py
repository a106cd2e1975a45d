from __future__ import annotations

import numpy as np

from streampca.statistics import Scatter
from streampca.statistics.centre import Centre, weighted_centre


def test_rows_are_as_many_as_the_count_unless_told() -> None:
    assert Centre(7, np.zeros(2), np.zeros(2)).rows == 7
    assert Centre(7.5, np.zeros(2), np.zeros(2), 3).rows == 3
    assert (Centre.empty(3).count, Centre.empty(3).rows) == (0, 0)


def test_rows_of_positive_weight_are_counted_through_merges_and_arrays() -> None:
    first, second = Scatter(2), Scatter(2)
    first.update(np.ones((4, 2)), np.array([0.0, 2.5, 0.0, 1.0]))
    second.update(np.ones((3, 2)))
    first.merge(second)
    for each in (first, Scatter.from_arrays(first.to_arrays())):
        assert (each.count, each.centre.rows) == (6.5, 5)
    assert second.centre.to_arrays()["count"].dtype == np.float64
    assert second.centre.to_arrays()["rows"].dtype == np.int64


def test_a_count_is_an_integer_without_weights() -> None:
    scatter = Scatter(2)
    scatter.update(np.ones((2, 2)))
    scatter.update(np.ones((1, 2)), np.ones(1))
    for each in (scatter, scatter.copy()):
        assert each.count == 3
        assert isinstance(each.count, int)
    scatter.update(np.ones((1, 2)), np.array([2.0]))
    assert isinstance(scatter.count, float)


def test_sums_stored_before_there_were_weights() -> None:
    arrays = {"count": np.array(5, np.int64), "pivot": np.ones(2), "offset": np.zeros(2)}
    assert (Centre.from_arrays(arrays).count, Centre.from_arrays(arrays).rows) == (5, 5)


def test_the_pivot_is_the_weighted_mean() -> None:
    rows = np.array([[1e8, 3.0], [1.0, 3.0], [3.0, 3.0], [7.0, 1e300]])
    centre = weighted_centre(rows, np.array([0, 1.0, 3.0, 0]))
    np.testing.assert_array_equal(centre.mean, [2.5, 3.0])
    assert (centre.count, centre.rows) == (4, 2)
