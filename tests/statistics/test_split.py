"""Which rows are held out, and that both parts together are the whole."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from streampca.errors import NonFiniteError
from streampca.statistics import Scatter
from streampca.statistics.split import SplitScatter, is_held_out


def rows_of(n: int = 3000, d: int = 4, dtype: str = "float64") -> np.ndarray:
    return (100 * np.random.default_rng(0).normal(size=(n, d))).astype(dtype)


def test_a_tenth_is_held_out_whatever_the_block_or_dtype() -> None:
    X = rows_of(20_000, 3, "int16")
    held = is_held_out(X)
    assert 0.08 < held.mean() < 0.12
    for same in (X.astype("float32"), X.astype("float64"), np.asfortranarray(X), X.astype(">i4"), X.astype("longdouble")):
        np.testing.assert_array_equal(is_held_out(same), held)
    np.testing.assert_array_equal(np.concatenate([is_held_out(X[:7]), is_held_out(X[7:])]), held)
    assert is_held_out(np.array([[0.0, 1.0]])) == is_held_out(np.array([[-0.0, 1.0]]))
    for column in (np.arange(5000.0)[:, None], np.arange(5000.0)[:, None] * [1, 0, 0], np.random.default_rng(1).integers(0, 2, (5000, 40))):
        assert 0.05 < is_held_out(column).mean() < 0.16


@pytest.mark.parametrize("weighted", [False, True])
def test_both_parts_are_those_of_their_rows(weighted: bool) -> None:
    X, weights = rows_of(), np.arange(3000.0) % 3 if weighted else None
    split, held = SplitScatter(4), is_held_out(X)
    cut = SplitScatter(4)
    split.update(X, weights)
    for part in (slice(1000), slice(1000, 1001), slice(1001, 3000)):
        other = split.fresh()
        other.update(X[part], None if weights is None else weights[part])
        cut.merge(other)
    for each in (split, cut, SplitScatter.from_arrays(split.to_arrays()), pickle.loads(pickle.dumps(split)), split.copy()):
        for found, which in ((each.kept, ~held), (each.held, held)):
            wanted = Scatter(4)
            wanted.update(X[which], None if weights is None else weights[which])
            assert found.count == wanted.count
            np.testing.assert_allclose(found.scatter, wanted.scatter, rtol=1e-11, atol=1e-6)
    assert split.nbytes == sum(array.nbytes for array in split.to_arrays().values() if array.ndim)


def test_what_is_not_finite_is_named_by_its_row_in_the_block() -> None:
    X = rows_of()
    X[1234, 2] = np.nan
    X[1235:, 0] = np.inf
    with pytest.raises(NonFiniteError) as caught:
        SplitScatter(4).update(X)
    assert (caught.value.row, caught.value.column) == (1234, 2)
