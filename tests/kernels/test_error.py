from __future__ import annotations

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.errors import NonFiniteError, UsageError
from streampca.kernels.error import TraceSums, frobenius_error, trace_of
from streampca.kernels.fourier import FourierMap
from streampca.kernels.functions import KERNELS, Rbf, make_kernel
from streampca.kernels.nystrom import NystromMap
from streampca.memory import KIB
from tests.kernels.cases import digits, scatter_of

MAP = NystromMap.fit(Rbf(0.05), digits(40))


@pytest.mark.parametrize("name", KERNELS)
def test_the_trace_comes_with_the_pass(name: str) -> None:
    """From raw columns, from features, and from sums of their own: the same numbers."""
    X = digits(500)
    kernel = make_kernel(name, n_features=64)
    nystrom = NystromMap.fit(kernel, X[:30])
    rows, F = nystrom.columns.shifted(X), nystrom.transform(X)
    total, captured = kernel.diagonal(rows).sum(), np.square(F).sum()
    columns = scatter_of(nystrom.columns.transform(X))
    sums = TraceSums(nystrom)
    sums.update(X)
    for trace in (trace_of(nystrom.features_of(columns), nystrom.columns.trace(columns)), trace_of(scatter_of(F), total), sums.trace):
        assert trace.count == 500
        assert trace.total == pytest.approx(total, rel=1e-12)
        assert trace.captured == pytest.approx(captured, rel=1e-8)
        assert trace.uncaptured == pytest.approx((total - captured) / 500, rel=1e-6, abs=1e-7)
        assert trace.uncaptured_share == pytest.approx(1 - captured / total, rel=1e-6, abs=1e-7)


def test_paired_fourier_features_capture_the_trace() -> None:
    fourier = FourierMap.draw(Rbf(0.05), 64, 100, 0)
    assert abs(trace_of(scatter_of(fourier.transform(digits(300)))).uncaptured) < 1e-6


def test_the_frobenius_error_is_numpys() -> None:
    X = digits(700)
    for kernel in (Rbf(0.05), make_kernel("polynomial", n_features=64)):
        nystrom = NystromMap.fit(kernel, X[:40])
        K, F = kernel.evaluate(X, X), nystrom.transform(X)
        assert frobenius_error(kernel, nystrom, X) == pytest.approx(np.linalg.norm(K - F @ F.T) / np.linalg.norm(K), rel=1e-10)
    errors = [frobenius_error(Rbf(0.05), NystromMap.fit(Rbf(0.05), X[:m]), X) for m in (10, 100, 700)]
    assert errors[0] > 2 * errors[1] > 0.01
    assert errors[2] < 1e-9
    assert frobenius_error(make_kernel("linear", n_features=2), NystromMap.fit(Rbf(1.0), np.eye(2)), np.zeros((3, 2))) == 0


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_split_and_merge_agree(data: st.DataObject) -> None:
    X = digits(120)
    weights = np.random.default_rng(0).integers(0, 4, 120).astype(float) if data.draw(st.booleans()) else None
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, 120), max_size=4))), 120]
    total = TraceSums(MAP).fresh()
    for a, b in pairwise(cuts):
        part = total.fresh()
        part.update(X[a:b], None if weights is None else weights[a:b])
        total.merge(pickle.loads(pickle.dumps(part)))
    repeated = TraceSums(MAP)
    repeated.update(X if weights is None else np.repeat(X, weights.astype(int), axis=0))
    np.testing.assert_allclose(total.to_arrays()["sums"], repeated.to_arrays()["sums"], rtol=1e-10)
    assert total.count == repeated.count
    assert total.nbytes == 24


def test_sums_are_bounded_and_refuse_what_is_wrong() -> None:
    X = digits(1700)
    one = TraceSums(MAP)
    one.update(X[:3])
    tracemalloc.start()
    one.update(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= one.workspace(1700) + 64 * KIB
    restored = TraceSums.from_arrays(one.to_arrays())
    assert restored.workspace(5) == 0
    with pytest.raises(UsageError, match="merged and read, not updated"):
        restored.update(X)
    X[900, 3] = np.inf
    with pytest.raises(NonFiniteError, match="row 900, column 3"):
        one.update(X)
