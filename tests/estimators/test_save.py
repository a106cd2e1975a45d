from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streampca as sp
from streampca import PCA
from streampca.errors import CorruptDataError, DataError, OutputError, SourceNotFoundError, UsageError
from streampca.storage import read_arrays, write_arrays

ARRAYS = ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_", "scale_")
NUMBERS = ("noise_variance_", "n_components_", "n_samples_", "n_features_in_", "n_passes_", "solver_")


def data(n: int = 100, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 5)) * np.arange(1, 6) + 4


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_components": 2},
        {"n_components": np.int64(2)},
        {"n_components": 0.7, "whiten": True, "standardize": True, "precision": "float64", "memory": "1GiB", "random_state": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("named", [False, True])
def test_everything_comes_back_bit_for_bit(tmp_path: Path, params: dict[str, Any], named: bool) -> None:
    X = pd.DataFrame(data(), columns=list("abcde")) if named else data()
    pca = PCA(**params).fit(X)
    pca.save(tmp_path / "m.zarr")
    again = sp.load(tmp_path / "m.zarr")
    assert isinstance(again, PCA)
    assert again.get_params() == pca.get_params()
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(pca, name), strict=True)
    for name in NUMBERS:
        assert getattr(again, name) == getattr(pca, name)
        assert type(getattr(again, name)) is type(getattr(pca, name))
    assert hasattr(again, "feature_names_in_") == named
    if named:
        np.testing.assert_array_equal(again.feature_names_in_, pca.feature_names_in_)
    np.testing.assert_array_equal(again.transform(X), pca.transform(X))
    np.testing.assert_array_equal(again.get_covariance(), pca.get_covariance())
    assert again.score(X) == pca.score(X)


def test_a_loaded_fit_goes_on(tmp_path: Path) -> None:
    X, more = data(), data(30, seed=1)
    pca = PCA(2).fit(X)
    pca.save(tmp_path / "m.zarr")
    wanted = PCA(2).fit(np.vstack([X, more]))
    for joined in (sp.load(tmp_path / "m.zarr").partial_fit(more), sp.load(tmp_path / "m.zarr").merge(PCA(2).fit(more))):
        np.testing.assert_allclose(joined.explained_variance_, wanted.explained_variance_, rtol=1e-12)
        np.testing.assert_allclose(joined.components_, wanted.components_, atol=1e-12)
        assert joined.n_samples_ == 130


def test_without_its_state_a_fit_transforms_but_does_not_go_on(tmp_path: Path) -> None:
    X = data()
    pca = PCA(2).fit(X)
    pca.save(tmp_path / "m.zarr", state=False)
    again = sp.load(tmp_path / "m.zarr")
    np.testing.assert_array_equal(again.transform(X), pca.transform(X))
    with pytest.raises(UsageError, match="state=True"):
        again.merge(pca)
    with pytest.raises(UsageError, match="state=True"):
        PCA(2).fit(X).merge(again)
    with pytest.raises(UsageError, match=r"stored without its state.*state=True"):
        again.partial_fit(X)
    assert again.n_samples_ == 100
    again.save(tmp_path / "again.zarr")
    assert again.fit(data(7)).n_samples_ == 7  # a fit starts over


def test_an_existing_model_is_replaced_only_on_request(tmp_path: Path) -> None:
    first, second = PCA(2).fit(data()), PCA(3).fit(data())
    first.save(tmp_path / "m.zarr")
    with pytest.raises(OutputError, match=r"exists already.*--overwrite") as caught:
        second.save(tmp_path / "m.zarr")
    assert caught.value.exit_code == 73
    assert sp.load(tmp_path / "m.zarr").n_components_ == 2
    second.save(tmp_path / "m.zarr", overwrite=True)
    assert sp.load(tmp_path / "m.zarr").n_components_ == 3
    assert [each.name for each in tmp_path.iterdir()] == ["m.zarr"]


def test_saving_twice_gives_the_same_files(tmp_path: Path) -> None:
    pca = PCA(2).fit(data())
    contents = []
    for name in ("a.zarr", "b.zarr"):
        pca.save(tmp_path / name)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert contents[0] == contents[1]


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot load .*nothing.zarr"):
        sp.load(tmp_path / "nothing.zarr")
    (tmp_path / "file.zarr").write_bytes(b"garbage")
    with pytest.raises(DataError, match=r"cannot load .*file.zarr"):
        sp.load(tmp_path / "file.zarr")
    write_arrays(tmp_path / "other.zarr", {"a": np.zeros(3)}, {}, kind="something", version=1)
    with pytest.raises(DataError, match="it holds a 'something'"):
        sp.load(tmp_path / "other.zarr")
    write_arrays(tmp_path / "newer.zarr", {"a": np.zeros(3)}, {}, kind="pca", version=99)
    with pytest.raises(DataError, match=r"layout version 99 .*update streampca"):
        sp.load(tmp_path / "newer.zarr")


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    PCA(2).fit(data()).save(tmp_path / "m.zarr")
    chunks = [path for path in (tmp_path / "m.zarr").rglob("*") if path.is_file() and path.name != "zarr.json"]
    assert len(chunks) >= 10
    for chunk in chunks:
        shutil.copytree(tmp_path / "m.zarr", tmp_path / "copy.zarr")
        copy = tmp_path / "copy.zarr" / chunk.relative_to(tmp_path / "m.zarr")
        content = bytearray(copy.read_bytes())
        content[len(content) // 2] ^= 1
        copy.write_bytes(content)
        with pytest.raises(CorruptDataError):
            sp.load(tmp_path / "copy.zarr")
        shutil.rmtree(tmp_path / "copy.zarr")


def test_a_well_stored_model_that_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    """Someone may write a model with valid checksums by other means: its parts are checked too."""
    PCA(2).fit(data()).save(tmp_path / "m.zarr")
    arrays, attributes, version = read_arrays(tmp_path / "m.zarr", kind="pca", max_version=2)
    wrong: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**arrays, "model/mean": np.zeros(4)}, attributes),
        ({**arrays, "model/components": np.zeros(10)}, attributes),
        ({**arrays, "model/components": np.full((2, 5), np.nan)}, attributes),
        ({**arrays, "model/surprise": np.zeros(2)}, attributes),
        ({**arrays, "elsewhere/mean": np.zeros(5)}, attributes),
        ({name: array for name, array in arrays.items() if name != "model/scale"}, attributes),
        ({name: array for name, array in arrays.items() if name != "state/scatter"}, attributes),
        ({**arrays, "state/scatter": np.zeros((4, 4))}, attributes),
        (arrays, {key: value for key, value in attributes.items() if key != "params"}),
        (arrays, {**attributes, "params": [1, 2]}),
    ]
    for number, (parts, facts) in enumerate(wrong):
        write_arrays(tmp_path / f"{number}.zarr", parts, facts, kind="pca", version=version)
        with pytest.raises(CorruptDataError):
            sp.load(tmp_path / f"{number}.zarr")


def test_a_model_that_is_gone_while_it_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no file or folder"):
        PCA._load(tmp_path / "gone.zarr")
