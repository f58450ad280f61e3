"""The target's token at temperature 0."""

from __future__ import annotations

import numpy as np
import torch


def greedy(logits: torch.Tensor, pos: np.ndarray) -> torch.Tensor:
    """Argmax of every row, ties to the lower id: (n, V) -> (n,) int64 on the same device. `pos` plays no part.

    On a CPU numpy finds the first maximum of a row about ten times as fast as torch does; 16-bit rows are widened,
    which changes no order.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    rows = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return torch.from_numpy(rows.detach().numpy().argmax(axis=-1))
