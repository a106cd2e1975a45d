from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca import buffers
from streampca.errors import DataError
from streampca.statistics import sketch
from streampca.statistics.sketch import Sketch, fold, row_products, stack_rows, state_bytes, workspace_bytes
from tests.statistics.conformance import StatisticTests, bits, centred, folded, folded_weighted, numbers, quick


class SketchTests(StatisticTests):
    """The laws, for rows whose rank is kept."""

    precision: Any = "float64"
    rank = 6

    def make(self, n_features: int) -> Sketch:
        return Sketch(n_features, self.rank, self.precision)

    def second(self, statistic: Sketch) -> np.ndarray:
        rows = statistic.rows.astype(np.float64)
        return rows.T @ rows

    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray:
        return centred_rows.T @ centred_rows

    def scale(self, second: np.ndarray) -> np.ndarray:
        """The largest variance: rounding is relative to it in all directions."""
        return np.full_like(second, np.linalg.norm(second.astype(float), 2))

    def check(self, found: Any, count: float, mean: np.ndarray, second: np.ndarray, tolerance: float | None = None) -> None:
        super().check(found, count, mean, second, tolerance)
        np.testing.assert_allclose(found.squares, second.diagonal().astype(float), rtol=found.tolerance, atol=1e-15 * np.abs(second).max())

    @pytest.mark.parametrize("n_features", [1, 7, 1000])
    def test_bytes_are_known_without_making_one(self, n_features: int) -> None:
        one = self.make(n_features)
        assert (
            state_bytes(n_features, self.rank, self.precision) - 8 * n_features
            <= one.nbytes
            <= state_bytes(n_features, self.rank, self.precision)
        )
        assert workspace_bytes(n_features, self.rank, self.precision) == one.workspace(10**6)

    @pytest.mark.parametrize("n_features", [3, 300])
    def test_borrowed_memory_is_counted(self, n_features: int, monkeypatch: pytest.MonkeyPatch) -> None:
        lent: list[int] = []
        borrow = buffers.borrow

        def spy(n_bytes: int) -> Any:
            lent.append(n_bytes)
            return borrow(n_bytes)

        monkeypatch.setattr(buffers, "borrow", spy)
        one = folded(self.make(n_features), numbers("float64", 3000, n_features))
        small = 8 * stack_rows(self.rank) ** 2
        assert 0 < sum(lent) <= one.workspace(3000) - 4 * small - 8 * 20 * n_features

    def test_the_rows_are_orthogonal_and_the_longest_come_first(self) -> None:
        rows = folded(self.make(30), *np.split(numbers(self.dtype, 500, 30), [3, 200])).rows.astype(float)
        lengths = np.linalg.norm(rows, axis=1)
        assert (np.diff(lengths) <= 0).all()
        tolerance = 1e-5 if self.precision == "float32" else 1e-13
        np.testing.assert_allclose(rows @ rows.T, np.diag(lengths**2), atol=tolerance * lengths[0] ** 2)

    @pytest.mark.parametrize("n_rows", [1, 2, 3, 4])
    def test_few_rows_leave_the_others_zero(self, n_rows: int) -> None:
        rows = folded(self.make(30), numbers(self.dtype, n_rows, 30)).rows
        assert np.count_nonzero(np.linalg.norm(rows, axis=1)) == n_rows - 1

    @quick
    @given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 300), max_size=5))
    def test_columns_keep_their_variation_whatever_is_cut_off(self, seed: int, cuts: list[int]) -> None:
        rows = (np.random.default_rng(seed).normal(size=(300, 30)) * np.logspace(0, 2, 30) + 100).astype(self.dtype)
        states = [folded(self.make(30), part) for part in np.split(rows, sorted(cuts))]
        for each in states[1:]:
            states[0].merge(each)
        mean, rest = centred(rows)
        rtol = 1e-5 if self.precision == "float32" else 1e-12
        np.testing.assert_allclose(states[0].squares, (rest**2).sum(axis=0).astype(float), rtol=rtol)
        np.testing.assert_allclose(states[0].mean, mean.astype(float), rtol=rtol)

    @pytest.mark.parametrize("order", ["as is", "sorted", "by group"])
    def test_the_leading_directions_of_more_than_is_kept(self, order: str) -> None:
        """Two strong directions in thirty: the sketch of six has them within 1e-3, the squared sine of the angle."""
        rng = np.random.default_rng(0)
        V = np.linalg.qr(rng.standard_normal((30, 30)))[0]
        rows = rng.standard_normal((2000, 30)) * np.r_[10, 5, np.linspace(1, 0.5, 28)] @ V.T + 7
        if order == "sorted":
            rows = rows[np.argsort(rows @ V[:, 0])]
        if order == "by group":
            rows += np.repeat(rng.standard_normal((4, 30)), 500, axis=0)
        rows = rows.astype(self.dtype)
        states = [folded(self.make(30), part) for part in np.split(rows, 4)]
        for each in states[1:]:
            states[0].merge(each)
        _, rest = centred(rows)
        exact = np.linalg.svd(rest.astype(float), full_matrices=False)[2][:2]
        found = np.linalg.svd(states[0].rows.astype(float), full_matrices=False)[2][:2]
        assert 1 - np.linalg.norm(found @ exact.T) ** 2 / 2 < 1e-3

    def test_a_scale_divides_the_columns(self) -> None:
        rows, scale = numbers("float64", 900), np.array([1, 10, 0.1, 3, 7.0])
        one, plain = Sketch(5, 6, self.precision, scale), Sketch(5, 6, self.precision)
        for part in np.split(rows, [200]):
            one.update(part)
            plain.update(part / scale)
        self.check(one, 900, plain.mean * scale, self.second(plain))
        assert bits(one.copy()) == bits(one)
        assert bits(one.fresh()) != bits(one)

    def test_sums_that_overflow_are_told_apart(self) -> None:
        with pytest.raises(DataError, match="overflow"):
            folded(self.make(1), np.full((4, 1), 1.7e308) * [[1], [-1], [1], [-1]])

    def test_no_rows_but_of_weight_0(self) -> None:
        assert bits(folded_weighted(self.make(5), (numbers(self.dtype), np.zeros(300)))) == bits(self.make(5))


class TestFloat64(SketchTests):
    @pytest.mark.parametrize("mean", [1e8, -3e9])
    def test_a_large_mean_costs_no_accuracy(self, mean: float) -> None:
        rows = np.random.default_rng(0).normal(size=(3000, 5)) * np.linspace(1, 2, 5) + mean
        self.check_rows(folded(self.make(5), *np.split(rows, 10)), rows, 1e-12)


class TestFloat32(SketchTests):
    dtype = "float32"
    precision = "float32"

    @pytest.mark.parametrize("mean", [1e4, 1e6])
    def test_a_large_mean_costs_no_accuracy(self, mean: float) -> None:
        rows = (np.random.default_rng(0).normal(size=(3000, 5)) * np.linspace(1, 2, 5) + mean).astype(np.float32)
        self.check_rows(folded(self.make(5), *np.split(rows, 10)), rows, 1e-5)


class TestManyDirections(SketchTests):
    rank = 50  # more than the least number of rows that are folded at once


@pytest.mark.parametrize(("height", "width", "rank"), [(1, 1, 1), (5, 3, 2), (40, 2000, 10), (9, 4, 9)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_fold_is_the_best_of_that_rank(height: int, width: int, rank: int, dtype: str) -> None:
    stack = np.random.default_rng(0).standard_normal((height, width)).astype(dtype)
    L, V = np.linalg.svd(stack.astype(float), full_matrices=False)[1:]
    kept = fold(stack, rank)
    assert kept == min(rank, height, width)
    best = (V[:kept].T * L[:kept] ** 2) @ V[:kept]
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(stack[:kept].T.astype(float) @ stack[:kept], best, atol=tolerance * L[0] ** 2)


def test_nothing_folds_to_nothing() -> None:
    assert fold(np.zeros((4, 3)), 2) == 0


def test_products_of_long_rows_are_added_in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "_PANEL_BYTES", 2**10)
    left, right = np.random.default_rng(0).standard_normal((2, 7, 3001))
    np.testing.assert_allclose(row_products(left, right[:4]), left @ right[:4].T, rtol=1e-12, atol=1e-12)
