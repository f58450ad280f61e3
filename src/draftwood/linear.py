"""Products of a few rows with large weights on a CPU. Knows torch and nothing else.

A verification multiplies 1 to 100 rows by every weight of the model. torch's own path for float32 on an AVX2 processor
repacks the weight for such a product: two rows then cost about twice as much as one. Written as (W x^T)^T the
weight is read in place and the rows are what gets packed: two rows cost no more than one. Measured in `docs/log.md`.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

# Up to here the transposed product was the quicker one; longer inputs are prefill.
MOST_ROWS = 128
# Where the next quick product is a larger one, rows are added: one row is two (of weights with more rows than columns,
# else nothing is gained), 3 are 4, 7 are 8, 9 to 15 are 16.
_PADDED = {1: 2, 3: 4, 7: 8, **dict.fromkeys(range(9, 16), 16)}


class FewRowsLinear(nn.Linear):
    """`nn.Linear` whose product is transposed for 1 to `MOST_ROWS` rows; the same weights, the same result."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features), contiguous."""
        rows = input.numel() // self.in_features
        if not 1 <= rows <= MOST_ROWS or (rows == 1 and self.out_features <= self.in_features):
            return F.linear(input, self.weight, self.bias)
        flat = input.reshape(rows, self.in_features)
        if rows in _PADDED:
            flat = F.pad(flat, (0, 0, 0, _PADDED[rows] - rows))
        output = torch.mm(self.weight, flat.t()).t()[:rows].contiguous()
        if self.bias is not None:
            output += self.bias
        return output.view(*input.shape[:-1], self.out_features)


def helps(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the transposed product is known to be quicker: float32 on an AVX2 processor without AVX-512."""
    return dtype == torch.float32 and device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def use_few_rows(model: nn.Module) -> None:
    """Make every `nn.Linear` of a model a `FewRowsLinear`; weights and names stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = FewRowsLinear


def use_plain(model: nn.Module) -> None:
    """Undo `use_few_rows`."""
    for module in model.modules():
        if isinstance(module, FewRowsLinear):
            cast("nn.Module", module).__class__ = nn.Linear
