"""xarray's DataArrays in, DataArrays out; and never imported by this package itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import streampca as sp
from streampca.errors import DataError, UsageError

xr = pytest.importorskip("xarray")

X = np.random.default_rng(0).normal(size=(60, 6)) * np.arange(1, 7) + 5
NAMES = list("abcdef")
DAYS = np.arange("2026-01-01", "2026-03-02", dtype="datetime64[D]").astype("datetime64[ns]")


def labelled(**options: Any) -> Any:
    return xr.DataArray(
        X, dims=("time", "gene"), coords={"time": DAYS, "gene": NAMES, "season": ("time", DAYS.astype(str)), "level": 500}, **options
    )


@pytest.mark.parametrize(
    "kind", [sp.PCA, sp.ProbabilisticPCA, sp.FactorAnalysis, sp.SparsePCA, sp.ICA, sp.KernelPCA], ids=lambda kind: kind.__name__
)
def test_the_same_numbers_with_labels(kind: Any) -> None:
    plain = kind(n_components=2, **({"random_state": 0} if "random_state" in kind().get_params() else {}))
    for data in (labelled(), labelled().T.chunk({"time": 25, "gene": 4})):
        fitted = clone(plain).fit(data)
        scores = fitted.transform(data)
        assert isinstance(scores, xr.DataArray)
        assert (scores.dims, scores.shape) == (("time", "component"), (60, 2))
        assert (scores.chunks is None) == (data.chunks is None)
        assert list(fitted.feature_names_in_) == NAMES
        np.testing.assert_array_equal(scores.time, DAYS)
        np.testing.assert_array_equal(scores.season, DAYS.astype(str))
        assert int(scores.level) == 500
        assert list(scores.component.values) == list(fitted.get_feature_names_out())
        np.testing.assert_allclose(np.asarray(scores), clone(plain).fit(X).transform(X), rtol=1e-6, atol=1e-6)


def test_what_is_fitted_is_plain_and_goes_on() -> None:
    pca = sp.PCA(6).fit(labelled())
    assert type(pca.components_) is np.ndarray
    back = pca.inverse_transform(pca.transform(labelled()))
    assert type(back) is np.ndarray
    np.testing.assert_allclose(back, X)
    assert pca.score(labelled()) == pytest.approx(sp.PCA(6).fit(X).score(X))
    weights = np.arange(60) % 3
    weighted = sp.PCA(2).fit(labelled(), sample_weight=weights)
    np.testing.assert_allclose(weighted.components_, sp.PCA(2).fit(X, sample_weight=weights).components_)


def test_other_names_are_refused() -> None:
    pca = sp.PCA(2).fit(labelled())
    with pytest.raises(DataError, match=r"'z'.*'a'"):
        pca.transform(labelled().assign_coords(gene=list("zbcdef")))


def test_a_grid_is_stacked() -> None:
    grid = xr.DataArray(
        X.reshape(60, 2, 3), dims=("time", "lat", "lon"), coords={"time": DAYS, "lat": [10.0, 20.0], "lon": [0.0, 1.0, 2.0]}
    )
    with pytest.raises(DataError, match=r"3 dimensions.*\.stack\(feature=\('lat', 'lon'\)\)"):
        sp.PCA(2).fit(grid)
    pca = sp.PCA(2).fit(grid.stack(feature=("lat", "lon")))
    assert list(pca.feature_names_in_[:2]) == ["lat=10.0, lon=0.0", "lat=10.0, lon=1.0"]
    np.testing.assert_array_equal(pca.components_, sp.PCA(2).fit(X).components_)
    cells = grid.stack(sample=("lat", "lon"))  # the other way round: a MultiIndex of samples
    scores = sp.PCA(2).fit(cells).transform(cells)
    assert scores.dims == ("sample", "component")
    assert scores.unstack("sample").sizes == {"component": 2, "lat": 2, "lon": 3}


def test_what_is_no_table() -> None:
    with pytest.raises(DataError, match="a DataArray is needed"):
        sp.PCA(2).fit(labelled(name="x").to_dataset())
    with pytest.raises(DataError, match="2-D"):
        sp.PCA(2).fit(labelled()[0])
    with pytest.raises(UsageError, match="leave out samples_axis"):
        sp.open_source(labelled(), samples_axis=1)


def test_names_that_say_nothing_are_left_out() -> None:
    source = sp.open_source(labelled().assign_coords(gene=[1, 1, 2, 3, 4, 5]))
    assert source.info.feature_names is None
    assert sp.open_source(labelled().drop_vars("gene")).info.feature_names is None
    assert sp.open_source(labelled().assign_coords(gene=np.arange(6) / 2)).info.feature_names == ("0.0", "0.5", "1.0", "1.5", "2.0", "2.5")


def test_xarray_is_never_imported() -> None:
    for path in Path(sp.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) xarray", path.read_text(), re.MULTILINE), path
