"""Attention as the definition reads, in the precision of its inputs.

transformers' eager attention takes its softmax in float32 whatever the model's type, so it agrees with exact float64
attention only to about 1e-7. This one serves as the reference where 1e-9 is asked for. Rows are the last of the keys;
the mask is causal, cut to the layer's window.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

NAME = "plain_for_tests"


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # (B, H, T, E)
    key: torch.Tensor,  # (B, G, S, E)
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    assert attention_mask is None
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scores = torch.einsum("bhte,bhse->bhts", query, key) * scaling
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    num_rows, num_keys = scores.shape[-2:]
    distance = torch.arange(num_keys - num_rows, num_keys)[:, None] - torch.arange(num_keys)[None, :]
    visible = (distance >= 0) & (distance < (sliding_window or num_keys + 1))
    weights = scores.exp() * visible
    total = weights.sum(-1, keepdim=True)
    if s_aux is not None:
        total = total + s_aux.exp()[None, :, None, None]
    return torch.einsum("bhts,bhse->bthe", weights / total, value), None


def register() -> None:
    AttentionInterface.register(NAME, plain_attention)
