"""Whether other work ran on the machine: what the processors did, less what this process did."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")


class LoadWatch:
    """Watches from its creation on."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._start_s, self._all_s, self._own_s = time.perf_counter(), self._busy_s(), self._used_s()

    def foreign_cores(self) -> float | None:
        """Mean number of cores that others kept busy, or that a hypervisor took away; None where nothing says."""
        now_s, busy_s = time.perf_counter() - self._start_s, self._busy_s()
        if busy_s is None or self._all_s is None or now_s <= 0.0:
            return None
        return max(0.0, (busy_s - self._all_s - (self._used_s() - self._own_s)) / now_s)

    def _busy_s(self) -> float | None:
        """Seconds of all processors in which they were not idle, the stolen ones counted."""
        try:
            name, *ticks = self._stat.read_text(encoding="ascii").splitlines()[0].split()
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
            user, nice, system, _, _, irq, soft, steal = (int(tick) for tick in ticks[:8])
        except (OSError, ValueError, IndexError):
            return None
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK") if name == "cpu" else None

    @staticmethod
    def _used_s() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system
