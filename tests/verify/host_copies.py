"""How often a piece of code would make the host wait for a device, counted on a CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

WAITING = frozenset(
    {
        *("cpu", "numpy", "item", "tolist", "nonzero", "equal", "unique", "masked_select"),
        *("__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__"),
    }
)
"""What hands values to the host, or makes a result whose size depends on them."""


class HostCopies(TorchFunctionMode):
    """Counts such calls by name within its `with` block; reading what `.cpu()` returned is free."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._brought: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            chosen = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(at, torch.Tensor) and at.dtype == torch.bool for at in chosen):
                self.counts["mask"] += 1
        elif name in WAITING and not any(args[0] is tensor for tensor in self._brought):
            self.counts[name] += 1
        result = func(*args, **(kwargs or {}))
        if name == "cpu":
            self._brought.append(result)
        return result
