from __future__ import annotations

import numpy as np
import pytest

from streampca.errors import DataError
from streampca.statistics import Moments
from tests.statistics.conformance import StatisticTests, folded, numbers


class TestMoments(StatisticTests):
    def make(self, n_features: int) -> Moments:
        return Moments(n_features)

    def second(self, statistic: Moments) -> np.ndarray:
        return statistic.squares

    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray:
        return (centred_rows**2).sum(axis=0)

    def scale(self, second: np.ndarray) -> np.ndarray:
        return second

    @pytest.mark.parametrize("ddof", [0, 1])
    def test_variance(self, ddof: int) -> None:
        rows = numbers("float64")
        np.testing.assert_allclose(folded(self.make(5), rows).variance(ddof), rows.var(axis=0, ddof=ddof), rtol=1e-13)

    def test_a_mean_of_1e8(self) -> None:
        rows = numbers("float64", 20_000) + 1e8
        self.check_rows(folded(self.make(5), *np.split(rows, 7 * [0] + [9, 5000])), rows, 1e-13)

    def test_sums_that_overflow(self) -> None:
        with pytest.raises(DataError, match="overflow"):
            folded(self.make(1), np.full((4, 1), 1.7e308) * [[1], [-1], [1], [-1]])
