from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import numpy as np
import pytest

import streampca as sp
from streampca.errors import ChangedDataError, DataError, UsageError
from streampca.sources import ArraySource, open_source
from streampca.sources.missing_view import Blanked, Masked, blanked, masked
from tests.sources.conformance import Case, SourceTests, numbers


class TestBlanked(SourceTests):
    def make(self, folder: Path) -> Case:
        data, path = numbers(41, 5, "i2"), folder / "x.h5"
        write(path, data)
        return Case(lambda: Blanked(open_source(path), 7), np.where(data == 7, np.nan, data).astype("f4"), lambda: write(path, data + 1))


class TestMasked(SourceTests):
    def make(self, folder: Path) -> Case:
        data, mask, path = numbers(41, 5), numbers(41, 5, "b1", seed=1), folder / "x.h5"
        write(path, data)
        np.save(folder / "mask.npy", mask)
        wanted = np.where(mask, np.nan, data)
        return Case(lambda: masked(path, folder / "mask.npy"), wanted, lambda: write(path, data + 1))


def write(path: Path, data: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=data, chunks=(6, 5))


def table(dtype: str) -> np.ndarray:
    X = np.random.default_rng(0).integers(0, 5, (50, 4)).astype(dtype)
    X[[3, 9, 40], [0, 1, 3]] = 77
    return X


@pytest.mark.parametrize(("dtype", "shown"), [("f4", "f4"), ("f8", "f8"), ("u1", "f4"), ("i2", "f4"), ("i4", "f8"), ("i8", "f8")])
def test_a_value_is_shown_as_nan(dtype: str, shown: str) -> None:
    X = table(dtype)
    source = Blanked(open_source(X), 77)
    assert source.info.dtype == shown
    wanted = np.where(X == 77, np.nan, X.astype(shown))
    np.testing.assert_array_equal(source.read(slice(None)), wanted)
    np.testing.assert_array_equal(source.read(slice(7, 20)), wanted[7:20])
    out = np.empty((20, 4), shown)
    assert np.shares_memory(source.read(slice(3, 10), out), out)
    np.testing.assert_array_equal(blanked(X, 77), wanted)
    assert blanked(X, 1234) is X


def test_a_value_is_compared_as_it_is_stored() -> None:
    X = np.array([[1.0, -999.9]], "f4")
    assert np.isnan(Blanked(open_source(X), -999.9).read(slice(None))).tolist() == [[False, True]]


def test_a_mask_is_shown_as_nan(tmp_path: Path) -> None:
    X, mask = table("i4"), table("i4") == 3
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(7, 4))
        file.create_dataset("mask", data=mask, chunks=(9, 4))
    wanted = np.where(mask, np.nan, X)
    path = str(tmp_path / "x.h5")
    for source in (
        masked(X, mask),
        masked(X, mask.astype(int)),
        masked(path, path + "::mask", dataset="X"),
        masked(X, da.from_array(mask)),
    ):
        np.testing.assert_array_equal(source.read(slice(None)), wanted)
        np.testing.assert_array_equal(source.read(slice(11, 13)), wanted[11:13])
        np.testing.assert_array_equal(sp.open_array(source).compute(), wanted)


def test_what_changes_is_noticed(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.zeros((50, 4), bool))
    source = masked(table("f8"), tmp_path / "m.npy")
    source.check_unchanged()
    np.save(tmp_path / "m.npy", np.zeros((60, 4), bool))
    with pytest.raises(ChangedDataError):
        source.check_unchanged()
    one, other = Blanked(open_source(table("f8")), 1), Blanked(open_source(table("f8")), 2)
    assert one.info.fingerprint != other.info.fingerprint


def test_weights_and_names_are_those_of_the_table() -> None:
    source = masked(table("f8"), table("f8") == 1, weights=np.arange(50.0), feature_names=list("abcd"))
    assert source.info.weighted
    assert source.info.feature_names == ("a", "b", "c", "d")
    weights = source.weights(slice(3, 5))
    assert weights is not None
    assert weights.tolist() == [3.0, 4.0]


def test_dask_arrays_stay_lazy() -> None:
    X = da.from_array(table("i2"), chunks=(20, 4))
    lazy = Blanked(open_source(X), 77).lazy_rows(0, 20)
    assert lazy is not None
    np.testing.assert_array_equal(lazy.compute(), np.where(table("i2")[:20] == 77, np.nan, table("f4")[:20]))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="the mask has shape 3 x 4"):
        Masked(ArraySource(table("f8")), ArraySource(np.zeros((3, 4), bool)))
    for value in ("77", True, None):
        wrong: Any = value
        with pytest.raises(UsageError, match="must be a number"):
            Blanked(ArraySource(table("f8")), wrong)
