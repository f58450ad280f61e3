"""How many bits the weights of a target really take, read off the weights themselves."""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 16
"""Neighbouring weights of a row that share a scale in all usual formats."""
ROWS = 64
MATRICES = 12


@torch.inference_mode()
def quantised_bits(model: Any) -> int | None:
    """Bits a weight, rounded up, of the most finely stored of a model's matrices; None for 4 and more.

    Counts the distinct values in blocks of 16 neighbours: weights of b bits have at most 2**b. Blocks of finer
    weights show up to 16, so only coarse ones are told apart. Embeddings are left out, which are often kept finer.
    """
    most = 0
    matrices = [
        module.weight
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name
    ]
    step = max(1, len(matrices) // MATRICES)
    for weight in matrices[::step]:
        columns = weight.shape[1] // BLOCK * BLOCK
        blocks = weight[:ROWS, :columns].float().reshape(-1, BLOCK).sort(dim=1).values
        most = max(most, int((blocks.diff(dim=1) != 0).sum(dim=1).max()) + 1)
    bits = max(1, most - 1).bit_length()
    return bits if most > 0 and bits < 4 else None
