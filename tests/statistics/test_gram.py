from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import DataError, NonFiniteError, UsageError
from streampca.memory import KIB
from streampca.statistics import gram
from streampca.statistics.gram import Gram, centre_rows, state_bytes, workspace_bytes
from tests.statistics.conformance import DTYPES, FLOATS, bits, cut, folded, numbers, quick, tables, thorough

PRECISIONS: list[Any] = ["float64", "float32"]
each_precision = pytest.mark.parametrize("precision", PRECISIONS)


def reference(rows: np.ndarray, standardize: bool = False) -> np.ndarray:
    """Products of samples in extended precision: each feature (row) is centred by itself."""
    exact = rows.astype(np.longdouble)
    exact -= exact.mean(axis=1, keepdims=True)
    exact -= exact.mean(axis=1, keepdims=True)
    if standardize:
        deviations = np.sqrt((exact**2).mean(axis=1, keepdims=True))
        exact /= np.where(deviations > 0, deviations, 1)
    return exact.T @ exact


def check(found: Gram, rows: np.ndarray, tolerance: float | None = None) -> None:
    """Compare with the reference, relative to the samples' own sizes; a feature's rounding is that of its largest deviation."""
    expected = reference(rows, found.standardize)
    sizes = np.sqrt(np.maximum(expected.diagonal(), expected.diagonal().mean()))
    error = np.abs(found.products - expected)
    tolerance = found.tolerance if tolerance is None else tolerance
    assert found.count == len(rows)
    assert (error <= tolerance * sizes[:, None] * sizes).all(), (error / np.maximum(sizes[:, None] * sizes, 1e-300)).max()


@quick
@given(data=st.data())
def test_a_fresh_one_is_the_identity_of_merge(data: st.DataObject) -> None:
    rows = data.draw(tables("float64"))
    one = folded(Gram(rows.shape[1]), rows)
    expected = bits(one)
    one.merge(one.fresh())
    assert bits(one) == expected
    fresh = one.fresh()
    fresh.merge(one)
    assert bits(fresh) == bits(one) == expected


@thorough
@given(data=st.data(), precision=st.sampled_from(PRECISIONS), standardize=st.booleans())
def test_any_split_and_any_merge_tree_agree(data: st.DataObject, precision: Any, standardize: bool) -> None:
    rows = data.draw(tables(precision))
    empty = Gram(rows.shape[1], standardize, precision)
    shards = cut(rows, data.draw(st.lists(st.integers(0, 40), max_size=6), label="shards"))
    states = [folded(empty, *cut(shard, data.draw(st.lists(st.integers(0, 40), max_size=4), label="blocks"))) for shard in shards]
    while len(states) > 1:
        first = states.pop(data.draw(st.integers(0, len(states) - 1), label="merge"))
        states[data.draw(st.integers(0, len(states) - 1), label="into")].merge(first)
    check(states[0], rows)
    whole = folded(empty, rows)
    sizes = np.sqrt(whole.products.diagonal())
    assert (np.abs(states[0].products - whole.products) <= whole.tolerance * (sizes[:, None] * sizes + sizes.max() ** 2)).all()


@quick
@given(data=st.data(), precision=st.sampled_from(PRECISIONS))
def test_arrays_and_pickles_keep_every_bit(data: st.DataObject, precision: Any) -> None:
    rows = data.draw(tables(precision))
    one = folded(Gram(rows.shape[1], precision == "float32", precision), rows)
    copies = [type(one).from_arrays(one.to_arrays()), pickle.loads(pickle.dumps(one)), one.copy()]
    for each in copies:
        assert bits(each) == bits(one)
        assert (each.precision, each.standardize) == (one.precision, one.standardize)
    other = one.copy()
    for each in (one, other):
        each.update(rows)
    assert bits(other) == bits(one)


def test_the_blueprint_is_small() -> None:
    one = Gram(3000, True, "float32")
    blueprint = pickle.dumps(one.blueprint())
    assert len(blueprint) < 300
    assert bits(pickle.loads(blueprint)()) == bits(one)


@each_precision
def test_a_pickle_holds_no_buffers(precision: Any) -> None:
    one = folded(Gram(5, False, precision), numbers("float32", 3000))
    assert len(pickle.dumps(one)) < one.nbytes + 1000


@pytest.mark.parametrize("dtype", DTYPES)
@each_precision
def test_every_dtype(precision: Any, dtype: str) -> None:
    rows = numbers(dtype, 40, 700)
    check(folded(Gram(700, False, precision), rows[:10], rows[:0], rows[10:]), rows)


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
@each_precision
def test_memory_order_makes_no_difference(precision: Any, dtype: str) -> None:
    rows = numbers(dtype, 400, 30)
    expected = bits(folded(Gram(30, True, precision), rows))
    wide = np.zeros((800, 90), dtype)
    wide[::2, 1::3] = rows
    frozen = rows.copy()
    frozen.flags.writeable = False
    for given_rows in (np.asfortranarray(rows), wide[::2, 1::3], frozen):
        before = given_rows.copy()
        assert bits(folded(Gram(30, True, precision), given_rows)) == expected
        np.testing.assert_array_equal(given_rows, before)


@pytest.mark.parametrize("n_samples", [1, 2, gram._PANEL - 1, gram._PANEL, gram._PANEL + 1, 2 * gram._PANEL + 3])
def test_any_number_of_samples(n_samples: int) -> None:
    rows = numbers("float64", 30, n_samples)
    one = folded(Gram(n_samples), rows)
    check(one, rows)
    np.testing.assert_array_equal(one.products, one.products.T)


@pytest.mark.parametrize("mean", [1e8, -3e9])
def test_a_large_mean_costs_no_accuracy(mean: float) -> None:
    rows = np.random.default_rng(0).normal(size=(300, 20)) * np.linspace(1, 2, 300)[:, None] + mean
    check(folded(Gram(20), rows), rows, 1e-13)


@pytest.mark.parametrize("mean", [1e4, 1e6])
def test_float32_with_a_large_mean(mean: float) -> None:
    rows = (np.random.default_rng(0).normal(size=(300, 20)) + mean).astype(np.float32)
    check(folded(Gram(20, False, "float32"), rows), rows)
    check(folded(Gram(20), rows), rows, 1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
@each_precision
def test_constant_features_are_exactly_zero(precision: Any, dtype: str) -> None:
    value = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else np.longdouble(1) / 3
    rows = np.full((3, 1000), value).astype(dtype)
    for standardize in (False, True):
        assert not folded(Gram(1000, standardize, precision), rows).products.any()


@each_precision
def test_standardised_features_count_alike(precision: Any) -> None:
    rows = numbers("float32", 500, 40) * np.logspace(-3, 3, 500, dtype=np.float32)[:, None]
    rows[7] = 3
    one = folded(Gram(40, True, precision), rows)
    check(one, rows, 1e-5 if precision == "float32" else 1e-12)
    assert one.products.trace() == pytest.approx(499 * 40, rel=1e-6)


def test_weights_are_refused() -> None:
    with pytest.raises(UsageError, match=r"weights.*solver='sketch' or 'covariance'"):
        Gram(5).update(numbers("float64"), np.ones(300))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (17, 39), (4001, 39)])
def test_what_is_not_finite_is_found(dtype: str, value: float, row: int, column: int) -> None:
    rows = numbers(dtype, 4100, 40)
    rows[row, column] = value
    with pytest.raises(NonFiniteError) as caught:
        folded(Gram(40), rows)
    assert (caught.value.row, caught.value.column) == (row, column)


@each_precision
def test_sums_that_overflow_are_told_apart(precision: Any) -> None:
    with pytest.raises(DataError, match="overflow"):
        folded(Gram(4, False, precision), np.array([[1.7e308, -1.7e308, 1.7e308, -1.7e308]]))


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "longdouble"])
@pytest.mark.parametrize("shape", [(3000, 10), (500, 700), (30, 1500)])
@pytest.mark.parametrize("layout", ["C", "F"])
@each_precision
def test_memory_is_bounded(precision: Any, layout: Any, shape: tuple[int, int], dtype: str) -> None:
    rows = np.asarray(numbers(dtype, 500, shape[1]), order=layout) if shape[0] == 500 else np.zeros(shape, dtype, order=layout)
    empty = Gram(shape[1], True, precision)
    folded(empty, rows[:50])
    tracemalloc.start()
    try:
        one = folded(empty, rows)
        borrowed = gram.strip_rows(shape[1], precision) * shape[1] * np.dtype(precision).itemsize  # mapped, which is not traced
        allowed = one.nbytes + one.workspace(len(rows)) - borrowed + 64 * KIB
        assert tracemalloc.get_traced_memory()[1] <= allowed
        one.release()
        assert tracemalloc.get_traced_memory()[0] <= one.nbytes + 64 * KIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n_samples", [1, 7, 1000])
@each_precision
def test_bytes_are_known_without_making_one(precision: Any, n_samples: int) -> None:
    one = Gram(n_samples, False, precision)
    assert one.nbytes == state_bytes(n_samples) == sum(array.nbytes for array in one.to_arrays().values() if array.ndim)
    assert one.workspace(10**6) == workspace_bytes(n_samples, precision)


def test_means_and_deviations_of_rows() -> None:
    rows = numbers("float64", 50, 30) + 1e8
    out = np.empty_like(rows)
    means, deviations = centre_rows(rows, out)
    exact = rows.astype(np.longdouble)
    np.testing.assert_allclose(means, exact.mean(axis=1).astype(float), rtol=1e-15)
    np.testing.assert_allclose(deviations, exact.std(axis=1).astype(float), rtol=1e-13)
    assert np.abs(out.mean(axis=1)).max() < 1e-14
