from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg
from threadpoolctl import threadpool_limits

from streampca import buffers
from streampca.errors import DataError
from streampca.statistics import RFactor, Scatter, rfactor, triangle
from streampca.statistics.rfactor import STRIP_ROWS, state_bytes, workspace_bytes
from streampca.statistics.triangle import fold_rows, scratch_size
from tests.statistics.conformance import StatisticTests, bits, centred, folded, numbers, quick


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """As in a pass: with more, the many small products would mostly wait for each other."""
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def weighted(n_features: int, rows: np.ndarray, weights: np.ndarray, *cuts: int) -> RFactor:
    one = RFactor(n_features)
    for start, stop in pairwise([0, *cuts, len(rows)]):
        one.update(rows[start:stop], weights[start:stop])
    return one


class TestRFactor(StatisticTests):
    def make(self, n_features: int) -> RFactor:
        return RFactor(n_features)

    def second(self, statistic: RFactor) -> np.ndarray:
        return statistic.R.T @ statistic.R

    def second_reference(self, centred_rows: np.ndarray) -> np.ndarray:
        return centred_rows.T @ centred_rows

    def scale(self, second: np.ndarray) -> np.ndarray:
        deviations = np.sqrt(second.diagonal())
        return deviations[:, None] * deviations

    @pytest.mark.parametrize("n_features", [1, 2, 7, 1000])
    def test_bytes_are_known_without_making_one(self, n_features: int) -> None:
        one = self.make(n_features)
        assert state_bytes(n_features) == one.nbytes
        assert workspace_bytes(n_features) == one.workspace(10**6)

    @pytest.mark.parametrize("n_features", [3, 300])
    def test_borrowed_memory_is_counted(self, n_features: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The memory test of the suite sees what NumPy allocates, not what is mapped."""
        lent: list[int] = []
        borrow = buffers.borrow

        def spy(n_bytes: int) -> Any:
            lent.append(n_bytes)
            return borrow(n_bytes)

        monkeypatch.setattr(buffers, "borrow", spy)
        one = folded(self.make(n_features), numbers("float64", 3000, n_features))
        one.merge(one.copy())
        vectors = 8 * n_features * 500
        assert 0 < sum(lent) <= one.workspace(3000) - vectors

    @pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
    @pytest.mark.parametrize("n_features", [1, 2, 3, 17, 130, 300])
    def test_any_width(self, n_features: int, dtype: str) -> None:
        rows = numbers(dtype, 2500, n_features)
        self.check_rows(folded(self.make(n_features), rows), rows)

    @pytest.mark.parametrize("n_rows", [1, 2, 29, 30, 31, 32, 500])
    def test_the_normal_form(self, n_rows: int) -> None:
        rows = numbers("float64", n_rows, 30) + 7
        one = folded(self.make(30), *np.array_split(rows, 3))
        np.testing.assert_array_equal(one.R, np.triu(one.R))
        assert (one.R.diagonal() >= 0).all()
        assert np.abs(one.R[n_rows - 1 :]).max(initial=0) <= 1e-13 * max(one.R.max(), 1)  # no more rows than the rank
        assert not np.signbit(one.R[one.R == 0]).any()
        if n_rows > 31:  # then it is the Cholesky factor of the scatter, and unique
            np.testing.assert_allclose(one.R, linalg.cholesky(folded(Scatter(30), rows).scatter), rtol=1e-9, atol=1e-9)

    @quick
    @given(seed=st.integers(0, 2**32 - 1), n_rows=st.integers(2, 60), cuts=st.lists(st.integers(0, 60), max_size=5))
    def test_sums_of_squares_are_those_of_the_columns(self, seed: int, n_rows: int, cuts: list[int]) -> None:
        rows = np.random.default_rng(seed).normal(size=(n_rows, 3)) * [1, 1e-6, 1e6] + [1e3, 0, -1e8]
        one = folded(self.make(3), *np.split(rows, sorted(cut % (n_rows + 1) for cut in cuts)))
        _, rest = centred(rows)
        np.testing.assert_allclose(one.squares, (rest**2).sum(axis=0).astype(float), rtol=1e-12)
        np.testing.assert_allclose((one.R**2).sum(axis=0), one.squares, rtol=1e-12)

    @pytest.mark.parametrize("mean", [0, 1e8, -3e9])
    @pytest.mark.parametrize("block", [1, 100, 1023, 1024, 10_000])
    def test_a_large_mean_costs_no_accuracy(self, mean: float, block: int) -> None:
        rows = np.random.default_rng(0).normal(size=(3000, 8)) * np.linspace(1, 2, 8) + mean
        one = folded(self.make(8), *np.split(rows, range(block, 3000, block)))
        _, rest = centred(rows)
        np.testing.assert_allclose(np.linalg.svd(one.R)[1], np.linalg.svd(rest.astype(float))[1], rtol=1e-13)
        self.check_rows(one, rows, 1e-13)

    def test_columns_keep_their_own_accuracy(self) -> None:
        """Each column is rounded by its own size: what is beside it does not matter."""
        rows = numbers("float64", 2000, 6)
        sizes = 10.0 ** np.array([0, -150, 150, 3, -80, 40])
        plain, sized = folded(self.make(6), rows), folded(self.make(6), rows * sizes)
        np.testing.assert_allclose(sized.R / sizes, plain.R, rtol=1e-9, atol=1e-12 * plain.R.max())

    @pytest.mark.parametrize("order", ["left", "right", "tree", "far"])
    @pytest.mark.parametrize("n_features", [5, 150, 300])  # one strip of a triangle, two, three
    def test_merge_trees_agree(self, n_features: int, order: str) -> None:
        rows = numbers("float64", 900, n_features) * np.logspace(0, -6, n_features) + 1e4
        states = [folded(self.make(n_features), part) for part in np.split(rows, [1, 40, 200, 201, 600])]
        while len(states) > 1:
            into, taken = {"left": (0, 1), "right": (-2, -1), "tree": (0, len(states) // 2), "far": (0, -1)}[order]
            states[into].merge(states[taken])
            del states[taken]
        self.check_rows(states[0], rows)

    # ------------------------------------------------------------------------------------- weights

    @quick
    @given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 40), max_size=4))
    def test_integer_weights_are_repeats(self, seed: int, cuts: list[int]) -> None:
        rng = np.random.default_rng(seed)
        rows, times = rng.normal(size=(40, 4)) * [1, 10, 0.1, 0] + 1e6, rng.integers(0, 4, size=40)
        one = weighted(4, rows, times.astype(float), *sorted(cuts))
        repeated = rows.repeat(times, axis=0)
        assert one.count == len(repeated)
        assert one.centre.rows == np.count_nonzero(times)
        self.check_rows(one, repeated)
        np.testing.assert_allclose(one.squares, folded(self.make(4), repeated).squares, rtol=1e-12)

    def test_weights_of_many_strips(self) -> None:
        rows, weights = numbers("float32", 5000), np.random.default_rng(1).gamma(0.5, size=5000)
        weights[1100:3300] = 0  # whole strips that do not count
        one = weighted(5, rows, weights, 7, 2500)
        one.merge(weighted(5, rows, weights))
        exact = rows.astype(np.longdouble)
        mean = np.average(exact, axis=0, weights=weights)
        second = 2 * (exact - mean).T @ ((exact - mean) * weights[:, None])
        assert one.count == pytest.approx(2 * weights.sum(), rel=1e-13)
        np.testing.assert_allclose(one.mean, mean.astype(float), rtol=1e-12)
        assert (np.abs(self.second(one) - second) <= 1e-12 * self.scale(second)).all()

    def test_unit_weights_change_nothing(self) -> None:
        rows = numbers("float64", 3000)
        one = weighted(5, rows, np.ones(3000))
        assert one.count == 3000
        self.check_rows(one, rows)

    def test_rows_without_weight_are_not_there(self) -> None:
        one = weighted(5, numbers("float64"), np.zeros(300))
        assert bits(one) == bits(self.make(5))

    # ------------------------------------------------------------------------------------- its own ways

    def test_small_blocks_are_folded_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        heights = []

        def spy(lower: np.ndarray, columns: np.ndarray, scratch: np.ndarray) -> None:
            heights.append(columns.shape[1])
            fold_rows(lower, columns, scratch)

        monkeypatch.setattr(rfactor, "fold_rows", spy)
        rows = numbers("float64", 3000)
        one = folded(self.make(5), *np.split(rows, 1500))
        one.R  # noqa: B018
        assert len(heights) == -(-(3000 + 1499) // STRIP_ROWS)  # two rows and the one between the means, each time
        self.check_rows(one, rows)

    def test_a_factor_that_cannot_be_written_is_copied(self) -> None:
        arrays = {name: array.copy(order="F") for name, array in folded(self.make(5), numbers("float64")).to_arrays().items()}
        arrays["lower"].flags.writeable = False
        before = arrays["lower"].copy()
        one = RFactor.from_arrays(arrays)
        one.merge(one.copy())
        np.testing.assert_array_equal(arrays["lower"], before)

    @pytest.mark.parametrize("size", [1e150, 1e-150])
    def test_the_ends_of_the_range(self, size: float) -> None:
        rows = numbers("float64", 2000)
        one, plain = folded(self.make(5), rows * size), folded(self.make(5), rows)
        np.testing.assert_allclose(one.R / size, plain.R, rtol=1e-11, atol=1e-11)

    def test_sums_that_overflow_float64_are_told_apart(self) -> None:
        with pytest.raises(DataError, match="overflow"):
            folded(self.make(1), np.full((4, 1), 1.7e308) * [[1], [-1], [1], [-1]])


# --- folding rows into a triangle -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", [False, True])
@pytest.mark.parametrize("m", [0, 1, 5, 700])
@pytest.mark.parametrize("d", [1, 2, 16, 17, 33, 300])
def test_rows_are_folded_into_a_triangle(d: int, m: int, wrapper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrapper:
        monkeypatch.setattr(triangle, "_tpqrt", lambda: None)
    rng = np.random.default_rng(0)
    around, columns = rng.normal(size=(d + 3, d + 5)), rng.normal(size=(d, m + 9))
    before = around.copy()
    lower = around[2:-1, 4:-1]  # a part of something larger, which must not be touched
    R, rows = np.triu(lower.T), columns[:, :m].T.copy()
    fold_rows(lower, columns[:, :m], np.empty(scratch_size(d)))
    expected = linalg.qr(np.vstack([R, rows]), mode="r")[0][:d]
    np.testing.assert_allclose(np.abs(np.triu(lower.T)), np.abs(expected), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(np.triu(lower, 1), np.triu(before[2:-1, 4:-1], 1))
    lower[:] = before[2:-1, 4:-1]
    np.testing.assert_array_equal(around, before)


@pytest.mark.parametrize("d", [7, 64, 301])
def test_where_the_arrays_lie_makes_no_difference(d: int) -> None:
    """The same bits on any worker: no sum may depend on how far from a cache line an array begins."""
    rows = np.random.default_rng(0).normal(size=(d, 1000))

    def fold_at(offset: int) -> bytes:
        lower = np.zeros(d * d + 8)[offset : offset + d * d].reshape(d, d)
        columns = np.empty(d * 1032 + 8)[offset : offset + d * 1032].reshape(d, 1032)[:, :1000]
        for _ in range(2):
            columns[:] = rows
            fold_rows(lower, columns, np.empty(scratch_size(d)))
        return lower.tobytes()

    assert len({fold_at(offset) for offset in range(8)}) == 1


def test_other_threads_go_on_meanwhile() -> None:
    """A task that held the interpreter's lock would stop the reader and every other task."""
    d, m = 700, 3000
    lower, columns, scratch = np.eye(d), np.random.default_rng(0).normal(size=(d, m)), np.empty(scratch_size(d))
    done = threading.Event()
    times: list[float] = []

    def work() -> None:
        times.append(time.perf_counter())
        fold_rows(lower, columns, scratch)
        times.append(time.perf_counter())
        done.set()

    thread = threading.Thread(target=work)
    ticks = [time.perf_counter()]
    thread.start()
    while not done.wait(0.001):
        ticks.append(time.perf_counter())
    thread.join()
    within = [tick for tick in ticks if times[0] < tick < times[1]]
    assert len(within) > 5, (len(within), times[1] - times[0])
