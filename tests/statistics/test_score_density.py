from __future__ import annotations

import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from streampca.memory import KIB
from streampca.statistics.gathered import Gathered
from streampca.statistics.row_summary import Frame, RowSummary
from streampca.statistics.score_density import GRID, ScoreDensity
from tests.statistics.conformance import bits, folded, folded_weighted, numbers

DEVIATIONS = np.array([2.0, 0.5])


def first_two(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows[:, :2] - rows.dtype.type(1))


def empty() -> ScoreDensity:
    return ScoreDensity(first_two, DEVIATIONS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_is_numpys_histogram(dtype: str) -> None:
    rows = numbers(dtype, 9000)
    found = folded(empty(), rows[:100], rows[100:])
    scores = first_two(rows).astype(np.float64)
    expected, *_ = np.histogram2d(scores[:, 0], scores[:, 1], bins=found.edges)
    np.testing.assert_array_equal(found.density, expected)
    assert (found.rows, found.count, found.outside) == (9000, 9000, 9000 - expected.sum())


def test_the_laws() -> None:
    rows, weights = numbers("float64", 600), np.arange(600.0) % 3
    whole = folded(empty(), rows)
    one, other = folded(empty(), rows[:250]), folded(empty(), rows[250:])
    other.merge(one)
    other.merge(empty())
    assert bits(other) == bits(whole) == bits(pickle.loads(pickle.dumps(whole))) == bits(ScoreDensity.from_arrays(whole.to_arrays()))
    assert bits(pickle.loads(pickle.dumps(whole.blueprint()))()) == bits(empty())
    repeated = folded(empty(), np.repeat(rows, weights.astype(int), axis=0))
    weighted = folded_weighted(empty(), (rows, weights))
    np.testing.assert_array_equal(weighted.density, repeated.density)
    assert (weighted.count, weighted.outside, weighted.rows) == (repeated.count, repeated.outside, 600)
    with pytest.raises(ValueError, match="not updated"):
        ScoreDensity.from_arrays(whole.to_arrays()).blueprint()


def test_one_score_and_no_variance() -> None:
    found = folded(ScoreDensity(np.negative, np.zeros(2)), np.ones((5, 1)))
    assert found.density[GRID // 2, GRID // 2] == 5


def test_memory_is_bounded() -> None:
    rows = numbers("float64", 50_000)
    one = empty()
    one.add(rows, rows[:, :2])
    tracemalloc.start()
    try:
        one.add(rows, rows[:, :2])
        assert tracemalloc.get_traced_memory()[1] <= one.workspace(len(rows)) + 64 * KIB
    finally:
        tracemalloc.stop()


def test_blocks_in_any_order_and_from_many_threads_give_the_same_bits() -> None:
    rows = numbers("float32", 5000, 6)
    rows[4321] += 90
    frame = Frame(rows.mean(axis=0, dtype=np.float64), np.ones(6), np.eye(6)[:2], np.ones(2), 9.2, 20.0)
    scores = ((rows - frame.mean) @ frame.components.T).astype(np.float32)
    expected = RowSummary(frame)
    for start in range(0, 5000, 50):
        expected.add(rows[start : start + 50], scores[start : start + 50])
    for seed in range(3):
        gathered = Gathered(RowSummary(frame))
        shards = np.random.default_rng(seed).permutation(20)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(partial(_add_shard, gathered, rows, scores), shards))
        found = gathered.complete(5000)
        assert found is not None
        assert bits(found) == bits(expected)
        assert found.outlying.row[0] == 4321


def _add_shard(gathered: Gathered[RowSummary], rows: np.ndarray, scores: np.ndarray, shard: int) -> None:
    for start in range(250 * shard, 250 * (shard + 1), 50):
        gathered.add(start, rows[start : start + 50], scores[start : start + 50])


def test_rows_that_were_not_seen() -> None:
    gathered = Gathered(empty())
    assert gathered.complete(10) is None
    gathered.add(0, np.ones((4, 2)), np.ones((4, 2)))
    gathered.add(6, np.ones((4, 2)), np.ones((4, 2)))
    assert gathered.complete(10) is None
    gathered.add(4, np.ones((2, 2)), np.ones((2, 2)))
    found = gathered.complete(10)
    assert found is not None
    assert found.rows == 10
