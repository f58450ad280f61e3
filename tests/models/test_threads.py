"""Thread count: host, affinity and cgroup quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftwood.models.threads import cgroup_quota, default_threads, usable_threads


@pytest.mark.parametrize(
    ("host", "affinity", "quota", "expected"),
    [
        (64, 64, None, 64),
        (64, 8, None, 8),
        (64, 64, 2.0, 2),
        (64, 8, 16.0, 8),
        (4, 8, 16.0, 4),
        (64, 64, 2.9, 2),
        (64, 64, 0.5, 1),
    ],
)
def test_smallest_of_three(host: int, affinity: int, quota: float | None, expected: int) -> None:
    assert usable_threads(host, affinity, quota) == expected


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_v2_takes_the_tightest_ancestor(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/pod/task\n")
    root = tmp_path / "root"
    write(root / "cpu.max", "max 100000\n")
    write(root / "pod" / "cpu.max", "300000 100000\n")
    write(root / "pod" / "task" / "cpu.max", "800000 100000\n")
    assert cgroup_quota(root, membership) == 3.0


def test_v1_files(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:cpu,cpuacct:/box\n2:memory:/elsewhere\n")
    root = tmp_path / "root"
    write(root / "cpu,cpuacct" / "box" / "cpu.cfs_quota_us", "150000\n")
    write(root / "cpu,cpuacct" / "box" / "cpu.cfs_period_us", "100000\n")
    write(root / "memory" / "elsewhere" / "cpu.max", "100000 100000\n")
    assert cgroup_quota(root, membership) == 1.5


def test_no_limit(tmp_path: Path) -> None:
    write(tmp_path / "cpu" / "cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cpu" / "cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cpu.max", "max 100000\n")
    assert cgroup_quota(tmp_path, tmp_path / "absent") is None


def test_this_machine() -> None:
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
