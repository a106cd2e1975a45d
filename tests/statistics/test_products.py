from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca import buffers
from streampca.errors import DataError, UsageError
from streampca.statistics.products import Products, state_bytes, strip_rows, workspace_bytes
from tests.statistics.conformance import (
    DTYPES,
    StatisticTests,
    bits,
    centred,
    folded,
    folded_weighted,
    numbers,
    quick,
    tables,
    weighted_tables,
)

WIDTH = 3


def basis_of(n_features: int) -> np.ndarray:
    """Columns of length 1."""
    basis = np.random.default_rng(n_features).standard_normal((n_features, WIDTH)).astype(np.float32).astype(np.float64)
    return basis / np.linalg.norm(basis, axis=0)


class ProductsTests(StatisticTests):
    """The laws, with a pivot of zero: whatever the mean is, rounding is that of the rows less the pivot."""

    precision: Any = "float64"
    sums: Any = "float64"

    def make(self, n_features: int) -> Products:
        return Products(basis_of(n_features), np.zeros(n_features), None, self.precision, self.sums)

    def near(self, rows: np.ndarray, scale: np.ndarray | None = None) -> Products:
        """An empty one with a pivot near the mean."""
        return Products(basis_of(rows.shape[1]), rows[:10].astype(float).mean(axis=0), scale, self.precision, self.sums)

    def second(self, statistic: Products) -> np.ndarray:
        return statistic.products

    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray:
        return centred_rows.T @ (centred_rows @ self.make(centred_rows.shape[1])._basis)

    def scale(self, second: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.linalg.norm(second, axis=0), second.shape)

    def check(self, found: Any, count: float, mean: np.ndarray, second: np.ndarray, tolerance: float | None = None) -> None:
        tolerance = found.tolerance if tolerance is None else tolerance
        assert found.count == count
        size = found.total + count * float(((mean - found._pivot) ** 2).sum())  # of the shifted rows
        assert (np.abs(found.mean - mean) <= tolerance * np.sqrt(size / max(count, 1e-300)) + 2e-16 * np.abs(mean)).all()
        assert np.abs(self.second(found) - second).max(initial=0) <= tolerance * size

    def check_well(self, found: Products, rows: np.ndarray, tolerance: float) -> None:
        """Compare without allowance for the pivot."""
        mean, rest = centred(rows)
        expected = self.second_reference(rest)
        np.testing.assert_allclose(found.mean, mean.astype(float), rtol=1e-15, atol=tolerance * rest.std())
        assert np.abs(found.products - expected).max() <= tolerance * np.linalg.norm(expected, axis=0).max()
        assert found.total == pytest.approx(float((rest**2).sum()), rel=max(tolerance, 1e-13))

    # ------------------------------------------------------------------------------ laws that read otherwise here

    def test_the_blueprint_is_small(self) -> None:  # type: ignore[override]
        """It holds the constants that updates need, nothing that was accumulated."""
        one = self.near(numbers("float64", 30, 300), np.linspace(1, 2, 300))
        blueprint = pickle.dumps(folded(one, numbers("float64", 30, 300)).blueprint())
        constants = 300 * (WIDTH * np.dtype(self.precision).itemsize + 16)
        assert len(blueprint) < constants + 1000
        assert bits(pickle.loads(blueprint)()) == bits(one)

    @quick
    @given(data=st.data())
    def test_arrays_and_pickles_keep_every_bit(self, data: st.DataObject) -> None:
        rows = data.draw(tables(self.dtype))
        one = folded(self.make(rows.shape[1]), rows)
        copies = [Products.from_arrays(one.to_arrays()).copy(), pickle.loads(pickle.dumps(one)), one.copy()]
        other = folded(self.make(rows.shape[1]), rows[::2])
        assert {str(bits(each)) for each in copies} == {str(bits(one))}
        for each in (one, *copies):
            each.merge(other)
        assert {str(bits(each)) for each in copies} == {str(bits(one))}
        assert {each.products.tobytes() for each in copies} == {one.products.tobytes()}

    def test_a_copy_is_independent(self) -> None:
        one = folded(self.make(5), numbers(self.dtype))
        copy, before = one.copy(), bits(one)
        copy.merge(one)
        copy.take()
        assert bits(one) == before
        assert copy.count == 2 * one.count

    def test_a_copy_cannot_be_updated(self) -> None:
        one = folded(self.make(5), numbers(self.dtype)).copy()
        with pytest.raises(UsageError, match="restored"):
            one.update(numbers(self.dtype))
        with pytest.raises(UsageError, match="restored"):
            one.fresh()

    @quick
    @given(data=st.data())
    def test_rows_of_weight_0_count_for_nothing(self, data: st.DataObject) -> None:
        rows, weights = data.draw(weighted_tables(self.dtype))
        empty, kept = self.make(rows.shape[1]), weights > 0
        rows[~kept] = 3e7
        self.check_same(folded_weighted(empty, (rows, weights)), folded_weighted(empty, (rows[kept], weights[kept])))
        one = folded(empty, rows)
        before = bits(one)
        one.update(rows, np.zeros(len(rows)))
        assert bits(one) == before

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("sizes", [(1,), (1, 1, 5000, 3), (4000, 4000)])
    def test_constant_columns_are_exactly_zero(self, dtype: str, sizes: tuple[int, ...]) -> None:
        rows = numbers(dtype, sum(sizes), 4)
        rows[:, 1] = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.longdouble(1) / 3
        empty = Products(basis_of(4), rows[0].astype(float), None, self.precision, self.sums)  # their value is the mean of the first pass
        one = folded(empty, *np.split(rows, np.cumsum(sizes)[:-1]))
        if np.can_cast(dtype, self.precision) or self.precision == "float64":
            assert not one.products[1].any()
            assert one.mean[1] == np.float64(rows[0, 1])
        else:  # the pivot is rounded, and what is left is taken out at the end
            assert np.abs(one.products[1]).max() <= 1e-12 * max(one.total, 1.0) * max(abs(one.mean[1]), 1)
            assert one.mean[1] == pytest.approx(np.float64(rows[0, 1]), rel=1e-13)

    def test_constant_columns_are_exactly_zero_with_weights(self) -> None:
        rows = numbers(self.dtype, 5000)
        weights = np.random.default_rng(0).integers(0, 3, 5000) * 0.7
        rows[:, 1] = np.where(weights > 0, np.asarray(0.1, self.dtype), np.asarray(1e6, self.dtype))
        pivot = rows[weights > 0][0].astype(float)
        one = folded_weighted(
            Products(basis_of(5), pivot, None, self.precision, self.sums), (rows[:300], weights[:300]), (rows[300:], weights[300:])
        )
        assert not one.products[1].any()
        assert one.mean[1] == pivot[1]

    def test_one_row(self) -> None:
        rows = numbers(self.dtype, 1)
        one = folded(self.make(5), rows)
        assert (one.count, one.mean.tolist()) == (1, rows[0].astype(np.float64).tolist())
        self.check_rows(one, rows)

    def test_rows_that_are_not_exchangeable(self) -> None:  # type: ignore[override]
        """Blocks far from each other, and a pivot that is near none."""
        rows = numbers(self.dtype, 9000)
        rows += np.repeat([0, 1e5, -1e5], 3000).astype(self.dtype)[:, None]
        parts = np.split(rows, [10, 11, 3000, 6000, 8191])
        one = folded(self.make(5), *parts[:3])
        one.merge(folded(self.make(5), *parts[3:]))
        self.check_rows(one, rows, 20 * one.tolerance)

    # ------------------------------------------------------------------------------ its own ways

    @pytest.mark.parametrize("n_features", [1, 7, 1000, 300_000])
    def test_bytes_are_known_without_making_one(self, n_features: int) -> None:
        one = self.make(n_features)
        assert state_bytes(n_features, WIDTH, self.sums) == one.nbytes
        assert workspace_bytes(n_features, WIDTH, self.precision) == one.workspace(10**6)

    def test_borrowed_memory_is_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lent: list[int] = []
        borrow = buffers.borrow

        def spy(n_bytes: int) -> Any:
            lent.append(n_bytes)
            return borrow(n_bytes)

        monkeypatch.setattr(buffers, "borrow", spy)
        one = folded(self.make(300), numbers("float64", 3000, 300))
        scores = strip_rows(300, self.precision) * 3 * WIDTH * np.dtype(self.precision).itemsize
        assert 0 < sum(lent) <= one.workspace(3000) - scores

    @pytest.mark.parametrize("n_features", [1, 2, 17, 3000])
    def test_any_width(self, n_features: int) -> None:
        rows = numbers(self.dtype, 200, n_features)
        self.check_well(folded(self.near(rows), rows[:7], rows[7:]), rows, 2e-6 if self.precision == "float32" else 1e-12)

    def test_a_scale_divides_the_columns(self) -> None:
        rows = numbers("float64", 4000, 20)
        scale = np.random.default_rng(0).uniform(0.1, 10, 20)
        one = folded(self.near(rows, scale), rows[:700], rows[700:])
        mean, rest = centred(rows)
        expected = self.second_reference(rest / scale)
        assert np.abs(one.products - expected).max() <= 10 * one.tolerance * np.linalg.norm(expected, axis=0).max()
        np.testing.assert_allclose(one.mean, mean.astype(float), rtol=1e-6 if self.precision == "float32" else 1e-13)
        assert bits(one.copy()) == bits(one)

    def test_products_are_taken_without_a_copy(self) -> None:
        one = folded(self.make(5), numbers(self.dtype))
        expected, sums = one.products, one._sums
        assert one.products.tobytes() == expected.tobytes()  # asking changes nothing
        assert one.take() is sums
        np.testing.assert_array_equal(sums, expected)

    def test_sums_that_overflow_are_told_apart(self) -> None:
        with pytest.raises(DataError, match="overflow"):
            folded(self.make(1), np.full((4, 1), 1.7e308) * [[1], [-1], [1], [-1]])


class TestFloat64(ProductsTests):
    @pytest.mark.parametrize("mean", [0, 1e8, -3e9])
    def test_a_large_mean_costs_no_accuracy(self, mean: float) -> None:
        rows = np.random.default_rng(0).normal(size=(9000, 8)) * np.linspace(1, 2, 8) + mean
        self.check_well(folded(self.near(rows), *np.split(rows, 9)), rows, 1e-12)


class TestFloat32(ProductsTests):
    dtype = "float32"
    precision = "float32"

    @pytest.mark.parametrize("mean", [0, 1e4, 1e6])
    def test_a_large_mean_costs_no_accuracy(self, mean: float) -> None:
        rows = (np.random.default_rng(0).normal(size=(9000, 8)) * np.linspace(1, 2, 8) + mean).astype(np.float32)
        self.check_well(folded(self.near(rows), *np.split(rows, 9)), rows, 1e-6)


class TestFloat32Sums(ProductsTests):
    dtype = "float32"
    precision = "float32"
    sums = "float32"
