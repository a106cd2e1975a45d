"""The laws that every statistic keeps (streampca/statistics/base.py), tested by one suite that each class subclasses."""

from __future__ import annotations

import pickle
import tracemalloc
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streampca.errors import DataError, NonFiniteError
from streampca.memory import KIB
from streampca.statistics import Statistic

FLOATS = ["float16", "float32", "float64", "longdouble"]
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", *FLOATS]

# Hypothesis minds that several classes run one test; each of them draws for itself here.
thorough = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
quick = settings(thorough, max_examples=40)


def bits(statistic: Statistic) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in statistic.to_arrays().items()}


def folded(empty: Statistic, *blocks: np.ndarray) -> Any:
    statistic = empty.fresh()
    for block in blocks:
        statistic.update(block)
    return statistic


def folded_weighted(empty: Statistic, *blocks: tuple[np.ndarray, np.ndarray]) -> Any:
    statistic = empty.fresh()
    for block, weights in blocks:
        statistic.update(block, weights)
    return statistic


def centred(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and centred rows in extended precision, by two passes."""
    exact = rows.astype(np.longdouble)
    mean = exact.mean(axis=0)
    mean += (exact - mean).mean(axis=0)
    return mean, exact - mean


def numbers(dtype: Any, n_rows: int = 300, n_features: int = 5, seed: int = 0) -> np.ndarray:
    """Rows of any dtype, with correlated columns and means that are not zero."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, n_features)) @ rng.normal(size=(n_features, n_features)) + np.arange(n_features)
    if dtype.kind == "b":
        return rows > 0
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        part = np.clip(rows / 16 + (0.5 if dtype.kind == "u" else 0), -0.9, 0.9)
        return (part * min(float(limits.max), 2.0**52)).clip(min=limits.min).astype(dtype)
    return (rows + rng.normal(size=rows.shape) * 1e-3).astype(dtype)


@st.composite
def tables(draw: st.DrawFn, dtype: str, max_rows: int = 40) -> np.ndarray:
    """Tables as they occur: any offset and scale, sorted, repeated, with constant columns."""
    shape = draw(st.tuples(st.integers(1, max_rows), st.integers(1, 5)))
    seed = draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        rows = draw(hnp.arrays(np.int16, shape, elements=st.integers(-100, 100))).astype(np.float64)
    else:
        rows = np.random.default_rng(seed).normal(size=shape)
    rows = rows * 10.0 ** draw(st.integers(-3, 3)) + draw(st.sampled_from([0.0, 1.0, -1e3, 1e6] + [1e8] * (dtype == "float64")))
    kind = draw(st.sampled_from(["as is", "sorted", "walk", "constant column", "repeated"]))
    if kind == "sorted":
        rows.sort(axis=0)
    elif kind == "walk":
        rows = rows.cumsum(axis=0)
    elif kind == "constant column":
        rows[:, draw(st.integers(0, shape[1] - 1))] = rows[0, 0]
    elif kind == "repeated":
        rows[:] = rows[0]
    return rows.astype(dtype)


@st.composite
def weighted_tables(draw: st.DrawFn, dtype: str, whole: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Tables and weights of their rows, many of them 0 but not all; whole numbers if asked for."""
    rows = draw(tables(dtype))
    weights = draw(hnp.arrays(np.float64, len(rows), elements=st.integers(0, 5).map(float)))
    weights[draw(st.integers(0, len(rows) - 1))] += 1
    if not whole:
        weights *= np.random.default_rng(draw(st.integers(0, 2**32 - 1))).uniform(0.1, 3.0, len(rows))
    return rows, weights


def cut(rows: np.ndarray, at: list[int]) -> list[np.ndarray]:
    return np.split(rows, sorted(n % (len(rows) + 1) for n in at))  # parts without rows occur too


class StatisticTests(ABC):
    dtype = "float64"  # of the rows in the property tests
    weighted_tolerance: float | None = None  # that of the statistic, if not given

    @abstractmethod
    def make(self, n_features: int) -> Any: ...

    @abstractmethod
    def second(self, statistic: Any) -> np.ndarray:
        """What was accumulated of second order."""

    @abstractmethod
    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray: ...

    @abstractmethod
    def scale(self, second: np.ndarray) -> np.ndarray:
        """The natural size of each entry of it."""

    def check(self, found: Any, count: float, mean: np.ndarray, second: np.ndarray, tolerance: float | None = None) -> None:
        tolerance = found.tolerance if tolerance is None else tolerance
        assert found.count == count
        variances = (second if second.ndim == 1 else second.diagonal()) / (count or 1)
        assert (np.abs(found.mean - mean) <= tolerance * np.sqrt(variances) + 2 * np.finfo(np.float64).eps * np.abs(mean)).all()
        error = np.abs(self.second(found) - second)
        assert (error <= tolerance * self.scale(second)).all(), (error / np.maximum(self.scale(second), 1e-300)).max()

    def check_rows(self, found: Any, rows: np.ndarray, tolerance: float | None = None) -> None:
        mean, rest = centred(rows)
        self.check(found, len(rows), mean, self.second_reference(rest), tolerance)

    # ---------------------------------------------------------------------------------- the laws

    @quick
    @given(data=st.data())
    def test_a_fresh_one_is_the_identity_of_merge(self, data: st.DataObject) -> None:
        rows = data.draw(tables(self.dtype))
        one = folded(self.make(rows.shape[1]), rows)
        expected = bits(one)
        one.merge(one.fresh())
        assert bits(one) == expected
        fresh = one.fresh()
        fresh.merge(one)
        assert bits(fresh) == expected
        assert bits(one) == expected

    def test_empty_with_empty_is_empty(self) -> None:
        empty = self.make(3)
        expected = bits(empty)
        empty.merge(self.make(3))
        assert bits(empty) == expected
        assert empty.count == 0

    @thorough
    @given(data=st.data())
    def test_any_split_and_any_merge_tree_agree(self, data: st.DataObject) -> None:
        rows = data.draw(tables(self.dtype))
        empty = self.make(rows.shape[1])
        shards = cut(rows, data.draw(st.lists(st.integers(0, 40), max_size=6), label="shards"))
        states = [folded(empty, *cut(shard, data.draw(st.lists(st.integers(0, 40), max_size=4), label="blocks"))) for shard in shards]
        while len(states) > 1:
            first = states.pop(data.draw(st.integers(0, len(states) - 1), label="merge"))
            states[data.draw(st.integers(0, len(states) - 1), label="into")].merge(first)
        whole = folded(empty, rows)
        self.check(states[0], whole.count, whole.mean, self.second(whole))
        self.check_rows(states[0], rows)

    @quick
    @given(data=st.data())
    def test_arrays_and_pickles_keep_every_bit(self, data: st.DataObject) -> None:
        rows = data.draw(tables(self.dtype))
        one = folded(self.make(rows.shape[1]), rows)
        assert bits(type(one).from_arrays(one.to_arrays())) == bits(one)
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert bits(pickle.loads(pickle.dumps(one, protocol))) == bits(one)
        copy = type(one).from_arrays({name: array.copy() for name, array in one.to_arrays().items()})
        for each in (one, copy):
            each.update(rows)
        assert bits(copy) == bits(one)

    def test_a_copy_is_independent(self) -> None:
        one = folded(self.make(5), numbers(self.dtype))
        copy, before = one.copy(), bits(one)
        copy.merge(one)
        copy.update(numbers(self.dtype, seed=1))
        assert bits(one) == before
        assert copy.count == 3 * one.count

    def test_a_pickle_holds_no_buffers(self) -> None:
        one = folded(self.make(5), numbers(self.dtype, 3000))
        assert len(pickle.dumps(one)) < one.nbytes + 1000

    @pytest.mark.parametrize("n_features", [1, 3000])
    def test_the_blueprint_is_small(self, n_features: int) -> None:
        one = self.make(n_features)
        blueprint = pickle.dumps(one.blueprint())
        assert len(blueprint) < 300
        assert bits(pickle.loads(blueprint)()) == bits(one)
        assert type(pickle.loads(blueprint)()) is type(one)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_a_block_without_rows_changes_nothing(self, dtype: str) -> None:
        for one in (self.make(5), folded(self.make(5), numbers(self.dtype))):
            before = bits(one)
            one.update(np.empty((0, 5), dtype))
            assert bits(one) == before

    @pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
    def test_memory_order_makes_no_difference(self, dtype: str) -> None:
        rows = numbers(dtype, 4000, 30)
        expected = bits(folded(self.make(30), rows))
        wide = np.zeros((8000, 90), dtype)
        wide[::2, 1::3] = rows
        frozen = rows.copy()
        frozen.flags.writeable = False
        for given_rows in (np.asfortranarray(rows), wide[::2, 1::3], np.ascontiguousarray(rows[::-1])[::-1], frozen):
            before = given_rows.copy()
            assert bits(folded(self.make(30), given_rows)) == expected
            np.testing.assert_array_equal(given_rows, before)

    @quick
    @given(data=st.data())
    def test_inputs_are_left_as_they_are(self, data: st.DataObject) -> None:
        rows = data.draw(tables(self.dtype))
        before = rows.tobytes()
        one, other = folded(self.make(rows.shape[1]), rows), folded(self.make(rows.shape[1]), rows[: len(rows) // 2])
        assert rows.tobytes() == before
        kept = bits(other)
        one.merge(other)
        assert bits(other) == kept
        one.update(rows)  # and shares nothing with it afterwards
        assert bits(other) == kept

    # ---------------------------------------------------------------------------------- weights

    def check_same(self, found: Any, expected: Any, factor: float = 1.0) -> None:
        """Check two statistics of the same rows; ``factor``: one with all weights that much larger."""
        assert found.count == pytest.approx(factor * expected.count, rel=1e-13)
        second = factor * self.second(expected)
        self.check(found, found.count, expected.mean, second, self.weighted_tolerance)

    @thorough
    @given(data=st.data())
    def test_a_whole_weight_is_so_many_equal_rows(self, data: st.DataObject) -> None:
        rows, weights = data.draw(weighted_tables(self.dtype, whole=True))
        repeated = np.repeat(rows, weights.astype(int), axis=0)
        self.check_rows(folded_weighted(self.make(rows.shape[1]), (rows, weights)), repeated, self.weighted_tolerance)

    @quick
    @given(data=st.data())
    def test_rows_of_weight_0_count_for_nothing(self, data: st.DataObject) -> None:
        rows, weights = data.draw(weighted_tables(self.dtype))
        empty, kept = self.make(rows.shape[1]), weights > 0
        rows[~kept] = 3e7  # whatever is there
        self.check_same(folded_weighted(empty, (rows, weights)), folded_weighted(empty, (rows[kept], weights[kept])))
        before = folded(empty, rows)
        after = before.copy()
        after.update(rows, np.zeros(len(rows)))
        assert bits(after) == bits(before)

    @quick
    @given(data=st.data(), factor=st.sampled_from([1e-12, 0.3, 1.0, 7.0, 1e12]))
    def test_all_weights_times_a_number(self, data: st.DataObject, factor: float) -> None:
        rows, weights = data.draw(weighted_tables(self.dtype))
        one, other = (folded_weighted(self.make(rows.shape[1]), (rows, each)) for each in (weights, factor * weights))
        self.check_same(other, one, factor)

    @thorough
    @given(data=st.data())
    def test_any_split_and_merge_of_weighted_rows_agree(self, data: st.DataObject) -> None:
        rows, weights = data.draw(weighted_tables(self.dtype))
        empty = self.make(rows.shape[1])
        cuts = data.draw(st.lists(st.integers(0, 40), max_size=6), label="cuts")
        states = [folded_weighted(empty, part) for part in zip(cut(rows, cuts), cut(weights, cuts), strict=True)]
        while len(states) > 1:
            first = states.pop(data.draw(st.integers(0, len(states) - 1), label="merge"))
            states[data.draw(st.integers(0, len(states) - 1), label="into")].merge(first)
        whole = folded_weighted(empty, (rows, weights))
        self.check_same(states[0], whole)
        assert bits(type(whole).from_arrays(whole.to_arrays())) == bits(whole) == bits(pickle.loads(pickle.dumps(whole)))

    def test_blocks_with_and_without_weights_in_one_fold(self) -> None:
        rows = numbers(self.dtype, 900)
        one = folded(self.make(5), rows[:300])
        one.update(rows[300:600], np.full(300, 2.0))
        one.merge(folded(self.make(5), rows[600:]))
        self.check_rows(one, np.concatenate([rows, rows[300:600]]))

    def test_a_few_heavy_rows_among_many_far_away(self) -> None:
        rows = numbers("float64", 9000).astype(self.dtype)
        weights = np.full(9000, 1e-3 if self.dtype == "float32" else 1e-9)
        rows += np.asarray(3e6, self.dtype)
        rows[4000:4100] -= np.asarray(3e6, self.dtype)
        weights[4000:4100] = 2.0
        exact, w = rows.astype(np.longdouble), weights.astype(np.longdouble)
        mean = w @ exact / w.sum()
        mean += w @ (exact - mean) / w.sum()
        second = self.second_reference((exact - mean) * np.sqrt(w)[:, None])
        one = folded_weighted(self.make(5), *((rows[part], weights[part]) for part in (slice(7), slice(7, 6000), slice(6000, 9000))))
        assert one.count == pytest.approx(float(w.sum()), rel=1e-13)
        self.check(one, one.count, mean, second, self.weighted_tolerance)

    def test_constant_columns_are_exactly_zero_with_weights(self) -> None:
        rows = numbers(self.dtype, 5000)
        weights = np.random.default_rng(0).integers(0, 3, 5000) * 0.7
        rows[:, 1] = np.where(weights > 0, np.asarray(0.1, self.dtype), np.asarray(1e6, self.dtype))
        one = folded_weighted(self.make(5), (rows[:300], weights[:300]), (rows[300:], weights[300:]))
        assert not self.second(one)[1].any()
        assert one.mean[1] == np.float64(rows[weights > 0, 1][0])

    def test_weights_of_ones_are_no_weights(self) -> None:
        rows = numbers(self.dtype, 5000)
        one = folded_weighted(self.make(5), (rows, np.ones(5000)))
        self.check_rows(one, rows, self.weighted_tolerance)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_weights_with_every_dtype_and_memory_order(self, dtype: str) -> None:
        rows, weights = numbers(dtype, 700), np.arange(700.0) % 4
        frozen = rows.copy()
        frozen.flags.writeable = weights.flags.writeable = False
        one = folded_weighted(self.make(5), (frozen, weights))
        self.check_rows(one, np.repeat(rows, weights.astype(int), axis=0), self.weighted_tolerance)
        for same in (np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2]):
            assert bits(folded_weighted(self.make(5), (same, weights))) == bits(one)
        before = bits(one)
        one.update(rows[:0], weights[:0])
        assert bits(one) == before

    @pytest.mark.parametrize("row", [0, 17, 4097])
    @pytest.mark.parametrize("weight", [0.0, 2.0])
    def test_what_is_not_finite_is_found_in_weighted_rows(self, row: int, weight: float) -> None:
        rows, weights = numbers(self.dtype, 4100, 40), np.ones(4100)
        rows[row, 3] = rows[row + 1 :, 7] = np.nan
        weights[row] = weight
        for given_weights in (weights, 0 * weights):
            with pytest.raises(NonFiniteError) as caught:
                folded_weighted(self.make(40), (rows, given_weights))
            assert (caught.value.row, caught.value.column) == (row, 3)

    def test_weights_that_overflow(self) -> None:
        with pytest.raises(DataError, match="weights are so large that their sum overflows"):
            folded_weighted(self.make(5), (numbers(self.dtype, 4), np.full(4, 1e308)))

    @pytest.mark.parametrize("shape", [(100, 300), (100_000, 3), (2500, 700)])
    @pytest.mark.parametrize("dtype", ["int8", "float64"])
    def test_memory_is_bounded_with_weights(self, shape: tuple[int, int], dtype: str) -> None:
        rows, weights, empty = numbers(dtype, *shape), np.ones(shape[0]), self.make(shape[1])
        folded_weighted(empty, (rows[:50], weights[:50]))
        tracemalloc.start()
        try:
            folded_weighted(empty, (rows, weights))
            assert tracemalloc.get_traced_memory()[1] <= empty.nbytes + empty.workspace(len(rows)) + 64 * KIB
        finally:
            tracemalloc.stop()

    # ---------------------------------------------------------------------------------- memory

    @pytest.mark.parametrize("layout", ["C", "F"])
    @pytest.mark.parametrize("kind", ["numbers", "zeros"])
    @pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "longdouble"])
    @pytest.mark.parametrize("shape", [(100, 300), (100_000, 3), (2500, 700)])
    def test_memory_is_bounded(self, shape: tuple[int, int], dtype: str, kind: str, layout: Any) -> None:
        rows = np.asarray(np.zeros(shape, dtype) if kind == "zeros" else numbers(dtype, *shape), order=layout)
        empty = self.make(shape[1])
        folded(empty, rows[:50])  # what is imported or cached on first use
        allowed = empty.nbytes + empty.workspace(len(rows)) + 64 * KIB
        tracemalloc.start()
        try:
            one = folded(empty, rows)
            _, peak = tracemalloc.get_traced_memory()
            assert peak <= allowed, (peak, allowed)
            other = one.copy()
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            one.merge(other)
            assert tracemalloc.get_traced_memory()[1] - before <= empty.workspace(1) + 64 * KIB
            one.release()
            del other
            assert tracemalloc.get_traced_memory()[0] <= one.nbytes + 64 * KIB  # nothing is kept that a waiting state does not need
        finally:
            tracemalloc.stop()

    def test_nbytes_is_that_of_the_arrays(self) -> None:
        one = folded(self.make(7), numbers(self.dtype, n_features=7))
        assert one.nbytes == one.fresh().nbytes == sum(array.nbytes for array in one.to_arrays().values() if array.ndim)

    def test_a_released_one_goes_on(self) -> None:
        first, second = numbers(self.dtype), numbers(self.dtype, seed=1)
        one, other = folded(self.make(5), first), folded(self.make(5), first)
        one.release()
        assert bits(one) == bits(other)
        for each in (one, other):
            each.update(second)
        assert bits(one) == bits(other)

    # ---------------------------------------------------------------------------------- values

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_dtype(self, dtype: str) -> None:
        rows = numbers(dtype)
        self.check_rows(folded(self.make(5), rows[:100], rows[100:]), rows)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("sizes", [(1,), (1, 1, 5000, 3), (4000, 4000)])
    def test_constant_columns_are_exactly_zero(self, dtype: str, sizes: tuple[int, ...]) -> None:
        rows = numbers(dtype, sum(sizes), 4)
        rows[:, 1] = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.longdouble(1) / 3
        rows[:, 3] = 0
        one = folded(self.make(4), *np.split(rows, np.cumsum(sizes)[:-1]))
        other = folded(self.make(4), rows)
        other.merge(one)
        for each in (one, other):
            second = self.second(each)
            assert not second[1].any()
            assert not second[3].any()
            assert not np.atleast_2d(second)[:, [1, 3]].any()
            assert each.mean[3] == 0
            assert each.mean[1] == np.float64(rows[0, 1])

    def test_one_row(self) -> None:
        rows = numbers(self.dtype, 1)
        one = folded(self.make(5), rows)
        assert (one.count, one.mean.tolist()) == (1, rows[0].astype(np.float64).tolist())
        assert not self.second(one).any()

    @pytest.mark.parametrize("order", ["sorted", "random walk", "blocks far apart"])
    def test_rows_that_are_not_exchangeable(self, order: str) -> None:
        rows = numbers(self.dtype, 9000)
        if order == "sorted":
            rows.sort(axis=0)
        elif order == "random walk":
            rows = rows.cumsum(axis=0)
        else:
            rows += np.repeat([0, 1e5, -1e5], 3000).astype(self.dtype)[:, None]
        parts = np.split(rows, [10, 11, 3000, 6000, 8191])
        one = folded(self.make(5), *parts[:3])
        one.merge(folded(self.make(5), *parts[3:]))
        self.check_rows(one, rows)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize(("row", "column"), [(0, 0), (17, 39), (4001, 39)])
    def test_what_is_not_finite_is_found(self, dtype: str, value: float, row: int, column: int) -> None:
        rows = numbers(dtype, 4100, 40)
        rows[row, column] = value
        rows[row + 1 :: 7, ::11] = value
        with pytest.raises(NonFiniteError) as caught:
            folded(self.make(40), rows)
        assert (caught.value.row, caught.value.column) == (row, column)
        assert str(caught.value.value) == str(value)
