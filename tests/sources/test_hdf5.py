from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from streampca.errors import ChangedDataError, CorruptDataError, DataError, SourceNotFoundError
from streampca.sources import hdf5, open_source
from streampca.sources.hdf5 import HDF5Source
from tests.sources.conformance import Case, SourceTests, assert_reads, numbers

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", ">f4", ">f8", ">i2"]
LAYOUTS: dict[str, Any] = {
    "contiguous": {},
    "rows": {"chunks": (4, 5)},
    "columns": {"chunks": (23, 2)},
    "ragged": {"chunks": (5, 3)},
    "taller": {"chunks": (30, 5), "maxshape": (None, None)},
    "gzip": {"chunks": (4, 3), "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": (4, 3), "compression": "lzf"},
    "fletcher32": {"chunks": (4, 3), "fletcher32": True},
}


def write(path: Path, data: np.ndarray, key: str = "X", **layout: Any) -> str:
    with h5py.File(path, "w") as file:
        file.create_dataset(key, data=data, **layout)
    return str(path)


def swap_in(path: Path, data: np.ndarray, **layout: Any) -> None:
    """Replace a file, as a careful writer does."""
    other = path.with_suffix(".tmp")
    write(other, data, **layout)
    other.replace(path)


class TestChunked(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.h5", numbers(41, 5)
        write(path, data, chunks=(6, 2), compression="gzip")
        return Case(lambda: open_source(path), data, lambda: swap_in(path, data + 1, chunks=(6, 2)))


class TestContiguousBigEndian(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.hdf5", numbers(30, 4, ">f4")
        write(path, data)
        return Case(lambda: open_source(path), data, lambda: swap_in(path, data + 1))


class TestSamplesAreColumns(SourceTests):
    def make(self, folder: Path) -> Case:
        path, data = folder / "x.h5", numbers(5, 37)
        write(path, data, chunks=(2, 8))
        return Case(lambda: open_source(path, samples_axis=1), data.T, lambda: swap_in(path, data + 1, chunks=(2, 8)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dtypes_and_layouts(tmp_path: Path, dtype: str, layout: str) -> None:
    data = numbers(23, 5, dtype)
    path = write(tmp_path / "x.h5", data, **LAYOUTS[layout])
    for axis in (0, 1):
        source = open_source(path, samples_axis=axis)
        assert source.info.dtype == np.dtype(dtype).newbyteorder("=")
        assert_reads(source, data.T if axis else data)


def test_facts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", np.zeros((100, 8)), key="g/X", chunks=(10, 4), compression="gzip", shuffle=True)
    source = open_source(path)
    assert isinstance(source, HDF5Source)
    assert (source.path, source.key) == (path, "/g/X")
    info = source.info
    assert (info.chunk_rows, info.chunk_features) == (10, 4)
    assert 0 < info.bytes_stored < info.bytes_decoded
    assert info.read_scratch >= 2 * 10 * 4 * 8
    assert info.description == f"{path}::/g/X"
    turned = open_source(path, samples_axis=1).info
    assert (turned.n_rows, turned.n_features, turned.chunk_rows, turned.chunk_features) == (8, 100, 4, 10)


def test_details(tmp_path: Path) -> None:
    data = np.zeros((20, 4))
    plain = open_source(write(tmp_path / "a.h5", data)).details()
    assert (plain["format"], plain["dataset"], plain["layout"], plain["chunks"]) == ("hdf5", "/X", "contiguous", None)
    assert (plain["checksum"], plain["fill_value"], plain["compression_ratio"]) == ("unprotected", 0.0, 1.0)
    zipped = open_source(write(tmp_path / "b.h5", data, chunks=(5, 4), compression="gzip", compression_opts=7, shuffle=True)).details()
    assert [each["name"] for each in zipped["filters"]] == ["shuffle", "gzip"]
    assert zipped["filters"][1]["options"] == [7]
    assert zipped["checksum"] == "gzip's adler32 is checked when decoding"
    assert zipped["compression_ratio"] > 1
    assert open_source(write(tmp_path / "c.h5", data, chunks=(5, 4), fletcher32=True)).details()["checksum"] == "fletcher32"


def test_unallocated_chunks_are_counted_and_read_as_fill(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        dataset = file.create_dataset("X", (20, 6), "f4", chunks=(5, 3), fillvalue=7)
        dataset[:5] = 1
        file.create_dataset("Y", (20, 6), "f4")
    source = open_source(tmp_path / "x.h5", dataset="X")
    assert source.missing_chunks() == 6
    assert source.details()["fill_value"] == 7
    expected = np.full((20, 6), 7, "f4")
    expected[:5] = 1
    assert_reads(source, expected)
    assert open_source(tmp_path / "x.h5", dataset="Y").missing_chunks() == 1


# ---------------------------------------------------------------------------------------- handles


def test_handles_are_few(tmp_path: Path) -> None:
    sources = [open_source(write(tmp_path / f"{i}.h5", np.full((4, 2), float(i)))) for i in range(40)]
    for i, source in enumerate(sources):
        assert source.read(slice(None))[0, 0] == i
    assert len(hdf5._HANDLES) <= 16


def test_an_evicted_handle_serves_the_thread_that_reads(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "x.h5", np.ones((4, 2))))
    handle = source._handle()  # type: ignore[attr-defined]
    source.release()
    assert handle.dataset[0, 0] == 1
    open_source(tmp_path / "x.h5")  # opens and closes the same file
    assert handle.dataset[0, 0] == 1


def test_a_replaced_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    source = open_source(write(path, np.ones((4, 2))))
    source.read(slice(None))
    swap_in(path, np.full((6, 2), 2.0))  # more rows: the count is pinned
    np.testing.assert_array_equal(source.read(slice(None)), np.full((4, 2), 2.0))
    swap_in(path, np.full((3, 2), 2.0))
    with pytest.raises(ChangedDataError, match=r"was \(4, 2\) float64.*now it is \(3, 2\)"):
        source.read(slice(None))


def test_moving_the_folder_keeps_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    before = open_source(write(tmp_path / "a" / "x.h5", np.ones((4, 2)))).info.fingerprint
    (tmp_path / "a").rename(tmp_path / "b")
    assert open_source(tmp_path / "b" / "x.h5").info.fingerprint == before


def test_opening_while_others_read(tmp_path: Path) -> None:
    data = numbers(200, 8)
    path = write(tmp_path / "x.h5", data, chunks=(10, 8), compression="gzip")
    source = open_source(path)
    wrong: list[int] = []

    def read() -> None:
        wrong.extend(a for a in range(0, 200, 10) if not np.array_equal(source.read(slice(a, a + 10)), data[a : a + 10]))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        open_source(path)
        source.release()
    for thread in threads:
        thread.join()
    assert not wrong


# ---------------------------------------------------------------------------------------- names


def with_names(path: Path, where: str) -> Path:
    names = ["a", "b", "ü"]
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("X", data=np.ones((4, 3)))
        if where.startswith("@"):
            dataset.attrs[where[1:]] = names
        elif where == "bytes":
            dataset.attrs["columns"] = np.array([name.encode() for name in names])
        elif where == "anndata":
            file.create_group("var").attrs["_index"] = "gene"
            file["var/gene"] = names
        elif where == "anndata by hand":
            file["var/_index"] = names
        elif where == "scale":
            file["wavelength"] = names
            file["wavelength"].make_scale("wavelength")
            dataset.dims[1].attach_scale(file["wavelength"])
        else:
            file[where] = names
    return path


@pytest.mark.parametrize(
    "where",
    [
        "@feature_names",
        "@columns",
        "@var_names",
        "bytes",
        "features",
        "column_names",
        "X_columns",
        "X_feature_names",
        "anndata",
        "anndata by hand",
        "scale",
    ],
)
def test_feature_names(tmp_path: Path, where: str) -> None:
    assert open_source(with_names(tmp_path / "x.h5", where), dataset="X").info.feature_names == ("a", "b", "ü")
    assert open_source(tmp_path / "x.h5", dataset="X", samples_axis=1).info.feature_names is None  # 4 features, 3 names


def test_names_of_the_wrong_kind_are_ignored(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = np.ones((4, 3))
        file["X"].attrs["feature_names"] = ["a", "b"]
        file["X"].attrs["columns"] = [1, 2, 3]
        file["columns"] = np.arange(3)
        file["features"] = h5py.ExternalLink("secret.h5", "/names")
    assert open_source(tmp_path / "x.h5").info.feature_names is None


# ---------------------------------------------------------------------------------------- which dataset


def test_the_only_table_is_found(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g/deep/table"] = np.ones((4, 3))
        file["time"] = np.ones(4)
        file["labels"] = np.array([[b"a", b"b"]])
        file["soft"] = h5py.SoftLink("/g/deep")
        file["loop"] = h5py.SoftLink("/loop")
    for dataset in (None, "/", "g", "/g/deep/", "g/deep/table", "soft/table"):
        assert open_source(tmp_path / "x.h5", dataset=dataset).info.description.endswith("::/g/deep/table") or dataset == "soft/table"
    with pytest.raises(DataError, match="circle"):
        open_source(tmp_path / "x.h5", dataset="loop")


def test_candidates_are_listed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["group/train"] = np.ones((4, 3), "f4")
        file["group/test"] = np.ones((2, 3))
        file["cube"] = np.ones((2, 2, 2))
        file["line"] = np.ones(2)
        file["other/line"] = np.ones(2)
    with pytest.raises(DataError, match=r"2 2-D numeric datasets: /group/test \(2, 3\) float64, /group/train \(4, 3\) float32.*dataset="):
        open_source(tmp_path / "x.h5")
    with pytest.raises(DataError, match=r"x.h5::/other holds no 2-D numeric dataset: it has /other/line \(2,\) float64"):
        open_source(tmp_path / "x.h5", dataset="other")
    with pytest.raises(SourceNotFoundError, match=r"no dataset 'group/tran' in .*x.h5. Did you mean 'group/train'\?.*/cube \(2, 2, 2\)"):
        open_source(tmp_path / "x.h5", dataset="group/tran")
    with pytest.raises(SourceNotFoundError, match="Did you mean 'group/train'"):
        open_source(tmp_path / "x.h5", dataset="train")
    with pytest.raises(FileNotFoundError):
        open_source(tmp_path / "x.h5", dataset="cube/inside")


def test_a_field_is_not_passed_over_for_the_bounds_of_its_time(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file["t2m"], file["time_bnds"], file["flat"] = np.ones((6, 4, 5)), np.ones((6, 2)), np.ones(6)
        file["time_bnds"].attrs.update({"scale_factor": 0.5, "_FillValue": np.array([-9], "i2")})
    with pytest.raises(DataError, match=r"holds /time_bnds \(6, 2\) float64, and larger arrays that are no tables: /t2m \(6, 4, 5\)"):
        open_source(tmp_path / "x.nc")
    with pytest.raises(DataError, match=r"3 dimension\(s\).*is needed: flatten its other axes, .*reshape"):
        open_source(tmp_path / "x.nc", dataset="t2m")
    assert open_source(tmp_path / "x.nc", dataset="time_bnds").details()["not_applied"] == "scale_factor=0.5, _FillValue=-9"
    with h5py.File(tmp_path / "y.nc", "w") as file:
        file["t2m"] = np.ones((6, 4, 5))
    with pytest.raises(DataError, match=r"no 2-D numeric dataset: it has .* is needed: flatten its other axes"):
        open_source(tmp_path / "y.nc")


def test_anndata_means_x(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file["X"] = np.ones((4, 3))
        file["obsm/X_pca"] = np.ones((4, 2))
    assert open_source(tmp_path / "x.h5ad").info.n_features == 3
    with h5py.File(tmp_path / "x.h5ad", "a") as file:
        del file.attrs["encoding-type"]  # files of old have none
    assert open_source(tmp_path / "x.h5ad").info.n_features == 3
    with h5py.File(tmp_path / "s.h5ad", "w") as file:
        file.attrs["encoding-type"] = "anndata"
        file.create_group("X").attrs["encoding-type"] = "csr_matrix"
    with pytest.raises(DataError, match="sparse matrix"):
        open_source(tmp_path / "s.h5ad")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.ones(3), "1 dimension"),
        (np.ones((2, 2, 2)), "3 dimension"),
        (np.array([[b"a", b"b"]]), "strings"),
        (np.ones((2, 2), [("a", "f4"), ("b", "i4")]), "records"),
        (np.ones((2, 2), complex), "complex"),
        (np.ones((0, 3)), "empty"),
        (np.ones((3, 0)), "empty"),
        (h5py.Empty("f4"), "0 dimension"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, data: np.ndarray, message: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["X"] = data
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "x.h5", dataset="X")


# ---------------------------------------------------------------------------------------- broken files


def test_no_such_file(tmp_path: Path) -> None:
    write(tmp_path / "night_01.h5", np.ones((2, 2)))
    with pytest.raises(SourceNotFoundError, match=r"night_1\.h5\. Did you mean 'night_01\.h5'"):
        open_source(tmp_path / "night_1.h5")
    with pytest.raises(SourceNotFoundError, match="there is no folder"):
        open_source(tmp_path / "nope" / "night_1.h5")


def test_truncated_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    whole = Path(write(path, numbers(50, 8), chunks=(10, 8))).read_bytes()
    for size in [0, 1, 7, 8, 20, 47, *range(48, len(whole), 397), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptDataError, match=rf"x\.h5.*\b{size}\b"):
            open_source(path)
    path.write_bytes(whole[:1000])
    with pytest.raises(CorruptDataError, match=rf"truncated: it has 1000 bytes, but its header says {len(whole)}"):
        open_source(path)


def test_not_hdf5(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_text("time,flux\n")
    with pytest.raises(CorruptDataError, match=r"x\.h5 \(10 bytes\) is not an HDF5 file"):
        open_source(tmp_path / "x.h5")


def test_locked_by_a_writer(tmp_path: Path) -> None:
    path = write(tmp_path / "x.h5", np.ones((4, 2)))
    code = "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(DataError, match=r"open for writing in another process.*wait.*HDF5_USE_FILE_LOCKING"):
            open_source(path)
        writer.communicate()
    assert open_source(path).info.n_rows == 4


def test_a_corrupt_chunk_is_named(tmp_path: Path) -> None:
    data = numbers(40, 4)
    path = write(tmp_path / "x.h5", data, chunks=(10, 4), compression="gzip")
    with h5py.File(path) as file:
        place = file["X"].id.get_chunk_info(2)
    with Path(path).open("r+b") as raw:
        raw.seek(place.byte_offset + place.size // 2)
        raw.write(b"\xff" * 20)
    source = open_source(path)
    np.testing.assert_array_equal(source.read(slice(0, 20)), data[:20])
    with pytest.raises(CorruptDataError, match=r"x\.h5::/X: rows 20 to 29 cannot be read"):
        source.read(slice(20, 30))
    with pytest.raises(CorruptDataError, match="rows"):
        open_source(path, samples_axis=1).read(slice(None))


# ---------------------------------------------------------------------------------------- other people's files


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    return Path(write(tmp_path / "home" / "secret.h5", np.ones((4, 2))))


def test_external_links_are_refused(secret: Path, tmp_path: Path) -> None:
    path = tmp_path / "work" / "x.h5"
    with h5py.File(path, "w") as file:
        file["X"] = h5py.ExternalLink(str(secret), "/X")
        file["g"] = h5py.ExternalLink(str(secret), "/")
        file["soft"] = h5py.SoftLink("/g/X")
    for dataset in ("X", "g/X", "soft"):
        with pytest.raises(DataError, match=r"external link to .*secret\.h5"):
            open_source(path, dataset=dataset)
    with pytest.raises(DataError, match="no dataset at all"):
        open_source(path)


def test_external_storage_is_refused(secret: Path, tmp_path: Path) -> None:
    path = tmp_path / "work" / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (2, 2), "f8", external=[(str(secret), 0, 32)])
    with pytest.raises(DataError, match=r"external files \(.*secret\.h5\)"):
        open_source(path)


def virtual(path: Path, source: str, key: str = "X") -> Path:
    layout = h5py.VirtualLayout((4, 2), "f8")
    layout[:] = h5py.VirtualSource(source, key, (4, 2))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("X", layout)
    return path


def test_virtual_sources_outside_the_folder_are_refused(secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    for name in (str(secret), "../home/secret.h5"):
        with pytest.raises(DataError, match=r"source outside its folder \(.*secret\.h5\)"):
            open_source(virtual(work / "x.h5", name))
    (work / "innocent.h5").symlink_to(secret)
    with pytest.raises(DataError, match="outside its folder"):
        open_source(virtual(work / "x.h5", "innocent.h5"))
    virtual(work / "step.h5", str(secret))
    with pytest.raises(DataError, match=r"step\.h5::/X.*outside its folder"):
        open_source(virtual(work / "x.h5", "step.h5"))
    with h5py.File(work / "link.h5", "w") as file:
        file["X"] = h5py.ExternalLink(str(secret), "/X")
    with pytest.raises(DataError, match="external link"):
        open_source(virtual(work / "x.h5", "link.h5"))
    monkeypatch.chdir(tmp_path / "home")  # HDF5 would look for it here
    with pytest.raises(DataError, match="outside its folder"):
        open_source(virtual(work / "x.h5", "secret.h5"))


def test_virtual_sources_within_the_folder_are_read(tmp_path: Path) -> None:
    data = numbers(4, 2)
    write(tmp_path / "part.h5", data)
    source = open_source(virtual(tmp_path / "x.h5", "part.h5"))
    assert_reads(source, data)
    assert source.details()["layout"] == "virtual"
    assert source.missing_chunks() == 0
    (tmp_path / "part.h5").unlink()
    assert open_source(tmp_path / "x.h5").missing_chunks() == 1


def test_plugins_are_loaded_where_needed(tmp_path: Path) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    data = numbers(20, 4)
    path = write(tmp_path / "x.h5", data, chunks=(5, 4), **hdf5plugin.Blosc())
    assert_reads(open_source(path), data)
    code = "import sys, streampca.sources as s; x = s.open_source(sys.argv[1]); assert x.read(slice(None)).shape == (20, 4)"
    subprocess.run([sys.executable, "-c", code, path], check=True, cwd=Path(__file__).parents[2])
