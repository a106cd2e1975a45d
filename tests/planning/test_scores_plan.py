from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streampca.errors import MemoryBudgetError
from streampca.memory import GIB, MIB
from streampca.planning.scores import plan_scores
from tests.planning.test_covariance_plan import BASELINE, facts


@settings(deadline=None)
@given(st.integers(2, 10**8), st.integers(1, 3000), st.integers(1, 20_000), st.integers(1, 200), st.integers(180, 4000), st.integers(1, 16))
def test_the_budget_is_kept(n_rows: int, n_features: int, chunk_rows: int, k: int, mebibytes: int, workers: int) -> None:
    info = facts(n_rows, n_features, chunk_rows=chunk_rows)
    assume(k <= n_features)
    try:
        plan = plan_scores(info, k, budget=mebibytes * MIB, workers=workers, baseline=BASELINE)
    except MemoryBudgetError:
        return
    assert plan.stage.peak_memory <= mebibytes * MIB
    assert 1 <= plan.workers <= workers


def test_blocks_have_one_height_for_the_chunks_of_the_output() -> None:
    plan = plan_scores(facts(10**6, 100, chunk_rows=700), 5, budget=GIB, workers=2, baseline=BASELINE)
    heights = {b - a for shard in plan.partition.shards()[:-1] for a, b in plan.partition.blocks(*shard)}
    assert heights == {plan.partition.block_rows}


def test_a_refusal_says_what_is_needed() -> None:
    with pytest.raises(MemoryBudgetError, match=r"100\.0 MiB cannot hold a transform, which needs at least"):
        plan_scores(facts(10**6, 100), 5, budget=100 * MIB, workers=2, baseline=BASELINE)
