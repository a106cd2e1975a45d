from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampca import memory
from streampca.errors import UsageError
from streampca.memory import GIB, KIB, MIB, available_memory, current_rss, default_budget, format_bytes, parse_bytes, peak_rss


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("2GiB", 2 * GIB),
        (" 2 gib ", 2 * GIB),
        ("2G", 2 * GIB),
        ("2GB", 2 * 10**9),
        ("1.5kB", 1500),
        ("1e9", 10**9),
        ("1E+3 B", 1000),
        ("3TiB", 3 * 1024**4),
        ("1PB", 10**15),
        ("512", 512),
        (512, 512),
        (1e22, 10**22),
        (np.int64(7), 7),
    ],
)
def test_sizes_that_can_be_read(text: Any, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "2 XiB", "-1GiB", "0", 0, -5, "0.1", "1.2.3", ".", "1e999", "nan", float("nan"), float("inf"), True, None, "1 2", "2GiB!"],
)
def test_sizes_that_cannot(text: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.0 KiB"),
        (MIB, "1.0 MiB"),
        (1.5 * GIB, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (3 * 2**50, "3.00 PiB"),
    ],
)
def test_bytes_for_people(n_bytes: float, text: str) -> None:
    assert format_bytes(n_bytes) == text


@given(st.integers(1, 2**55))
def test_what_is_written_can_be_read(n_bytes: int) -> None:
    assert parse_bytes(format_bytes(n_bytes)) == pytest.approx(n_bytes, rel=0.06)


def test_this_process() -> None:
    assert 10 * MIB < current_rss() <= peak_rss() < 100 * GIB
    assert 0 < available_memory() < 2**50
    assert current_rss() < default_budget()


def test_the_peak_remembers() -> None:
    block = np.ones(64 * MIB, np.uint8)
    held = current_rss()
    del block
    assert peak_rss() >= held - MIB


class TestCgroups:
    """The limits of fabricated cgroup folders."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        names = ("memory.max", "memory.current", "inactive_file")
        monkeypatch.setattr(memory, "_cgroup_folders", lambda: [(tmp_path / "job", *names), (tmp_path, *names)])
        (tmp_path / "job").mkdir()
        self.limit(tmp_path, "max", 7)
        self.limit(tmp_path / "job", "max", 7)
        return tmp_path

    def limit(self, folder: Path, limit: Any, used: int, cache: int = 0) -> None:
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")

    def test_no_limit(self, folder: Path) -> None:
        assert memory._cgroup_headroom() == []

    def test_the_tightest_counts_and_cache_is_free(self, folder: Path) -> None:
        self.limit(folder, 50 * MIB, 20 * MIB)
        self.limit(folder / "job", 30 * MIB, 20 * MIB, 5 * MIB)
        assert available_memory() == 15 * MIB

    def test_a_full_one_leaves_nothing(self, folder: Path) -> None:
        self.limit(folder / "job", MIB, 2 * MIB)
        assert available_memory() == 0


def test_the_limit_of_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (memory._statm(0) + 10 * MIB, -1))
    assert available_memory() <= 10 * MIB


def test_folders_of_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "12:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/user.slice\n"
    monkeypatch.setattr(Path, "read_text", lambda self: lines)
    found = [(str(folder), name) for folder, name, *_ in memory._cgroup_folders()]
    assert ("/sys/fs/cgroup/memory/docker/x", "memory.limit_in_bytes") in found
    assert ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") in found
    assert ("/sys/fs/cgroup/user.slice", "memory.max") in found
    assert ("/sys/fs/cgroup", "memory.max") in found
    assert all(folder.startswith("/sys/fs/cgroup") for folder, _ in found)


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> str:
        raise FileNotFoundError(str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    assert current_rss() > 0
    assert peak_rss() > 0
    assert available_memory() > 0
