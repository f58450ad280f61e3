"""Other work on the machine, from the counters of the kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from draftwood.bench import load
from draftwood.bench.load import LoadWatch

TICKS = os.sysconf("SC_CLK_TCK")


def write(path: Path, busy_s: float) -> None:
    """Half of it the users', a quarter the kernel's, a quarter stolen; idle time does not count."""
    user, system, steal = (int(busy_s * TICKS * share) for share in (0.5, 0.25, 0.25))
    path.write_text(f"cpu  {user} 0 {system} 999999 77 0 0 {steal} 5 5\ncpu0 1 2 3 4 5 6 7 8\n")


def test_cores_that_others_kept_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = [100.0], [3.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(load.LoadWatch, "_used_s", staticmethod(lambda: own[0]))
    stat = tmp_path / "stat"
    write(stat, 1000.0)
    watch = LoadWatch(stat)
    clock[0], own[0] = 120.0, 13.0
    write(stat, 1040.0)  # 40 s of work in 20 s, 10 s of them our own
    assert watch.foreign_cores() == pytest.approx(1.5, abs=0.01)
    own[0] = 60.0
    assert watch.foreign_cores() == 0.0


@pytest.mark.parametrize("content", ["", "cpu 1 2\n", "cpu a b c d e f g h\n", "intr 1 2 3 4 5 6 7 8\n"])
def test_counters_that_cannot_be_read(content: str, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(content)
    assert LoadWatch(tmp_path / "stat").foreign_cores() is None
    assert LoadWatch(tmp_path / "nosuch").foreign_cores() is None
