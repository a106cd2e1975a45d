from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from streampca.errors import NonFiniteError
from streampca.memory import KIB
from streampca.statistics.row_summary import OUTLYING, SAMPLE, Frame, RowSummary, bin_edges, row_keys
from streampca.statistics.score_density import GRID, REACH
from tests.statistics.conformance import DTYPES, bits, cut, folded, folded_weighted, numbers, quick, weighted_tables


def frame_of(rows: np.ndarray, k: int = 2, standardize: bool = False) -> Frame:
    """The model of the rows themselves, by NumPy's SVD."""
    exact = rows.astype(np.float64)
    mean = exact.mean(axis=0)
    scale = exact.std(axis=0, ddof=1) if standardize else np.ones(rows.shape[1])
    _, s, vt = np.linalg.svd((exact - mean) / scale, full_matrices=False)
    variances = s**2 / max(len(rows) - 1, 1)
    return Frame(mean, scale, vt[:k], variances[:k], float(stats.chi2.ppf(0.99, k)), max(3 * float(variances[k:].sum()), 1e-12))


def reference(rows: np.ndarray, frame: Frame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, T2 and SPE, row by row in extended precision."""
    centred = (rows.astype(np.longdouble) - frame.mean) / frame.scale
    scores = centred @ frame.components.T.astype(np.longdouble)
    residual = centred - scores @ frame.components
    t2 = (scores**2 / frame.explained_variance).sum(axis=1)
    return scores.astype(float), t2.astype(float), (residual**2).sum(axis=1).astype(float)


def same(found: RowSummary, expected: RowSummary) -> None:
    """Check two summaries of the same rows: rows on an edge may be counted on either side."""
    assert found.rows == expected.rows
    assert found.count == pytest.approx(expected.count, rel=1e-12)
    for name in ("density", "t2", "spe"):
        assert getattr(found, name).sum() == pytest.approx(getattr(expected, name).sum(), rel=1e-12)
        assert np.abs(getattr(found, name) - getattr(expected, name)).sum() <= 0.1 * expected.count + 1e-9
    for ours, theirs in zip(found.sample, expected.sample, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(float(np.abs(theirs).max(initial=0)), 1))
    np.testing.assert_allclose(found.outlying.excess, expected.outlying.excess, rtol=1e-4, atol=1e-6)


class TestLaws:
    def test_a_fresh_one_is_the_identity(self) -> None:
        rows = numbers("float64")
        one = folded(RowSummary(frame_of(rows)), rows)
        before = bits(one)
        one.merge(one.fresh())
        assert bits(one) == before
        empty = one.fresh()
        empty.merge(one)
        assert bits(empty) == before
        empty = one.fresh()
        empty.merge(one.fresh())
        assert bits(empty) == bits(one.fresh())

    @quick
    @given(data=st.data())
    def test_any_split_and_ordered_merge_agree(self, data: st.DataObject) -> None:
        rows = np.random.default_rng(data.draw(st.integers(0, 1000))).normal(size=(data.draw(st.integers(3, 60)), 4))
        empty = RowSummary(frame_of(rows))
        cuts = data.draw(st.lists(st.integers(0, 60), max_size=6))
        states = [folded(empty, part) for part in cut(rows, cuts)]
        while len(states) > 1:  # neighbours only: ``other`` follows
            left = data.draw(st.integers(0, len(states) - 2))
            states[left].merge(states.pop(left + 1))
        whole = folded(empty, rows)
        same(states[0], whole)
        np.testing.assert_array_equal(states[0].sample.row, whole.sample.row)
        # Rows that lie out equally far are told apart by rounding, which depends on the height of a block.
        np.testing.assert_array_equal(np.sort(states[0].outlying.row), np.sort(whole.outlying.row))

    @quick
    @given(data=st.data())
    def test_weights(self, data: st.DataObject) -> None:
        rows, weights = data.draw(weighted_tables("float64", whole=True))
        if len(rows) < 3 or rows.shape[1] < 2 or np.ptp(rows) == 0:
            return
        empty = RowSummary(frame_of(rows, 1))
        found = folded_weighted(empty, (rows, weights))
        repeated = folded(empty, np.repeat(rows, weights.astype(int), axis=0))
        assert found.rows == len(rows)
        assert found.count == repeated.count == weights.sum()
        np.testing.assert_allclose(np.sort(found.sample.weight), np.sort(repeated.sample.weight))
        assert set(found.sample.keys) == set(repeated.sample.keys)
        assert (weights[found.outlying.row] > 0).all()

    def test_arrays_and_pickles_keep_every_bit(self) -> None:
        rows = numbers("float64", 3000)
        one = folded(RowSummary(frame_of(rows)), rows)
        assert bits(RowSummary.from_arrays(one.to_arrays())) == bits(one) == bits(pickle.loads(pickle.dumps(one)))
        restored = RowSummary.from_arrays({name: array.copy() for name, array in one.to_arrays().items()})
        restored.merge(one)
        assert (restored.rows, one.rows) == (6000, 3000)
        with pytest.raises(ValueError, match="merged and read, not updated"):
            restored.blueprint()

    def test_the_blueprint_travels(self) -> None:
        rows = numbers("float64")
        one = RowSummary(frame_of(rows))
        assert bits(pickle.loads(pickle.dumps(one.blueprint()))()) == bits(one)
        assert one.nbytes == folded(one, rows).nbytes == sum(array.nbytes for array in one.to_arrays().values() if array.ndim)

    @pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
    def test_memory_order_makes_no_difference(self, dtype: str) -> None:
        rows = numbers(dtype, 4000, 30)
        empty = RowSummary(frame_of(rows))
        expected = bits(folded(empty, rows))
        wide = np.zeros((8000, 90), dtype)
        wide[::2, 1::3] = rows
        for each in (np.asfortranarray(rows), wide[::2, 1::3], np.ascontiguousarray(rows[::-1])[::-1]):
            before = each.copy()
            assert bits(folded(empty, each)) == expected
            np.testing.assert_array_equal(each, before)

    @pytest.mark.parametrize("dtype", ["int8", "float32", "float64", "longdouble"])
    @pytest.mark.parametrize("shape", [(100, 300), (100_000, 3), (2500, 700)])
    def test_memory_is_bounded(self, shape: tuple[int, int], dtype: str) -> None:
        rows = numbers(dtype, *shape)
        empty = RowSummary(frame_of(rows[:50]))
        folded(empty, rows[:50])
        tracemalloc.start()
        try:
            folded(empty, rows)
            assert tracemalloc.get_traced_memory()[1] <= empty.nbytes + empty.workspace(len(rows)) + 64 * KIB
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("row", [0, 17, 4097])
    def test_what_is_not_finite_is_found(self, row: int) -> None:
        rows = numbers("float64", 4100, 40)
        empty = RowSummary(frame_of(rows))
        rows[row, 3] = np.nan
        with pytest.raises(NonFiniteError) as caught:
            folded(empty, rows)
        assert (caught.value.row, caught.value.column) == (row, 3)


class TestValues:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("standardize", [False, True])
    def test_against_extended_precision(self, dtype: str, standardize: bool) -> None:
        rows = numbers(dtype, 900)
        frame = frame_of(rows, 2, standardize)
        one = folded(RowSummary(frame), rows[:300], rows[300:])
        scores, t2, spe = reference(rows, frame)
        sample = one.sample
        tolerance = 2e-4 if dtype == "float32" else 1e-7
        np.testing.assert_allclose(sample.t2, t2[sample.row], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(sample.spe, spe[sample.row], rtol=tolerance, atol=tolerance * spe.mean())
        np.testing.assert_allclose(sample.scores, scores[sample.row], atol=tolerance * np.abs(scores).max())
        excess = np.maximum(t2 / frame.t2_limit, spe / frame.spe_limit)
        np.testing.assert_allclose(one.outlying.excess, np.sort(excess)[::-1][:OUTLYING], rtol=10 * tolerance)
        np.testing.assert_allclose(excess[one.outlying.row], one.outlying.excess, rtol=10 * tolerance)
        assert one.density.sum() + one.outside == one.t2.sum() == one.spe.sum() == 900

    @pytest.mark.parametrize("whiten", [False, True])
    @pytest.mark.parametrize("dtype", ["int16", "float32", "float64"])
    def test_scores_that_the_model_has_given(self, dtype: str, whiten: bool) -> None:
        rows = numbers(dtype, 5000)
        frame = frame_of(rows, 2, standardize=True)
        deviations = np.sqrt(frame.explained_variance) if whiten else None
        scores, _, _ = reference(rows, frame)
        given = (scores if deviations is None else scores / deviations).astype("float32" if dtype == "float32" else "float64")
        one = RowSummary(replace(frame, whitening=deviations))
        one.add(rows, given)
        expected = folded(RowSummary(frame), rows)
        same(one, expected)
        np.testing.assert_array_equal(one.sample.keys, expected.sample.keys)

    def test_the_density_is_numpys_histogram(self) -> None:
        rows = numbers("float64", 5000)
        rows[7] *= 100
        frame = frame_of(rows[:100])
        one = folded(RowSummary(frame), rows)
        scores, t2, spe = reference(rows, frame)
        expected, *_ = np.histogram2d(scores[:, 0], scores[:, 1], bins=one.edges)
        np.testing.assert_array_equal(one.density, expected)
        assert one.outside == 5000 - expected.sum() > 0
        for what, values, limit in (("t2", t2, frame.t2_limit), ("spe", spe, frame.spe_limit)):
            assert one.beyond(what) == (values > limit).sum()
            assert one.quantile(what, 0.9) == pytest.approx(np.quantile(values, 0.9), rel=0.15)

    def test_tiny_errors_beside_large_scores(self) -> None:
        rng = np.random.default_rng(0)
        signal = rng.normal(size=(500, 1)) * 1e6 @ np.ones((1, 8))
        rows = signal + rng.normal(size=(500, 8)) * 1e-3 + 1e7
        frame = frame_of(rows, 1)
        one = folded(RowSummary(frame), rows)
        _, _, spe = reference(rows, frame)
        np.testing.assert_allclose(one.sample.spe, spe[one.sample.row], rtol=1e-2)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_far_mean(self, dtype: str) -> None:
        rows = (numbers("float64", 500) + 1e5).astype(dtype)
        frame = frame_of(rows)
        one = folded(RowSummary(frame), rows)
        _, t2, spe = reference(rows, frame)
        np.testing.assert_allclose(one.sample.t2, t2[one.sample.row], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(one.sample.spe, spe[one.sample.row], rtol=1e-2, atol=1e-4 * spe.mean())

    def test_planted_outliers_are_found_with_their_columns(self) -> None:
        rng = np.random.default_rng(3)
        rows = rng.normal(size=(4000, 2)) @ rng.normal(size=(2, 10)) + 0.1 * rng.normal(size=(4000, 10))
        frame = frame_of(rows)
        rows[1234, 6] += 40.0
        rows[77] = frame.mean + 60 * np.sqrt(frame.explained_variance[0]) * frame.components[0]
        one = folded(RowSummary(frame), *np.split(rows, [100, 1300]))
        place = {int(index): position for position, index in enumerate(one.outlying.row)}
        assert {77, 1234} <= set(one.outlying.row[:2])
        assert one.outlying.feature[place[1234]] == 6
        assert one.outlying.feature[place[77]] == np.abs(frame.components[0]).argmax()

    def test_the_sample_is_of_distinct_rows_and_fair(self) -> None:
        rng = np.random.default_rng(0)
        rows = rng.normal(size=(20_000, 3))
        rows[5000:15_000] = 0.25
        one = folded(RowSummary(frame_of(rows)), rows)
        sample = one.sample
        assert len(sample.row) == SAMPLE == len(set(sample.keys))
        repeated = sample.weight[sample.row == 5000]
        assert not len(repeated) or repeated[0] == 10_000
        assert (
            stats.kstest(sample.scores[:, 0] / one.deviations[0], reference(rows, frame_of(rows))[0][:, 0] / one.deviations[0]).pvalue < 1
        )
        others = sample.row[sample.row != 5000]
        assert stats.kstest(np.where(others < 5000, others, others - 10_000) / 10_000, "uniform").pvalue > 1e-4

    def test_rows_in_another_order_give_the_same_sample(self) -> None:
        rows = numbers("float64", 5000)
        empty = RowSummary(frame_of(rows))
        order = np.random.default_rng(1).permutation(5000)
        one, other = folded(empty, rows), folded(empty, rows[order])
        assert set(one.sample.keys) == set(other.sample.keys)
        assert set(one.sample.row) == set(order[other.sample.row])

    def test_fewer_than_two_components_and_no_variance(self) -> None:
        rows = numbers("float64", 50)
        one = folded(RowSummary(frame_of(rows, 1)), rows)
        assert one.density[:, GRID // 2].sum() == one.density.sum()
        constant = np.full((10, 3), 5.0)
        flat = Frame(constant[0], np.ones(3), np.eye(3)[:2], np.zeros(2), 9.2, np.inf)
        two = folded(RowSummary(flat), constant)
        assert (two.beyond("t2"), two.beyond("spe"), two.outside) == (0, 0, 0)
        assert two.density[GRID // 2, GRID // 2] == 10

    def test_edges_and_bins(self) -> None:
        rows = numbers("float64", 50)
        frame = frame_of(rows)
        one = RowSummary(frame)
        assert one.edges[0][-1] == pytest.approx(REACH * np.sqrt(frame.explained_variance[0]))
        assert len(one.t2) == len(bin_edges())

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_keys_depend_on_values_only(self, dtype: str) -> None:
        rows = numbers(dtype, 64, 5)
        keys: Any = row_keys(rows)
        np.testing.assert_array_equal(keys, row_keys(np.asfortranarray(rows)))
        np.testing.assert_array_equal(keys[::2], row_keys(rows[::2]))
        np.testing.assert_array_equal(keys[5:9], row_keys(rows, np.arange(5, 9)))
        assert len(set(keys)) == len({row.tobytes() for row in rows.astype("float64" if dtype == "longdouble" else dtype)})
