from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import streampca as sp
from streampca.blocks import Segment
from streampca.engine import live_states
from streampca.engine.threads import Threads
from streampca.errors import DataError, MemoryBudgetError, UsageError
from streampca.memory import GIB, MIB
from streampca.planning import Limits, Plan, plan_pca
from streampca.planning.covariance import FLOAT32_ROWS, Request, plan_covariance
from streampca.sources.base import SourceInfo

BASELINE = 150 * MIB


def facts(n_rows: int, n_features: int, dtype: Any = "float32", chunk_rows: int = 1, **others: Any) -> SourceInfo:
    """The facts of data that does not exist."""
    dtype = np.dtype(dtype)
    values = {"read_scratch": 2 * chunk_rows * n_features * dtype.itemsize} | others
    return SourceInfo(n_rows, n_features, dtype, (Segment(0, n_rows, chunk_rows),), n_rows * n_features * dtype.itemsize, "f", **values)


def planned(info: SourceInfo, budget: int = 4 * GIB, workers: int = 4, k: Any = 1, **request: Any) -> Plan:
    return plan_covariance(info, Request(k, **request), Limits(budget, workers, BASELINE))


infos = st.builds(
    facts,
    n_rows=st.integers(2, 10**9),
    n_features=st.integers(1, 3000),
    dtype=st.sampled_from(["uint8", "float32", "float64"]),
    chunk_rows=st.integers(1, 20_000),
    in_memory=st.booleans(),
)
budgets = st.integers(170, 8000).map(lambda n: n * MIB)


@settings(deadline=None)
@given(infos, budgets, st.integers(1, 64), st.integers(1, 64))
def test_the_cut_does_not_depend_on_the_workers(info: SourceInfo, budget: int, few: int, many: int) -> None:
    assume(info.n_rows // info.chunk_rows < 10**6)
    try:
        one = planned(info, budget, few)
    except MemoryBudgetError:
        with pytest.raises(MemoryBudgetError):
            planned(info, budget, many)
        return
    other = planned(info, budget, many)
    for name in ("block_rows", "shard_rows", "n_shards", "precision"):
        assert getattr(one, name) == getattr(other, name)
    assert one.partition(info) == other.partition(info)
    for plan, workers in ((one, few), (other, many)):
        assert plan.peak_memory <= budget
        assert 1 <= plan.workers <= min(workers, plan.n_shards)
        assert plan.n_shards == len(plan.partition(info).shards())


@settings(deadline=None)
@given(infos, st.integers(1, 400).map(lambda n: n * MIB))
def test_a_refusal_names_a_budget_that_is_enough(info: SourceInfo, budget: int) -> None:
    try:
        planned(info, budget)
    except MemoryBudgetError as error:
        enough = re.search(r"Give a memory of (\d+)MiB or more", str(error))
        assert enough
        assert planned(info, int(enough[1]) * MIB).peak_memory > budget


def test_a_refusal_says_what_where_and_how() -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        planned(facts(10**6, 5000), 500 * MIB)
    text = str(caught.value)
    assert "a memory budget of 500.0 MiB cannot hold stage 'eigenvectors'" in text or "stage 'scatter'" in text
    assert "1,000,000 x 5,000 data" in text
    assert re.search(r"needs at least [\d.]+ GiB \(process [\d.]+ MiB, .*sums [\d.]+ ", text)
    columns = re.search(r"select at most about ([\d,]+) columns", text)
    assert columns
    fitting = int(columns[1].replace(",", ""))
    assert fitting < 5000
    planned(facts(10**6, fitting), 500 * MIB)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.exit_code == 2


def test_a_budget_below_the_process_itself() -> None:
    with pytest.raises(MemoryBudgetError, match="the process alone, with its libraries, takes more"):
        planned(facts(10**6, 5), 100 * MIB)


def test_the_refusal_of_the_public_function() -> None:
    with pytest.raises(MemoryBudgetError, match="Give a memory of"):
        sp.plan(np.zeros((100, 10)), memory="1MiB")


@pytest.mark.parametrize(
    ("n_bytes", "few", "many"),
    [(10 * MIB, 1, 1), (100 * MIB, 4, 8), (2 * GIB, 24, 64), (200 * GIB, 500, 5000), (2**50, 10_000, 20_500), (2**53, 10_000, 20_500)],
)
@pytest.mark.parametrize(
    ("n_features", "dtype", "chunk_rows"), [(1000, "float32", 1), (1000, "float64", 300), (64, "float32", 100_000), (2500, "uint8", 1000)]
)
def test_shards_grow_with_the_data(n_bytes: int, few: int, many: int, n_features: int, dtype: str, chunk_rows: int) -> None:
    n_rows = n_bytes // (n_features * np.dtype(dtype).itemsize)
    plan = planned(facts(n_rows, n_features, dtype, min(chunk_rows, n_rows)))
    assert few <= plan.n_shards <= many


def test_many_files_do_not_mean_many_shards() -> None:
    segments = tuple(Segment(1000 * i, 1000 * i + 1000, 300) for i in range(10_000))
    info = replace(facts(10**7, 100), segments=segments)
    assert 50 <= planned(info).n_shards <= 130


@pytest.mark.parametrize("chunk_rows", [1, 100, 700, 3000])
def test_blocks_are_whole_chunks(chunk_rows: int) -> None:
    plan = planned(facts(10**6, 1000, chunk_rows=chunk_rows))
    assert plan.block_rows % chunk_rows == 0
    assert plan.shard_rows % plan.block_rows == 0


def test_a_chunk_that_does_not_fit_is_decoded_often() -> None:
    info = facts(10**6, 1000, chunk_rows=400_000, read_scratch=0)
    plan = planned(info, 512 * MIB)
    assert plan.block_rows < 400_000
    assert "is taller than a block that fits: each is decoded" in plan.explain()


def test_a_smaller_budget_means_lower_blocks_then_none() -> None:
    info = facts(10**6, 1000, read_scratch=0)
    heights = []
    for budget in range(600, 150, -5):
        try:
            heights.append(planned(info, budget * MIB, k=5).block_rows)
        except MemoryBudgetError:
            heights.append(0)
    assert heights[0] > heights[-1] == 0
    assert len(set(heights)) > 3
    assert all(before >= after for before, after in pairwise(heights))


def test_more_workers_take_more_memory() -> None:
    info = facts(10**7, 1000)
    peaks = [planned(info, 100 * GIB, workers).peak_memory for workers in (1, 2, 8)]
    assert peaks == sorted(set(peaks))
    tight = planned(info, peaks[1], 8)
    assert tight.workers == 2
    assert "2 of 8 possible workers" in tight.explain()


def test_passes_and_bytes() -> None:
    info = facts(10**6, 100)
    assert (planned(info).n_passes, planned(info).bytes_read) == (1, info.bytes_decoded)
    with_scores = plan_pca(info, 1, memory="4GiB", scheduler=Threads(2), scores=True)
    assert (with_scores.n_passes, with_scores.bytes_read) == (2, 2 * info.bytes_decoded)
    assert [stage.name for stage in with_scores.stages] == ["scatter", "eigenvectors", "scores"]


@pytest.mark.parametrize(
    ("dtype", "n_rows", "wanted", "precision"),
    [
        ("float32", FLOAT32_ROWS, "auto", "float32"),
        ("float32", FLOAT32_ROWS - 1, "auto", "float64"),
        ("float64", FLOAT32_ROWS, "auto", "float64"),
        ("uint8", FLOAT32_ROWS, "auto", "float32"),
        ("int32", FLOAT32_ROWS, "auto", "float64"),
        ("float32", FLOAT32_ROWS, "float64", "float64"),
        ("float32", 10, "float32", "float32"),
    ],
)
def test_precision(dtype: str, n_rows: int, wanted: Any, precision: str) -> None:
    assert planned(facts(n_rows, 10, dtype), precision=wanted).precision == precision


def test_explain_says_what_and_why() -> None:
    text = planned(facts(10**6, 1000), 2 * GIB, k=7).explain()
    for part in (
        "1,000,000 rows x 1,000 features",
        "components: 7",
        "solver: covariance",
        "because",
        "1 pass(es)",
        "projected peak memory",
        "of a budget of 2.00 GiB",
    ):
        assert part in text
    assert str(planned(facts(100, 10), k=7)) == planned(facts(100, 10), k=7).explain()


def test_as_plain_values() -> None:
    plan = planned(facts(10**6, 1000))
    values = plan.to_dict()
    assert values["peak_memory"] == plan.peak_memory
    assert values["n_passes"] == 1
    assert values["stages"][0]["memory"]["sums"] == live_states(plan.workers, 8 * 1000 * 1002) * 8 * 1000 * 1002


# ------------------------------------------------------------------------------------------ the request


@pytest.mark.parametrize("k", [None, 1, 10, 0.5, 0.999])
def test_numbers_of_components(k: Any) -> None:
    assert plan_pca(facts(100, 10), k, memory="4GiB", scheduler=Threads(2)).n_components == k


@pytest.mark.parametrize("k", [0, -1, 11, True, 0.0, 1.0, 1.5, -0.1, float("nan"), "many", [3]])
def test_impossible_numbers_of_components(k: Any) -> None:
    with pytest.raises(UsageError, match="n_components"):
        plan_pca(facts(100, 10), k, memory="4GiB")


def test_more_components_than_rows() -> None:
    with pytest.raises(UsageError, match=r"n_components=9 must be between 1 and min\(n_samples, n_features\)=8 \(8 x 10 data\)"):
        plan_pca(facts(8, 10), 9)


def test_one_row_has_no_variance() -> None:
    with pytest.raises(DataError, match="at least 2 rows"):
        plan_pca(facts(1, 10), None)


@pytest.mark.parametrize(("option", "near"), [({"solver": "covarianse"}, "'covariance'"), ({"method": "pcaa"}, "'pca'")])
def test_a_typing_error_names_what_was_meant(option: Any, near: str) -> None:
    with pytest.raises(UsageError, match=f"Did you mean {near}"):
        sp.plan(np.zeros((9, 3)), **option)


def test_an_unknown_precision() -> None:
    with pytest.raises(UsageError, match="precision must be"):
        sp.plan(np.zeros((9, 3)), precision="float16")


def test_the_default_budget_is_a_part_of_the_machine() -> None:
    plan = sp.plan(np.zeros((9, 3)))
    assert plan.peak_memory <= plan.budget


def test_on_a_cluster_the_smallest_worker_counts() -> None:
    class Limited(Threads):
        def memory_limit(self) -> int:
            return GIB

    assert plan_pca(facts(100, 10), None, scheduler=Limited(1)).budget == int(0.6 * GIB)
