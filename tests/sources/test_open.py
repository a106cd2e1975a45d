from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from streampca.errors import CorruptDataError, DataError, SourceNotFoundError, UsageError
from streampca.sources import REGISTRY, ArraySource, ManySource, WithNames, open_source
from streampca.sources.hdf5 import HDF5Source
from streampca.sources.npy import NpySource
from streampca.sources.zarr_store import ZarrSource
from tests.sources.conformance import assert_reads, numbers

DATA = numbers(12, 3)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs").mkdir()
    for i in (2, 0, 1):
        with h5py.File(tmp_path / "runs" / f"{i}.h5", "w") as file:
            file["group/X"] = DATA[4 * i : 4 * i + 4]
            file["other"] = DATA
    np.save(tmp_path / "x.npy", DATA)
    return tmp_path


@pytest.mark.parametrize("text", ["runs/*.h5::/group/X", "./runs/[0-2].h5::group/X", "~/runs/?.h5::group", "**/*.h5::group/X"])
def test_globs(folder: Path, text: str) -> None:
    source = open_source(text)
    assert isinstance(source, ManySource)
    assert all(Path(part.path).is_absolute() for part in source.sources if isinstance(part, HDF5Source))
    assert_reads(source, DATA)


def test_a_glob_of_one_is_that_file(folder: Path) -> None:
    assert isinstance(open_source("runs/0*.h5", dataset="group/X"), HDF5Source)
    with pytest.raises(SourceNotFoundError, match=r"no file matches .*runs/\*\.hdf"):
        open_source("runs/*.hdf")


def test_a_name_that_looks_like_a_glob(folder: Path) -> None:
    np.save(folder / "x[1].npy", DATA)
    assert_reads(open_source("x[1].npy"), DATA)


@pytest.mark.parametrize("way", ["x.npy", "./x.npy", "~/x.npy", Path("x.npy"), "runs/../x.npy", "file"])
def test_paths(folder: Path, way: str | Path) -> None:
    source = open_source((folder / "x.npy").as_uri() if way == "file" else way)
    assert isinstance(source, NpySource)
    assert source.path == str(folder / "x.npy")
    assert_reads(source, DATA)


def test_the_dataset_is_named_once(folder: Path) -> None:
    assert open_source("runs/0.h5::group/X", dataset="/group/X").info.n_rows == 4
    with pytest.raises(UsageError, match="two datasets were named: 'group/X' after :: and dataset='other'"):
        open_source("runs/0.h5::group/X", dataset="other")


def test_many_paths(folder: Path) -> None:
    assert_reads(open_source([f"runs/{i}.h5::group/X" for i in range(3)]), DATA)
    assert_reads(open_source(("x.npy", ArraySource(DATA))), np.concatenate([DATA, DATA]))


def test_formats_by_suffix_and_by_content(folder: Path) -> None:
    for suffix in (".hdf5", ".he5", ".hdf", ".nc", ".nc4", ".h5ad", ".mat", ".H5", ".unknown", ""):
        with h5py.File(folder / f"a{suffix}", "w") as file:
            file["X"] = DATA
        assert isinstance(open_source(folder / f"a{suffix}"), HDF5Source)
    (folder / "plain").write_bytes((folder / "x.npy").read_bytes())
    assert isinstance(open_source("plain"), NpySource)
    for version in (2, 3):
        zarr.create_array(f"store{version}", shape=DATA.shape, dtype="f8", zarr_format=version)[:] = DATA
        assert isinstance(open_source(f"store{version}"), ZarrSource)


def test_what_cannot_be_read(folder: Path) -> None:
    (folder / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"x\.csv is in no format that can be read.*HDF5 \(\.h5.*\.npy.*\.zarr"):
        open_source("x.csv")
    with pytest.raises(DataError, match="no format"):
        open_source("runs")
    with pytest.raises(SourceNotFoundError, match=r"Did you mean 'x\.npy'"):
        open_source("y.npy")
    with pytest.raises(CorruptDataError, match="not an HDF5 file"):
        (folder / "old.mat").write_bytes(b"MATLAB 5.0 MAT-file")
        open_source("old.mat")
    with pytest.raises(DataError, match="local disks only"):
        open_source("s3://bucket/x.h5")
    with pytest.raises(UsageError, match="list of URLs"):
        open_source("s3://bucket/*.zarr")


@pytest.mark.parametrize("axis", [2, -1, None, "0"])
def test_wrong_axis(folder: Path, axis: int) -> None:
    with pytest.raises(UsageError, match="samples_axis must be 0"):
        open_source("x.npy", samples_axis=axis)


def test_arrays() -> None:
    assert_reads(open_source(DATA), DATA)
    assert_reads(open_source(DATA, samples_axis=1), DATA.T)
    assert_reads(open_source([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
    assert_reads(open_source(((1.5, 2), (3, 4))), np.array([[1.5, 2], [3, 4]]))
    with pytest.raises(UsageError, match="only files have datasets"):
        open_source(DATA, dataset="X")


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    source = open_source(pandas.DataFrame(DATA, columns=list("abc")), columns=["c"])
    assert source.info.feature_names == ("c",)
    assert_reads(source, DATA[:, 2:])


def test_sparse_matrices_are_refused() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(DataError, match="sparse"):
        open_source(sparse.csr_matrix(DATA))


def test_sources() -> None:
    source = ArraySource(DATA)
    assert open_source(source) is source
    assert isinstance(open_source(source, feature_names="abc"), WithNames)
    assert_reads(open_source(source, rows="2:5", columns=[0]), DATA[2:5, :1])
    with pytest.raises(UsageError, match="open already"):
        open_source(source, samples_axis=1)


def test_open_datasets_are_opened_by_their_path(folder: Path) -> None:
    with h5py.File(folder / "runs" / "0.h5") as file:
        source = open_source(file["group/X"])
    assert isinstance(source, HDF5Source)
    assert_reads(source, DATA[:4])
    array = zarr.create_array(folder / "x.zarr", name="g/X", shape=DATA.shape, dtype="f8")
    array[:] = DATA
    assert_reads(open_source(array), DATA)
    with pytest.raises(UsageError, match="cannot tell where"):
        open_source(zarr.create_array({}, shape=(2, 2), dtype="f8"))


def test_registry_has_no_suffix_twice() -> None:
    suffixes = [suffix for reader in REGISTRY for suffix in reader.suffixes]
    assert len(set(suffixes)) == len(suffixes)
