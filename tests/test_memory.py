"""How much memory a pool may take, and what it takes before it is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from draftwood import memory
from draftwood.errors import UsageError

CPU = torch.device("cpu")
FREE = 1000 * 2**20


@pytest.fixture(autouse=True)
def known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: FREE)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, FREE // 2),
        (0.25, FREE // 4),
        ("0.25", FREE // 4),
        ("25%", FREE // 4),
        (1, FREE),
        ("100 %", FREE),
        ("64MiB", 64 * 2**20),
        ("64 mb", 64 * 10**6),
        ("0.5GiB", 2**29),
        ("1k", 1000),
        ("4096", 4096),
        ("2b", 2),
    ],
)
def test_shares_and_bytes(wanted: str | float | None, expected: int) -> None:
    assert memory.budget_bytes(wanted, CPU) == expected


@pytest.mark.parametrize("wanted", ["", "half", "-1", "1.5.2", "10 apples", "1e9", "nan"])
def test_nonsense_is_named(wanted: str) -> None:
    with pytest.raises(UsageError, match=r"kv_memory .*: expected a share \(0.5, 50%\) or bytes \(800MB, 2GiB\)"):
        memory.budget_bytes(wanted, CPU)


@pytest.mark.parametrize(
    ("wanted", "message"), [("0", "share above 0"), ("120%", "at most 1"), ("0%", "share above 0")]
)
def test_shares_out_of_range(wanted: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        memory.budget_bytes(wanted, CPU)


def test_more_than_is_free_is_refused() -> None:
    with pytest.raises(UsageError, match=r"kv_memory '2GiB': expected at most the 1000 MiB that are free"):
        memory.budget_bytes("2GiB", CPU)


def test_a_control_group_limits_both_versions(tmp_path: Path) -> None:
    assert memory._cgroup_bytes(tmp_path) == []
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("5\n")
    assert memory._cgroup_bytes(tmp_path) == []
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory._cgroup_bytes(tmp_path) == [995.0]
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("40\n")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("50\n")
    assert memory._cgroup_bytes(tmp_path) == [995.0, 0.0]


def test_the_machine_says_what_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16 kB\nMemFree:        2 kB\nMemAvailable:   12 kB\n")
    assert memory._machine_bytes(meminfo) == 12 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's own account of a process")
def test_memory_comes_when_it_is_written() -> None:
    before = resident_bytes()
    tensor = memory.untouched((60, 400_000, 3, 64), torch.bfloat16, CPU)  # 9.2 GB of addresses
    assert tensor.shape == (60, 400_000, 3, 64) and resident_bytes() - before < 2**20
    for layer in range(60):
        tensor[layer, 123_456] = 1.0
    assert tensor[7, 123_456].eq(1.0).all() and tensor[7, 123_457].eq(0.0).all()
    assert resident_bytes() - before < 4 * 2**20


def test_no_rows_at_all() -> None:
    assert memory.untouched((0, 4), torch.float32, CPU).shape == (0, 4)
