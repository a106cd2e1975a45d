"""Rows with a NaN, left out: what a pass sees, and PCA that skips them against PCA of the rows that are left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streampca as sp
from streampca import PCA
from streampca.errors import ConfigError, NonFiniteError, UsageError
from streampca.events import Observer
from streampca.jobs import Change, InputConfig, make_config, run_job, transform_job, update_job
from streampca.jobs.config import SchedulerConfig
from streampca.sources import open_source
from streampca.sources.skipping import Skipping, complete_parts, without_nan
from tests.sources.conformance import Case, SourceTests, numbers


class TestSkipping(SourceTests):
    """It shows all rows; which of them count is up to the pass."""

    def make(self, folder: Path) -> Case:
        data, path = numbers(41, 5, "f4"), folder / "x.npy"
        np.save(path, data)
        return Case(lambda: Skipping(open_source(path)), data, lambda: np.save(path, data + 1))


def rows(n: int = 300, d: int = 6) -> np.ndarray:
    """Rows far from zero, a tenth of them with a NaN."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) * np.arange(1, d + 1) + 1e6
    X[rng.random(n) < 0.1, rng.integers(0, d)] = np.nan
    return X


def complete(X: np.ndarray) -> np.ndarray:
    kept: np.ndarray = X[~np.isnan(X).any(axis=1)]
    return kept


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.booleans())
def test_parts_are_the_rows_without_a_nan(bad: list[bool], weighted: bool) -> None:
    block = np.arange(2.0 * len(bad)).reshape(-1, 2)
    block[bad, 1] = np.nan
    weights = np.arange(1.0, len(bad) + 1) if weighted else None
    parts = list(complete_parts(block, weights))
    kept = ~np.array(bad)
    np.testing.assert_array_equal(np.concatenate([block[:0], *(part for part, _ in parts)]), block[kept])
    if weights is not None:
        np.testing.assert_array_equal(np.concatenate([weights[:0], *(w for _, w in parts if w is not None)]), weights[kept])


@pytest.mark.parametrize(
    "how", [{"solver": "covariance"}, {"solver": "tsqr", "standardize": True}, {"solver": "sketch", "random_state": 0}]
)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_fit_is_that_of_the_rows_that_are_left(how: dict[str, Any], dtype: str) -> None:
    X = rows().astype(dtype)
    found, wanted = PCA(3, nan="skip", **how).fit(X), PCA(3, **how).fit(complete(X))
    tolerance = 1e-3 if how["solver"] == "sketch" else 1e-6 if dtype == "f4" else 1e-11
    np.testing.assert_allclose(found.explained_variance_, wanted.explained_variance_, rtol=tolerance)
    assert (found.n_samples_, found.n_skipped_) == (len(complete(X)), len(X) - len(complete(X)))
    scores = found.transform(X)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), np.isnan(X).any(axis=1))
    np.testing.assert_array_equal(complete(scores), found.transform(complete(X)))


def test_batches_and_weights() -> None:
    X, weights = rows(), np.random.default_rng(1).integers(0, 3, 300).astype(float)
    batches = PCA(3, nan="skip").partial_fit(X[:1]).partial_fit(X[1:200]).partial_fit(X[200:])
    wanted = PCA(3).fit(complete(X))
    np.testing.assert_allclose(batches.explained_variance_, wanted.explained_variance_, rtol=1e-11)
    assert batches.n_skipped_ == 300 - len(complete(X))
    kept = ~np.isnan(X).any(axis=1)
    weighted = PCA(3, nan="skip").fit(X, sample_weight=weights)
    np.testing.assert_allclose(weighted.mean_, np.average(X[kept], axis=0, weights=weights[kept]), rtol=1e-12)


def test_what_is_still_refused() -> None:
    X = rows()
    with pytest.raises(NonFiniteError, match="NaN"):
        PCA(3).fit(X)
    X[251, 2], X[260, 1] = np.inf, -np.inf  # the second in a row that is left out
    with pytest.raises(NonFiniteError, match="row 251, column 2"):
        PCA(3, nan="skip").fit(X)
    X[251, 2] = 0
    with pytest.raises(NonFiniteError, match="row 260, column 1"):
        PCA(3, nan="skip").fit(X)
    with pytest.raises(UsageError, match="nan must be 'error' or 'skip', not 'drop'"):
        PCA(3, nan="drop").fit(X)
    with pytest.raises(UsageError, match="nan must be"):
        without_nan(open_source(X), "")
    with pytest.raises(ConfigError, match=r"input\.nan"):
        make_config({"input": {"path": "x.npy", "nan": "skip"}, "method": {"name": "ppca"}})
    with pytest.raises(ConfigError, match=r"output\.report"):
        make_config({"input": {"path": "x.npy", "nan": "skip"}, "output": {"report": "r.html"}})


def test_a_run_counts_them_and_so_does_its_manifest(tmp_path: Path) -> None:
    X = rows()
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", X[:50])
    out = {"model": str(tmp_path / "m.zarr"), "scores": str(tmp_path / "z.npy")}
    config = make_config({"input": {"path": str(tmp_path / "x.npy"), "nan": "skip"}, "method": {"n_components": 2}, "output": out})
    skipped = len(X) - len(complete(X))
    assert run_job(config, Observer())["rows_skipped"] == skipped > 0
    assert json.loads(Path(f"{out['model']}.manifest.json").read_text())["summary"]["rows_skipped"] == skipped
    np.testing.assert_array_equal(np.isnan(np.load(out["scores"])).any(axis=1), np.isnan(X).any(axis=1))
    loaded = sp.load(out["model"])
    assert (loaded.n_skipped_, loaded.nan) == (skipped, "skip")
    update_job(Change(out["model"], InputConfig(path=str(tmp_path / "y.npy"))), Observer())
    both = sp.load(out["model"])
    assert both.n_samples_ == len(complete(X)) + len(complete(X[:50]))
    assert both.n_skipped_ + both.n_samples_ == 350
    how: dict[str, Any] = {"memory": None, "overwrite": True, "scheduler": SchedulerConfig(), "observer": Observer()}
    transform_job(out["model"], InputConfig(path=str(tmp_path / "y.npy")), str(tmp_path / "z.npy"), **how)
    assert np.isnan(np.load(tmp_path / "z.npy")).any()
