"""Thread count: host, affinity and cgroup quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftwood.errors import UsageError
from draftwood.models import threads
from draftwood.models.threads import cgroup_quota, choose_threads, default_threads, usable_threads


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


def chosen(asked: int | None, variable: str | None = None) -> tuple[int, list[str]]:
    notices: list[str] = []
    environment = {} if variable is None else {"OMP_NUM_THREADS": variable}
    return choose_threads(asked, notices.append, environment), notices


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "default_threads", lambda: 4)


@pytest.mark.usefixtures("four_cores")
def test_the_variable_is_respected() -> None:
    assert chosen(None) == chosen(None, "") == chosen(None, "9") == (4, [])
    assert chosen(None, "1") == (1, []) and chosen(None, "3,2") == (3, [])
    assert chosen(2, "1") == (2, [])


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("variable", ["banana", "0", "-2", "1.5"])
def test_a_variable_that_cannot_be_read_is_named(variable: str) -> None:
    found, notices = chosen(None, variable)
    assert found == 4 and len(notices) == 1 and f"OMP_NUM_THREADS {variable!r}" in notices[0]


@pytest.mark.usefixtures("four_cores")
def test_numbers_of_threads_have_bounds() -> None:
    found, notices = chosen(5)
    assert found == 5 and len(notices) == 1 and "threads 5: more than the 4 cores" in notices[0]
    for asked in (0, -1, 257, 100_000, 10**20):
        with pytest.raises(UsageError, match=rf"threads {asked}: expected 1 to 256 .*cores here: 4"):
            chosen(asked)
