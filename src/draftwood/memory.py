"""How much memory a KV pool may take, and memory that costs nothing until it is written."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from .errors import UsageError

CPU_SHARE, DEVICE_SHARE = 0.5, 0.85
"""Of what is free, without `--kv-memory`: a machine has other programs to serve, a device also holds activations."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_EXPECTED = "expected a share (0.5, 50%) or bytes (800MB, 2GiB)"
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN = 2**33
"""Taken to be free where nobody says."""


def budget_bytes(wanted: str | float | None, device: torch.device) -> int:
    """Bytes that `--kv-memory` means on this device: a share of what is free now, or a number of bytes.

    A number up to 1 is a share. Raises UsageError naming the value and what is allowed, or more than is free.
    """
    free = free_bytes(device)
    asked = parse(wanted) if wanted is not None else Asked(share=CPU_SHARE if device.type == "cpu" else DEVICE_SHARE)
    if asked.share is not None:
        return int(free * asked.share)
    if not 0 < asked.num_bytes <= free:
        raise UsageError(
            f"kv_memory {wanted!r}: expected more than 0 and at most the {free / 2**20:.0f} MiB that are free"
        )
    return asked.num_bytes


class Asked(NamedTuple):
    """What a user asked for: a share, or bytes."""

    share: float | None = None
    num_bytes: int = 0


def parse(wanted: str | float) -> Asked:
    """Read a share (0.5, "50%") or a number of bytes ("800MB", "2GiB"); raises UsageError for anything else."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:(%)|([kmgt]i?b?|b))?\s*", str(wanted).lower())
    if match is None:
        raise UsageError(f"kv_memory {wanted!r}: {_EXPECTED}")
    value = float(match[1])
    if match[2] or (match[3] is None and value <= 1.0):
        share = value / 100.0 if match[2] else value
        if not 0.0 < share <= 1.0:
            raise UsageError(f"kv_memory {wanted!r}: expected a share above 0 and at most 1 (100%)")
        return Asked(share=share)
    num_bytes = int(value * _UNITS[(match[3] or "").rstrip("b")])
    return Asked(num_bytes=num_bytes)


def free_bytes(device: torch.device) -> int:
    """Memory that is free: on a device what it says, on a CPU the least of the machine's and the cgroup's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    left = min([_machine_bytes(Path("/proc/meminfo")), *_cgroup_bytes(_CGROUP)])
    return int(left) if left < math.inf else _UNKNOWN


def untouched(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor whose memory is, on a CPU, address space only: the system backs a page when it is first written.

    Raises UsageError when there is not even that much address space.
    """
    if device.type != "cpu":
        return torch.empty(*shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return torch.empty(*shape, dtype=dtype)
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        pages = mmap.mmap(-1, size, flags=flags) if flags else mmap.mmap(-1, size)
    except (OSError, ValueError, OverflowError) as error:
        raise UsageError(f"a KV pool of {size / 2**20:.0f} MiB cannot be had: give less with --kv-memory") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        # A huge page would back two megabytes of every layer for the first row of a request.
        with suppress(OSError):  # a system without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def _machine_bytes(meminfo: Path) -> float:
    """MemAvailable in bytes; infinite where the system does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return math.inf
    return int(found[1]) * 1024.0 if found else math.inf


def _cgroup_bytes(root: Path) -> list[float]:
    """What the control group leaves, version 2 or 1; empty without a limit.

    Its usage counts files that it read and would give up, such as weights: they are free.
    """
    left = []
    for limit, usage, stat, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            free = float((root / limit).read_text()) - float((root / usage).read_text())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        left.append(max(free + _number(root / stat, cached), 0.0))
    return left


def _number(file: Path, name: str) -> float:
    """The number behind `name` in a file of such lines; 0 without one."""
    try:
        found = re.search(rf"^{name} (\d+)$", file.read_text(), re.MULTILINE)
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0
