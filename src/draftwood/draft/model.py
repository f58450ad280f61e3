"""The DFlash network: Qwen3 layers over a block, with projected target states as further keys and values.

Reuses transformers' Qwen3 modules as they are (dflash.md section 2); only what Qwen3 does not have is written here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from ..attention import ATTENTION_NAME, ensure_registered
from ..attention.base import Plan
from .config import DFlashConfig


class LayerKV(NamedTuple):
    """Context keys and values of one draft layer."""

    k: torch.Tensor
    """(S, G, E), normalised and rotated."""
    v: torch.Tensor
    """(S, G, E)."""


def qwen3_config(config: DFlashConfig) -> Qwen3Config:
    """The Qwen3 view of a drafter's config, with our attention."""
    windows = [rule.window for rule in config.layers]
    window = next((window for window in windows if window is not None), None)
    qwen3 = Qwen3Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        attention_bias=config.attention_bias,
        rope_parameters=dict(config.rope),
        use_sliding_window=window is not None,
        sliding_window=window,
        layer_types=["full_attention" if window is None else "sliding_attention" for window in windows],
    )
    qwen3._attn_implementation = ATTENTION_NAME
    return qwen3


class DFlashModel(nn.Module):
    """Network of one drafter; parameter names are those of the checkpoint."""

    def __init__(self, config: DFlashConfig, tensors: dict[str, torch.Tensor]) -> None:
        """Adopt checked tensors as parameters, without a copy; their dtype and device are the network's."""
        super().__init__()
        ensure_registered()
        qwen3 = qwen3_config(config)
        fc = tensors["fc.weight"]
        with torch.device("meta"):
            self.fc = nn.Linear(fc.shape[1], config.hidden_size, bias=False)
            self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.layers = nn.ModuleList(Qwen3DecoderLayer(qwen3, index) for index in range(config.num_layers))
            self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.load_state_dict(tensors, strict=True, assign=True)
        # Frequencies stay float32 whatever the dtype of the weights.
        self.rotary = Qwen3RotaryEmbedding(qwen3).to(fc.device)
        self.requires_grad_(False).eval()

    def context(self, taps: torch.Tensor, pos: torch.Tensor) -> list[LayerKV]:
        """Keys and values of committed tokens for every layer: taps (S, taps * h), pos (S,) absolute.

        One projection serves all layers and sees neither their input norm nor their MLP (dflash.md 2.1, 2.3).
        """
        states = self.hidden_norm(self.fc(taps))  # (S, h)
        cos, sin = (part[0, :, None] for part in self.rotary(states, pos[None]))  # (S, 1, E)
        result = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            heads = (len(taps), -1, attention.head_dim)
            k = attention.k_norm(attention.k_proj(states).view(heads))
            v = attention.v_proj(states).view(heads)
            result.append(LayerKV(k * cos + rotate_half(k) * sin, v))
        return result

    def forward(self, inputs: torch.Tensor, pos: torch.Tensor, plans: Sequence[Plan]) -> torch.Tensor:
        """Normalised states (T, h) of block rows: inputs (T, h) embeddings, pos (T,) absolute, one plan per layer.

        Stages the keys and values of the rows in the pool of the plans.
        """
        hidden = inputs[None]  # (1, T, h), as the layers want it
        rotation = self.rotary(hidden, pos[None])
        for layer, plan in zip(self.layers, plans, strict=True):
            hidden = layer(hidden, position_embeddings=rotation, plan=plan)
        states: torch.Tensor = self.norm(hidden[0])
        return states
