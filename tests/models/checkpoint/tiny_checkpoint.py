"""A tiny Llama checkpoint as transformers writes it, to be damaged by tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 1,
}  # fmt: skip


def write_checkpoint(folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**SIZES, **changes})).to(dtype).save_pretrained(folder)
    return folder


def edit_config(folder: Path, drop: tuple[str, ...] = (), **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if key not in drop}), encoding="utf-8")


def edit_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Add, change or (None) remove tensors."""
    path = folder / "model.safetensors"
    tensors: dict[str, torch.Tensor | None] = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path, {"format": "pt"})
