from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streampca.errors import DataError
from streampca.statistics import Scatter
from streampca.statistics.scatter import state_bytes, workspace_bytes
from tests.statistics.conformance import StatisticTests, bits, centred, folded, numbers


def spectrum(scatter: Any) -> np.ndarray:
    return np.linalg.eigvalsh(np.asarray(scatter, np.float64))


def spectrum_reference(rows: np.ndarray) -> np.ndarray:
    _, rest = centred(rows)
    return spectrum(rest.T @ rest)


class ScatterTests(StatisticTests):
    def second(self, statistic: Scatter) -> np.ndarray:
        return statistic.scatter

    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray:
        return centred_rows.T @ centred_rows

    def scale(self, second: np.ndarray) -> np.ndarray:
        deviations = np.sqrt(second.diagonal())
        return deviations[:, None] * deviations

    @pytest.mark.parametrize("n_features", [1, 2, 7, 1000])
    def test_bytes_are_known_without_making_one(self, n_features: int) -> None:
        one = self.make(n_features)
        assert state_bytes(n_features) == one.nbytes
        assert workspace_bytes(n_features, one.precision) == one.workspace(10**6)

    @pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
    @pytest.mark.parametrize("n_features", [1, 2, 3, 130])
    def test_any_width(self, n_features: int, dtype: str) -> None:
        rows = numbers(dtype, 2500, n_features)
        self.check_rows(folded(self.make(n_features), rows), rows)

    def test_it_is_symmetric(self) -> None:
        one = folded(self.make(40), *np.split(numbers(self.dtype, 9000, 40), [3, 4000]))
        np.testing.assert_array_equal(one.scatter, one.scatter.T)

    def test_products_that_overflow_float64_are_told_apart(self) -> None:
        with pytest.raises(DataError, match="overflow"):
            folded(self.make(1), np.full((4, 1), 1.7e308) * [[1], [-1], [1], [-1]])


class TestFloat64(ScatterTests):
    def make(self, n_features: int) -> Scatter:
        return Scatter(n_features)

    @pytest.mark.parametrize("mean", [0, 1e8, -3e9])
    @pytest.mark.parametrize("block", [100, 2048, 10_000])
    def test_a_large_mean_costs_no_accuracy(self, mean: float, block: int) -> None:
        rows = np.random.default_rng(0).normal(size=(10_000, 8)) * np.linspace(1, 2, 8) + mean
        one = folded(self.make(8), *np.split(rows, range(block, 10_000, block)))
        np.testing.assert_allclose(spectrum(one.scatter), spectrum_reference(rows), rtol=1e-12)
        self.check_rows(one, rows, 1e-13)

    def test_float32_with_a_large_mean(self) -> None:
        rows = (np.random.default_rng(0).normal(size=(10_000, 8)) + 1e6).astype(np.float32)
        np.testing.assert_allclose(spectrum(folded(self.make(8), rows).scatter), spectrum_reference(rows), rtol=1e-12)


class TestFloat32(ScatterTests):
    dtype = "float32"
    weighted_tolerance = 1e-12  # rows with weights are always multiplied in float64

    def make(self, n_features: int) -> Scatter:
        return Scatter(n_features, "float32")

    @pytest.mark.parametrize("mean", [0, 1e4, 1e6])
    def test_a_large_mean_costs_no_accuracy(self, mean: float) -> None:
        rows = (np.random.default_rng(0).normal(size=(20_000, 8)) * np.linspace(1, 2, 8) + mean).astype(np.float32)
        one = folded(self.make(8), *np.split(rows, range(3000, 20_000, 3000)))
        np.testing.assert_allclose(spectrum(one.scatter), spectrum_reference(rows), rtol=1e-7)

    @pytest.mark.parametrize("size", [1e19, 1e-22, 3e38, 1e-37])
    def test_the_ends_of_the_range(self, size: float) -> None:
        rows = (np.random.default_rng(0).uniform(-1, 1, size=(5000, 4)) * size).astype(np.float32)
        one = folded(self.make(4), *np.split(rows, [7, 2100]))
        self.check_rows(one, rows, 1e-12)

    def test_columns_of_very_different_size(self) -> None:
        sizes = np.array([1e19, 1, 1e-22, 0, 1e-30], np.float32)
        rows = np.random.default_rng(0).normal(size=(5000, 5)).astype(np.float32) * sizes + sizes
        self.check_rows(folded(self.make(5), *np.split(rows, [7, 2100])), rows)

    @pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float64", "longdouble"])
    def test_what_float32_cannot_hold_is_done_in_float64(self, dtype: str) -> None:
        rows = numbers(dtype, 5000)
        self.check_rows(folded(self.make(5), rows), rows, 1e-12)

    @pytest.mark.parametrize("kind", ["int16", "mean 3e4", "mean 1e5", "two values"])
    def test_repeated_values_leave_no_bias(self, kind: str) -> None:
        """Squares of multiples of a unit are rounded in one direction, which would not average out (2e-6 before)."""
        rng = np.random.default_rng(0)
        kinds: dict[str, Any] = {
            "int16": lambda: np.rint(rng.normal(size=(40_960, 8)) * 300).astype(np.int16),
            "mean 3e4": lambda: (rng.normal(size=(40_960, 8)) + 3e4).astype(np.float32),
            "mean 1e5": lambda: (rng.normal(size=(40_960, 8)) + 1e5).astype(np.float32),
            "two values": lambda: np.where(rng.random((40_960, 8)) < 0.3, 0.1, 0.7).astype(np.float32),
        }
        rows = kinds[kind]()
        one, reference = (folded(make, *np.split(rows, 10)) for make in (self.make(8), Scatter(8)))
        np.testing.assert_allclose(spectrum(one.scatter), spectrum(reference.scatter), rtol=1e-7)

    def test_numbers_of_any_value_are_multiplied_in_float32(self) -> None:
        rows = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
        assert (folded(self.make(8), rows).scatter != folded(Scatter(8), rows).scatter).any()

    def test_counts_and_flags_are_exact(self) -> None:
        rows = np.random.default_rng(0).integers(0, 4, size=(5000, 6)).astype(np.uint8)
        self.check_rows(folded(self.make(6), rows), rows, 1e-12)

    def test_narrow_and_wide_blocks_in_one_fold(self) -> None:
        rows = numbers("float32", 6000)
        mixed = folded(self.make(5), rows[:2000], rows[2000:4000].astype(np.float64), rows[4000:])
        self.check_rows(mixed, rows)

    def test_precision_survives(self) -> None:
        one = folded(self.make(5), numbers("float32"))
        assert one.fresh().precision == one.copy().precision == "float32"
        assert bits(one) != bits(folded(Scatter(5), numbers("float32")))


@pytest.mark.parametrize("kind", ["zero-inflated", "mostly zero", "zeros and an offset", "zeros, then far away"])
def test_one_common_value_keeps_float32_products(kind: str) -> None:
    rng = np.random.default_rng(3)
    share = 0.02 if kind == "mostly zero" else 0.2
    rows = np.where(rng.random((60_000, 8)) < share, np.abs(rng.standard_normal((60_000, 8))) + 0.1, 0.0)
    if kind == "zeros and an offset":
        rows = 1000 * rows + 0.1
    if kind == "zeros, then far away":
        rows[30_000:] += 1e4
    rows = rows.astype(np.float32)
    one, exact = Scatter(8, "float32"), Scatter(8)
    for start in range(0, len(rows), 8192):
        one.update(rows[start : start + 8192])
        exact.update(rows[start : start + 8192])
    assert one._repeats is not None
    assert not one._repeats.few
    size = np.sqrt(np.outer(exact.scatter.diagonal(), exact.scatter.diagonal()))
    assert (np.abs(one.scatter - exact.scatter) <= 1e-6 * size).all()
