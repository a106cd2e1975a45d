"""Which solver, for which shape and budget; what the others say of shapes that they are not meant for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.blocks import Segment
from streampca.errors import MemoryBudgetError, UsageError
from streampca.memory import GIB, MIB
from streampca.planning import Limits, Plan, Request
from streampca.planning.choice import SOLVERS, choose, may_be_dual, plan_with
from streampca.planning.sketch import ranks
from streampca.sources.base import SourceInfo


def table(n: int, d: int, dtype: str = "f4", chunk: int = 100, chunk_features: int = 0) -> SourceInfo:
    return SourceInfo(n, d, np.dtype(dtype), (Segment(0, n, min(chunk, n)),), n * d, "", chunk_features=chunk_features)


def turned(info: SourceInfo, chunk: int = 1000) -> SourceInfo:
    return replace(
        info, n_rows=info.n_features, n_features=info.n_rows, segments=(Segment(0, info.n_features, min(chunk, info.n_features)),)
    )


def limits(budget: int = 4 * GIB, workers: int = 2) -> Limits:
    return Limits(budget, workers, 150 * MIB)


def chosen(n: int, d: int, k: Any = 20, budget: int = 4 * GIB, dtype: str = "f4", *, by_columns: bool = True, **request: Any) -> Plan:
    info = table(n, d, dtype)
    return choose(info, turned(info) if by_columns and may_be_dual(info, "auto") else None, Request(k, **request), limits(budget))


@pytest.mark.parametrize(
    ("n", "d", "k", "budget", "solver"),
    [
        (10**6, 100, 20, GIB, "covariance"),
        (10**9, 1000, 20, GIB, "covariance"),
        (5000, 5000, 20, 4 * GIB, "covariance"),
        (10**6, 9000, 20, 8 * GIB, "covariance"),
        (500, 1500, 20, 2 * GIB, "covariance"),  # narrow enough for all eigenpairs
        (500, 50_000, 20, 2 * GIB, "dual"),
        (2000, 10**6, 20, 4 * GIB, "dual"),
        (2000, 10**6, None, 64 * GIB, "dual"),
        (10**5, 20_000, 20, 4 * GIB, "sketch"),  # the sums do not fit
        (10**5, 20_000, 20, 64 * GIB, "sketch"),  # they fit, but their eigenvectors take long
        (19_000, 10**6, 20, 64 * GIB, "sketch"),  # n x n products would cost more
        (10**5, 12_000, 6000, 64 * GIB, "covariance"),  # too many components for a sketch
        (10**6, 5000, 20, 500 * MIB, "sketch"),
    ],
)
def test_the_choice(n: int, d: int, k: Any, budget: int, solver: str) -> None:
    plan = chosen(n, d, k, budget)
    assert plan.solver == solver
    assert plan.peak_memory <= budget


def test_without_columns_the_sketch_takes_few_long_rows() -> None:
    assert chosen(500, 50_000, by_columns=False).solver == "sketch"


def test_columns_that_would_be_read_many_times_are_not() -> None:
    info = table(500, 10**6)
    whole_rows = turned(info, chunk=10**6)  # a chunk of the table holds whole rows: a slab of columns decodes them all
    assert choose(info, whole_rows, Request(20), limits(2 * GIB)).solver == "sketch"


def test_a_narrow_table_is_not_asked_for_its_columns() -> None:
    assert not may_be_dual(table(10, 1500), "auto")
    assert not may_be_dual(table(5000, 9000), "auto")
    assert may_be_dual(table(10, 1500), "dual")
    assert may_be_dual(table(100, 9000), "auto")


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 10**6),
    d=st.integers(1, 10**6),
    k=st.integers(1, 300),
    mib=st.integers(220, 40_000),
    dtype=st.sampled_from(["f4", "f8", "i2", "u1"]),
    workers=st.integers(1, 4),
    chunk=st.sampled_from([1, 100, 10_000]),
    tol=st.sampled_from([1e-3, 1e-6]),
    standardize=st.booleans(),
)
def test_every_plan_keeps_its_budget_and_says_why(
    n: int, d: int, k: int, mib: int, dtype: str, workers: int, chunk: int, tol: float, standardize: bool
) -> None:
    info, components = table(n, d, dtype, chunk), min(k, n, d)
    request = Request(components, standardize=standardize, tol=tol)
    for solver in SOLVERS:
        plan = planned(solver, info, request, limits(mib * MIB, workers))
        if plan is None:
            continue
        assert plan.peak_memory <= mib * MIB
        assert plan.solver == solver or solver == "auto"
        assert 1 <= plan.workers <= workers
        assert plan.reasons
        text = plan.explain()
        assert f"solver: {plan.solver}" in text
        assert "None" not in text
        assert plan.rank is None or plan.rank >= components


def planned(solver: str, info: SourceInfo, request: Request, allowed: Limits) -> Plan | None:
    """The plan, or None for a refusal, which must name what fits."""
    columns = turned(info) if may_be_dual(info, solver) else None
    try:
        return plan_with(solver, info, columns, request, allowed)
    except UsageError as refusal:
        error = refusal
    assert ("MiB or more" if isinstance(error, MemoryBudgetError) else "use solver=") in str(error)
    return None


def test_a_refusal_can_be_followed() -> None:
    info = table(10**5, 50_000)
    with pytest.raises(MemoryBudgetError, match=r"A sketch does not fit either: .* Give a memory of \d+MiB or more") as caught:
        choose(info, None, Request(50), limits(260 * MIB))
    assert "or ask for fewer components" in str(caught.value)
    needed = int(str(caught.value).rsplit("Give a memory of ", 1)[1].split("MiB")[0])
    assert choose(info, None, Request(50), limits(needed * MIB)).solver == "sketch"


def test_shapes_that_a_solver_is_not_meant_for() -> None:
    tall, long = table(10**6, 100), table(500, 50_000)
    with pytest.raises(UsageError, match=r"solver='dual' is for few, long rows.*use solver='covariance', or 'sketch'"):
        plan_with("dual", tall, turned(tall), Request(5), limits())
    with pytest.raises(UsageError, match=r"solver='dual' reads slabs of columns.*use solver='sketch'"):
        plan_with("dual", long, None, Request(5), limits())
    with pytest.raises(UsageError, match=r"solver='tsqr' is for tall data of at most 8,000 columns.*use solver='sketch', or 'dual'"):
        plan_with("tsqr", long, None, Request(5), limits())


def test_a_tight_budget_takes_fewer_directions_and_says_so() -> None:
    info = table(10**5, 50_000)
    rich, poor = (plan_with("sketch", info, None, Request(40), limits(mib * MIB, 1)) for mib in (4000, 330))
    assert rich.rank == 120
    assert 60 <= (poor.rank or 0) < 120
    assert "120 directions would be better, but the budget holds" in poor.explain()
    assert poor.sums == "float32"
    assert "sums in float32" in poor.explain()
    assert poor.n_passes == 2
    assert poor.max_passes == 8
    assert "at most 8 if the data needs them" in poor.explain()


def test_chunks_taller_than_a_block_are_said_to_be_decoded_again() -> None:
    info = table(4000, 50_000, chunk=1000, chunk_features=1000)
    plan = plan_with("sketch", info, None, Request(10), limits(420 * MIB, 1))
    assert plan.block_rows < 1000
    assert "each is decoded" in plan.explain()


def test_a_narrower_tolerance_takes_a_pass_and_directions_more() -> None:
    info = table(10**5, 50_000)
    loose, tight = (plan_with("sketch", info, None, Request(40, tol=tol), limits(8 * GIB)) for tol in (1e-3, 1e-6))
    assert (loose.n_passes, tight.n_passes) == (2, 3)
    assert (loose.rank, tight.rank) == (120, 200)
    assert plan_with("sketch", info, None, Request(40, standardize=True), limits(8 * GIB)).n_passes == 3


@pytest.mark.parametrize("k", [1, 10, 40, 100, 5000])
def test_directions_are_more_than_components(k: int) -> None:
    found = ranks(table(9000, 9000), Request(k))
    assert found == sorted(found, reverse=True)
    assert all(k + max(k // 2, 10) <= rank or rank == 9000 for rank in found)
