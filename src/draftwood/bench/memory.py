"""Peak memory of one run."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class PeakMemory:
    """Peak bytes between `start` and `read`: allocated on an accelerator, resident of this process on a CPU.

    `read` gives None where the system does not tell (no /proc, or the peak cannot be reset).
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._known = False

    def start(self) -> None:
        """Forget the peak so far."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            CLEAR.write_text(RESET_PEAK)
        except OSError:
            self._known = False
        else:
            self._known = True

    def read(self) -> int | None:
        """The peak since `start`, in bytes."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        try:
            lines = STATUS.read_text().splitlines() if self._known else []
        except OSError:
            return None
        kib = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
        return int(kib[0]) * 1024 if kib else None
