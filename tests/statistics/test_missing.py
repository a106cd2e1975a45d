from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca.errors import DataError, NonFiniteError
from streampca.memory import KIB
from streampca.statistics.missing import Missing, state_bytes, workspace_bytes
from streampca.statistics.observed import ObservedMoments
from streampca.statistics.posterior import Posterior, packed_size, parts, strip_rows, sweep, unpack
from tests.statistics.conformance import DTYPES, FLOATS, bits, cut, folded, folded_weighted, numbers, quick, tables, thorough


def parameters(d: int, r: int, seed: int = 0, per_feature: bool = True) -> tuple[np.ndarray, np.ndarray, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(d, r)), rng.normal(size=d), rng.uniform(0.5, 2, d) if per_feature else 0.7


def with_holes(rows: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    rows = rows.copy()
    rows[np.random.default_rng(seed).random(rows.shape) < share] = np.nan
    return rows


def reference(rows: np.ndarray, W: np.ndarray, mean: np.ndarray, noise: Any, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """The sums, row by row, from dense Gaussian formulas."""
    d, r = W.shape
    psi = np.broadcast_to(noise, d)
    grams, products, squares = np.zeros((d, r + 1, r + 1)), np.zeros((d, r + 1)), np.zeros(d)
    total, loglike, skipped = np.zeros((r + 1, r + 1)), 0.0, 0.0
    for row, w in zip(rows.astype(np.float64), np.ones(len(rows)) if weights is None else weights, strict=True):
        o = ~np.isnan(row)
        if not o.any():
            skipped += w
            continue
        x, Wo = row[o] - mean[o], W[o]
        C = Wo @ Wo.T + np.diag(psi[o])
        z = np.append(Wo.T @ np.linalg.solve(C, x), 1.0)
        second = np.outer(z, z)
        second[:r, :r] += np.eye(r) - Wo.T @ np.linalg.solve(C, Wo)
        grams[o] += w * second
        products[o] += w * np.outer(x, z)
        squares[o] += w * x**2
        total += w * second
        loglike -= w * 0.5 * (o.sum() * np.log(2 * np.pi) + np.linalg.slogdet(C)[1] + x @ np.linalg.solve(C, x))
    return {
        "gram": grams,
        "products": products,
        "squares": squares,
        "total": total,
        "loglike": np.array(loglike),
        "skipped": np.array(skipped),
    }


def sums(one: Missing) -> dict[str, np.ndarray]:
    return {
        "gram": one.gram(slice(None)),
        "products": one.products,
        "squares": one.squares,
        "total": unpack(one.total, one.n_components + 1),
        "loglike": np.array(one.loglike),
        "skipped": np.array(one.skipped),
    }


def check(found: Missing, expected: dict[str, np.ndarray], tolerance: float = 1e-11) -> None:
    for name, array in sums(found).items():
        wanted = expected[name]
        assert np.abs(array - wanted).max(initial=0) <= tolerance * max(np.abs(wanted).max(initial=0), found.count), name


# ------------------------------------------------------------------------------------------------ against dense formulas


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.8, 1.0])
@pytest.mark.parametrize(("d", "r"), [(1, 1), (4, 1), (6, 3), (5, 5), (40, 30)])
@pytest.mark.parametrize("per_feature", [True, False])
def test_the_sums_are_those_of_a_loop_over_rows(d: int, r: int, share: float, per_feature: bool) -> None:
    W, mean, noise = parameters(d, r, per_feature=per_feature)
    rows = with_holes(numbers("float64", 60, d), share)
    check(folded(Missing(W, mean, noise), rows[:17], rows[17:]), reference(rows, W, mean, noise))


def test_weights_multiply_the_rows() -> None:
    W, mean, noise = parameters(5, 2)
    rows, weights = with_holes(numbers("float64", 80), 0.3), np.random.default_rng(1).uniform(0, 3, 80)
    rows[:10] = np.nan
    check(
        folded_weighted(Missing(W, mean, noise), (rows[:9], weights[:9]), (rows[9:], weights[9:])), reference(rows, W, mean, noise, weights)
    )


def test_a_complete_row_gives_the_same_either_way() -> None:
    W, mean, noise = parameters(8, 3)
    x = numbers("float64", 50, 8)
    one, other = Missing(W, mean, noise), Missing(W, mean, noise)
    posterior = Posterior(W, noise)
    one._add_complete(posterior, x, np.ones(50))
    other._add_partial(posterior, x, np.ones_like(x), np.ones(50))
    check(one, sums(other), 1e-13)


@pytest.mark.parametrize("r", [1, 3, 24])
def test_sweeping_inverts_and_solves(r: int) -> None:
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(7, r, r + 2))
    A = roots @ roots.swapaxes(1, 2)
    b = rng.normal(size=(7, r))
    full = np.zeros((7, r + 1, r + 1))
    full[:, :r, :r], full[:, r, :r], full[:, :r, r] = A, b, b
    i, j = np.tril_indices(r + 1)
    packed = np.ascontiguousarray(full[:, i, j].T)
    determinants = sweep(packed, r)
    np.testing.assert_allclose(determinants, np.linalg.slogdet(A)[1], rtol=1e-10)
    swept = unpack(packed.T, r + 1)
    np.testing.assert_allclose(-swept[:, :r, :r], np.linalg.inv(A), rtol=1e-8, atol=1e-9 * np.abs(np.linalg.inv(A)).max())
    np.testing.assert_allclose(swept[:, r, :r], np.linalg.solve(A, b[:, :, None])[:, :, 0], rtol=1e-7, atol=1e-9)


def test_both_ways_to_invert_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    W, mean, noise = parameters(20, 6)
    rows = with_holes(numbers("float64", 100, 20), 0.4)
    one = folded(Missing(W, mean, noise), rows)
    monkeypatch.setattr("streampca.statistics.posterior.SWEEP_LIMIT", 0)
    check(folded(Missing(W, mean, noise), rows), sums(one), 1e-12)


@pytest.mark.parametrize("offset", [1e6, -1e9])
def test_a_large_offset_does_no_harm(offset: float) -> None:
    W, mean, noise = parameters(5, 2)
    rows = np.round(with_holes(numbers("float64", 200), 0.3) * 1024) / 1024  # so that adding the offset is exact
    mean = np.round(mean * 1024) / 1024
    check(folded(Missing(W, mean + offset, noise), rows + offset), sums(folded(Missing(W, mean, noise), rows)), 1e-13)


def test_little_noise_keeps_the_log_likelihood_accurate() -> None:
    rng = np.random.default_rng(0)
    W = rng.normal(size=(12, 2))
    rows = with_holes(rng.normal(size=(50, 2)) @ W.T + 1e-5 * rng.normal(size=(50, 12)), 0.2)
    one = folded(Missing(W, np.zeros(12), 1e-10), rows)
    exact = 0.0
    for row in rows:
        o = ~np.isnan(row)
        U, s, _ = np.linalg.svd(W[o])
        values = np.full(o.sum(), 1e-10)
        values[: len(s)] += s**2
        exact -= 0.5 * (o.sum() * np.log(2 * np.pi) + np.log(values).sum() + ((U.T @ row[o]) ** 2 / values).sum())
    assert one.loglike == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(dtype: str) -> None:
    rows = numbers(dtype)
    if np.dtype(dtype).kind == "f":
        rows = with_holes(rows, 0.2)
    scale = max(float(np.abs(np.nan_to_num(rows.astype(np.float64))).max()), 1.0)
    W, mean, noise = parameters(5, 2)
    W, mean, noise = W * scale, mean * scale, noise * scale**2
    found, expected = sums(folded(Missing(W, mean, noise), rows)), reference(rows, W, mean, noise)
    for name, array in found.items():
        assert np.abs(array - expected[name]).max() <= 1e-11 * max(np.abs(expected[name]).max(), 1)


# ------------------------------------------------------------------------------------------------------------ the laws


@st.composite
def tables_with_holes(draw: st.DrawFn) -> np.ndarray:
    rows = draw(tables("float64"))
    rows -= rows.mean(axis=0)
    rows /= max(float(np.abs(rows).max()), 1e-3)
    return with_holes(rows, draw(st.sampled_from([0.0, 0.05, 0.5, 0.95])), draw(st.integers(0, 1000)))


def make(d: int) -> Missing:
    return Missing(*parameters(d, 2))


KINDS: list[Any] = [make, ObservedMoments]


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(data=st.data())
def test_a_fresh_one_is_the_identity_of_merge(kind: Any, data: st.DataObject) -> None:
    rows = data.draw(tables_with_holes())
    one = folded(kind(rows.shape[1]), rows)
    expected = bits(one)
    one.merge(one.fresh())
    assert bits(one) == expected
    fresh = one.fresh()
    fresh.merge(one)
    assert bits(fresh) == expected
    assert bits(one) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_empty_with_empty_is_empty(kind: Any) -> None:
    empty = kind(3)
    expected = bits(empty)
    empty.merge(kind(3))
    assert bits(empty) == expected


@thorough
@given(data=st.data())
def test_any_split_and_any_merge_tree_agree(data: st.DataObject) -> None:
    rows = data.draw(tables_with_holes())
    empty = make(rows.shape[1])
    shards = cut(rows, data.draw(st.lists(st.integers(0, 40), max_size=6)))
    states = [folded(empty, *cut(shard, data.draw(st.lists(st.integers(0, 40), max_size=4)))) for shard in shards]
    while len(states) > 1:
        first = states.pop(data.draw(st.integers(0, len(states) - 1)))
        states[data.draw(st.integers(0, len(states) - 1))].merge(first)
    check(states[0], sums(folded(empty, rows)), states[0].tolerance)
    check(states[0], reference(rows, *parameters(rows.shape[1], 2)))


@quick
@given(data=st.data())
def test_a_whole_weight_is_so_many_equal_rows(data: st.DataObject) -> None:
    rows = data.draw(tables_with_holes())
    weights = np.random.default_rng(data.draw(st.integers(0, 100))).integers(0, 4, len(rows)).astype(float)
    repeated = np.repeat(rows, weights.astype(int), axis=0)
    check(folded_weighted(make(rows.shape[1]), (rows, weights)), sums(folded(make(rows.shape[1]), repeated)))


@pytest.mark.parametrize("kind", KINDS)
@quick
@given(data=st.data())
def test_arrays_and_pickles_keep_every_bit(kind: Any, data: st.DataObject) -> None:
    rows = data.draw(tables_with_holes())
    one = folded(kind(rows.shape[1]), rows)
    before = rows.tobytes()
    assert bits(type(one).from_arrays(one.to_arrays())) == bits(one)
    again = pickle.loads(pickle.dumps(one))
    assert bits(again) == bits(one)
    again.merge(one)
    twice = one.copy()
    twice.merge(one)
    assert bits(again) == bits(twice)
    assert rows.tobytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_the_blueprint_makes_one_that_goes_on(kind: Any) -> None:
    one, rows = kind(5), with_holes(numbers("float64"), 0.2)
    maker = pickle.loads(pickle.dumps(one.blueprint()))
    assert bits(maker()) == bits(one)
    assert bits(folded(maker(), rows)) == bits(folded(one, rows))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_order_makes_no_difference(kind: Any, dtype: str) -> None:
    rows = with_holes(numbers(dtype, 3000, 30), 0.1)
    expected = bits(folded(kind(30), rows))
    wide = np.zeros((6000, 90), dtype)
    wide[::2, 1::3] = rows
    frozen = rows.copy()
    frozen.flags.writeable = False
    for given_rows in (np.asfortranarray(rows), wide[::2, 1::3], np.ascontiguousarray(rows[::-1])[::-1], frozen):
        assert bits(folded(kind(30), given_rows)) == expected
        np.testing.assert_array_equal(given_rows, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_without_rows_changes_nothing(kind: Any) -> None:
    for one in (kind(5), folded(kind(5), with_holes(numbers("float64"), 0.2))):
        before = bits(one)
        one.update(np.empty((0, 5)))
        one.update(np.empty((0, 5)), np.empty(0))
        assert bits(one) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_released_one_goes_on(kind: Any) -> None:
    first, second = (with_holes(numbers("float64", seed=seed), 0.2) for seed in (0, 1))
    one, other = folded(kind(5), first), folded(kind(5), first, second)
    one.release()
    one.update(second)
    assert bits(one) == bits(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (17, 39), (4001, 39)])
def test_infinite_entries_are_found_among_missing_ones(kind: Any, dtype: str, value: float, row: int, column: int) -> None:
    rows = with_holes(numbers(dtype, 4100, 40), 0.1)
    rows[row, column] = value
    rows[row + 1 :: 7, ::11] = value
    with pytest.raises(NonFiniteError) as caught:
        folded(kind(40), rows)
    assert (caught.value.row, caught.value.column) == (row, column)
    assert caught.value.value == value


@pytest.mark.parametrize("kind", KINDS)
def test_values_whose_squares_overflow_are_refused(kind: Any) -> None:
    with pytest.raises(DataError, match="overflow float64: rescale"):
        folded(kind(2), np.array([[1e200, 1.0], [-1e200, np.nan]]))


# -------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "r"), [((100, 300), 2), ((50_000, 3), 2), ((2500, 700), 10), ((700, 200), 40), ((5000, 40), 30)])
def test_memory_is_bounded(shape: tuple[int, int], r: int, dtype: str, share: float) -> None:
    rows = with_holes(numbers(dtype, *shape), share)
    empty = Missing(*parameters(shape[1], r))
    folded(empty, rows[:50])
    allowed = empty.nbytes + empty.workspace(len(rows)) + 64 * KIB
    assert (empty.nbytes, empty.workspace(1)) == (state_bytes(shape[1], r), workspace_bytes(shape[1], r))
    tracemalloc.start()
    try:
        one = folded(empty, rows)
        assert tracemalloc.get_traced_memory()[1] <= allowed
        one.release()
        assert tracemalloc.get_traced_memory()[0] <= one.nbytes + 64 * KIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(100, 300), (50_000, 3), (2500, 700)])
def test_memory_of_moments_is_bounded(shape: tuple[int, int]) -> None:
    rows, empty = with_holes(numbers("float64", *shape), 0.2), ObservedMoments(shape[1])
    folded(empty, rows[:50])
    tracemalloc.start()
    try:
        folded(empty, rows)
        assert tracemalloc.get_traced_memory()[1] <= empty.nbytes + empty.workspace(len(rows)) + 64 * KIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_nbytes_is_that_of_the_arrays(kind: Any) -> None:
    one = folded(kind(7), with_holes(numbers("float64", n_features=7), 0.2))
    assert one.nbytes == one.fresh().nbytes == sum(array.nbytes for array in one.to_arrays().values() if array.ndim)


# ------------------------------------------------------------------------------------------------------------- strips


def test_every_row_is_in_one_part() -> None:
    rows = with_holes(numbers("float64", 500, 6), 0.1)
    seen = np.zeros(500)
    for part in parts(rows, np.zeros(6), 64):
        seen[part.rows] += 1
        np.testing.assert_array_equal(part.x, np.nan_to_num(rows[part.rows]))
        if part.seen is not None:
            np.testing.assert_array_equal(part.seen, ~np.isnan(rows[part.rows]))
        else:
            assert not np.isnan(rows[part.rows]).any()
    assert (seen == 1).all()


@pytest.mark.parametrize(("d", "r"), [(1, 1), (200, 10), (100_000, 50)])
def test_strips_are_bounded(d: int, r: int) -> None:
    assert 64 <= strip_rows(d, r) <= 4096


def test_packed_triangles() -> None:
    A = np.arange(16.0).reshape(4, 4)
    A = A + A.T
    assert packed_size(4) == 10
    np.testing.assert_array_equal(unpack(A[np.tril_indices(4)], 4), A)


# ------------------------------------------------------------------------------------------- moments of observed entries


@thorough
@given(data=st.data())
def test_moments_are_numpys(data: st.DataObject) -> None:
    rows = with_holes(data.draw(tables("float64")), data.draw(st.sampled_from([0.0, 0.3, 0.9])))
    weights = np.random.default_rng(data.draw(st.integers(0, 100))).integers(0, 4, len(rows)).astype(float)
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=4))
    states = [folded_weighted(ObservedMoments(rows.shape[1]), part) for part in zip(cut(rows, cuts), cut(weights, cuts), strict=True)]
    one = states.pop(data.draw(st.integers(0, len(states) - 1)))
    for other in states:
        one.merge(other)
    for column in range(rows.shape[1]):
        kept = ~np.isnan(rows[:, column])
        values = np.repeat(rows[kept, column], weights[kept].astype(int)).astype(np.longdouble)
        assert one.counts[column] == len(values)
        if not len(values):
            assert one.mean[column] == one.variance[column] == 0
            continue
        mean = values.mean()
        mean += (values - mean).mean()
        variance = ((values - mean) ** 2).mean()
        assert abs(one.mean[column] - mean) <= 1e-12 * np.sqrt(variance) + 4e-16 * abs(mean)
        assert abs(one.variance[column] - variance) <= 1e-11 * variance


def test_a_constant_column_has_no_variance_at_all() -> None:
    rows = with_holes(np.full((5000, 2), 1 / 3), 0.3)
    one = folded(ObservedMoments(2), rows[:70], rows[70:])
    assert not one.squares.any()
    np.testing.assert_array_equal(one.mean, [1 / 3, 1 / 3])
