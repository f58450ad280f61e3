"""What machine this is."""

from __future__ import annotations

import platform
from pathlib import Path

CPU_FACTS = Path("/proc/cpuinfo")


def processor_name(facts: Path = CPU_FACTS) -> str:
    """The processor's name where the system tells, else its architecture."""
    try:
        lines = facts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
