from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from streampca import staging
from streampca.errors import OutputError
from streampca.staging import check_free_space, check_target, output_error, preallocate, remove_partials, staged


def make_store(path: Path, text: str = "old") -> Path:
    (path / "c").mkdir(parents=True)
    (path / "zarr.json").write_text("{}")
    (path / "c" / "0").write_text(text)
    return path


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def no_renameat2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_libc_function", lambda name: None)


@pytest.fixture(params=["renameat2", "plain"])
def either_way(request: pytest.FixtureRequest) -> None:
    if request.param == "plain":
        request.getfixturevalue("no_renameat2")


# --- check_target ---


def test_a_free_target_is_fine_and_nothing_is_created(tmp_path: Path) -> None:
    check_target(tmp_path / "a" / "b" / "c.npy")
    assert names(tmp_path) == []


def test_an_existing_target_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_text("x")
    with pytest.raises(OutputError, match=r"a\.npy exists already.*overwrite=True \(--overwrite\)") as caught:
        check_target(tmp_path / "a.npy")
    assert caught.value.exit_code == 73
    check_target(tmp_path / "a.npy", overwrite=True)


@pytest.mark.parametrize("where", ["f/x.npy", "f/a/b/x.npy"])
def test_a_parent_that_is_a_file(tmp_path: Path, where: str) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(OutputError, match="f is a file, not a folder"):
        check_target(tmp_path / where)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *a: False)  # the tests may run as root, who may write everywhere
    with pytest.raises(OutputError, match="no permission to create files in"):
        check_target(tmp_path / "new" / "x.npy")


@pytest.mark.parametrize("marker", ["zarr.json", ".zgroup", ".zarray"])
def test_stores_and_empty_folders_may_be_replaced(tmp_path: Path, marker: str) -> None:
    (tmp_path / "a.zarr").mkdir()
    check_target(tmp_path / "a.zarr", overwrite=True)
    (tmp_path / "a.zarr" / marker).touch()
    (tmp_path / "a.zarr" / "0.0").touch()
    check_target(tmp_path / "a.zarr", overwrite=True)


@pytest.mark.parametrize("link", [False, True])
def test_a_foreign_folder_is_never_replaced(tmp_path: Path, link: bool) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("ten years")
    target = tmp_path / "home"
    if link:
        target = tmp_path / "link"
        target.symlink_to("home")
    with pytest.raises(OutputError, match="never deletes such a folder"), staged(target, overwrite=True) as partial:
        partial.mkdir()
    assert (tmp_path / "home" / "thesis.tex").read_text() == "ten years"


def test_a_folder_that_becomes_foreign_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "a.zarr"
    target.mkdir()
    with pytest.raises(OutputError, match="never deletes"), staged(target, overwrite=True) as partial:
        make_store(partial)
        (target / "thesis.tex").write_text("ten years")
    assert names(tmp_path) == ["a.zarr"]
    assert names(target) == ["thesis.tex"]


def test_special_files_are_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    with pytest.raises(OutputError, match="neither a file nor a folder"):
        check_target(tmp_path / "pipe.npy", overwrite=True)
    with pytest.raises(OutputError, match="neither a file nor a folder"):
        check_target("/dev/null", overwrite=True)


def test_too_long_a_name(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="longer than 220 bytes"):
        check_target(tmp_path / ("ä" * 111))


# --- free space ---


def test_free_space(tmp_path: Path) -> None:
    check_free_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(OutputError, match=r"needs 1152921504606846976 bytes \(1024.00 PiB\), but \d+ bytes .* are free") as caught:
        check_free_space(tmp_path / "not" / "yet", 2**60)
    assert caught.value.exit_code == 73


def test_preallocate_keeps_the_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    preallocate(tmp_path / "a", 100_000)
    assert (tmp_path / "a").read_text() == "abc"
    with pytest.raises(OutputError, match="cannot reserve"):
        preallocate(tmp_path / "a", 2**60)


# --- staged ---


def test_a_file_appears_at_the_end(tmp_path: Path, either_way: None) -> None:
    target = tmp_path / "a" / "b" / "c.npy"
    with staged(target) as partial:
        assert partial.parent == target.parent
        assert partial.name.startswith(".c.npy.partial-")
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert names(target.parent) == ["c.npy"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failure_removes_everything_that_was_made(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(error), staged(tmp_path / "there" / "a" / "b" / "c.zarr") as partial:
        make_store(partial)
        raise error
    assert names(tmp_path) == ["there"]
    assert names(tmp_path / "there") == []


def test_folders_that_others_use_are_kept_on_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyError), staged(tmp_path / "a" / "b" / "c.npy"):
        (tmp_path / "a" / "log.txt").touch()
        raise KeyError
    assert names(tmp_path / "a") == ["log.txt"]


def test_nothing_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staged(tmp_path / "a" / "c.npy"):
        pass
    assert names(tmp_path) == []


def test_a_store_is_exchanged(tmp_path: Path, either_way: None) -> None:
    target = make_store(tmp_path / "m.zarr")
    with staged(target, overwrite=True) as partial:
        make_store(partial, "new")
        assert (target / "c" / "0").read_text() == "old"
    assert (target / "c" / "0").read_text() == "new"
    assert names(tmp_path) == ["m.zarr"]


@pytest.mark.parametrize("old_is_folder", [True, False])
def test_a_file_and_a_folder_replace_each_other(tmp_path: Path, either_way: None, old_is_folder: bool) -> None:
    target = tmp_path / "out"
    _ = make_store(target) if old_is_folder else target.write_text("old")
    with staged(target, overwrite=True) as partial:
        _ = partial.write_text("new") if old_is_folder else make_store(partial, "new")
    assert (target if old_is_folder else target / "c" / "0").read_text() == "new"
    assert names(tmp_path) == ["out"]


def test_the_old_store_comes_back_if_the_renaming_fails(tmp_path: Path, no_renameat2: None, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_store(tmp_path / "m.zarr")
    rename = Path.rename

    def fail_for_partial(self: Path, other: Path) -> Path:
        if ".partial-" in self.name:
            raise OSError(errno.EROFS, "read-only", os.fspath(self))
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail_for_partial)
    with pytest.raises(OutputError, match="Read-only file system"), staged(target, overwrite=True) as partial:
        make_store(partial, "new")
    assert (target / "c" / "0").read_text() == "old"
    assert names(tmp_path) == ["m.zarr"]


def test_the_kernel_exchanges_here(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("Linux only")
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").mkdir()
    code = staging._renameat2(tmp_path / "a", tmp_path / "b", staging._RENAME_EXCHANGE)
    if code in staging._UNSUPPORTED:
        pytest.skip("this file system cannot")
    assert (tmp_path / "a").is_dir()
    assert (tmp_path / "b").is_file()


def test_a_target_that_appears_meanwhile_is_kept(tmp_path: Path, either_way: None) -> None:
    with pytest.raises(OutputError, match="exists already"), staged(tmp_path / "a.npy") as partial:
        partial.write_text("mine")
        (tmp_path / "a.npy").write_text("theirs")
    assert (tmp_path / "a.npy").read_text() == "theirs"
    assert names(tmp_path) == ["a.npy"]


def test_a_target_that_appears_at_the_last_moment_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    (tmp_path / "b").write_text("theirs")
    with pytest.raises(OutputError, match="created by another run"):
        staging._rename_new(tmp_path / "a", tmp_path / "b")


def test_a_link_stands_for_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "a.npy").symlink_to("big/a.npy")
    with staged(tmp_path / "a.npy") as partial:
        partial.write_text("new")
    assert (tmp_path / "a.npy").is_symlink()
    assert (tmp_path / "big" / "a.npy").read_text() == "new"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_or_read_only_disk_is_an_output_error(tmp_path: Path, code: int) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*a\.npy: .*; (free|choose)") as caught, staged(tmp_path / "a.npy"):
        raise OSError(code, os.strerror(code))
    assert caught.value.exit_code == 73
    assert names(tmp_path) == []


def test_a_forbidden_input_is_not_taken_for_the_output(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), staged(tmp_path / "a.npy"):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/input.h5")
    with pytest.raises(OutputError, match="change the mode"), staged(tmp_path / "a.npy") as partial:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(partial))


def test_an_output_error_is_kept() -> None:
    error = OutputError("said before")
    assert output_error(error, "x") is error


KILLED = """
import os, signal, sys
from pathlib import Path
from streampca.staging import staged
with staged(sys.argv[1], overwrite=True) as partial:
    partial.mkdir()
    (partial / "zarr.json").write_text("{}")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_run_leaves_only_a_hidden_partial(tmp_path: Path) -> None:
    target = make_store(tmp_path / "m.zarr")
    done = subprocess.run([sys.executable, "-c", KILLED, target], check=False, cwd=Path(__file__).parents[1])
    assert done.returncode == -signal.SIGKILL
    assert (target / "c" / "0").read_text() == "old"
    hidden, kept = names(tmp_path)
    assert kept == "m.zarr"
    assert hidden.startswith(".m.zarr.partial-")
    with staged(target, overwrite=True) as partial:
        make_store(partial, "new")
    assert (target / "c" / "0").read_text() == "new"
    assert remove_partials(target) == 1
    assert names(tmp_path) == ["m.zarr"]
    assert remove_partials(tmp_path / "no" / "such" / "folder") == 0
