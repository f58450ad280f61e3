"""How many threads this process may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import UsageError
from .source import Notify

MOST_THREADS = 256

CGROUP_ROOT = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS = Path("/proc/self/cgroup")


def usable_threads(host: int, affinity: int, quota: float | None) -> int:
    """The smallest of the host's cores, the cores this process may run on and its cgroup's quota; at least 1.

    `quota` is in cores, None when there is none. It is rounded down: a thread more than the quota is throttled, and
    in a lock-step pool one throttled thread stops all.
    """
    limits = [host, affinity] if quota is None else [host, affinity, int(quota)]
    return max(1, min(limits))


def cgroup_quota(root: Path = CGROUP_ROOT, membership: Path = CGROUP_OF_PROCESS) -> float | None:
    """CPU quota of this process in cores, the tightest along its cgroup's ancestors; None without a limit.

    Reads cgroup v2 (`cpu.max`: quota and period, or `max`) and v1 (`cpu.cfs_quota_us`, `cpu.cfs_period_us`). Files
    that are absent or unreadable count as no limit.
    """
    quotas = []
    for folder in _cgroup_folders(root, membership):
        words = _words(folder / "cpu.max")
        if not words:
            words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def default_threads() -> int:
    """Threads for this process on this machine: see `usable_threads`."""
    host = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host
    return usable_threads(host, affinity, cgroup_quota())


def choose_threads(asked: int | None, notify: Notify, environment: Mapping[str, str]) -> int:
    """The threads to run with: those asked for, else what `OMP_NUM_THREADS` allows of `default_threads`.

    `notify` hears of a variable that cannot be read, and of more threads than cores. Raises UsageError out of range.
    """
    usable = default_threads()
    if asked is not None:
        most = max(MOST_THREADS, 4 * usable)
        if not 1 <= asked <= most:
            raise UsageError(
                f"threads {asked}: expected 1 to {most} (each has a stack of its own; cores here: {usable})"
            )
        if asked > usable:
            notify(f"threads {asked}: more than the {usable} cores that this process may use, which is slower")
        return asked
    variable = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not variable:
        return usable
    if not variable.isdigit() or int(variable) < 1:
        notify(f"OMP_NUM_THREADS {variable!r} is not a number of threads: running with {usable}")
        return usable
    return min(usable, int(variable))


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    """This process's cgroup folders with all their ancestors up to the root of each hierarchy."""
    folders = [root, root / "cpu", root / "cpu,cpuacct"]
    for line in _lines(membership):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        hierarchy = root / controllers if controllers else root
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [hierarchy.joinpath(*parts[: depth + 1]) for depth in range(len(parts))]
    return folders


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
