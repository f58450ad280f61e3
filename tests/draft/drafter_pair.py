"""Small drafters, targets and checkpoints for the tests of `draftwood.draft`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from draftwood.core import DraftBlock
from draftwood.draft import Committed, Drafter, DraftRequest
from draftwood.draft.dflash import DFlashDrafter, load_drafter

DEMO = Path(__file__).parents[2] / "src" / "draftwood" / "data" / "smollm2-135m-dflash"


def fill(shape: Sequence[int], index: int, low: float, high: float) -> torch.Tensor:
    """The deterministic fill of dflash.md 10.1, as float32."""
    size = int(np.prod(shape))
    x = (np.arange(size, dtype=np.uint64) * 2654435761 + (index + 1) * 97531) % 2**32
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) % 2**32
    x ^= x >> np.uint64(13)
    return torch.from_numpy(low + (high - low) * x.astype(np.float64) / 2**32).float().reshape(tuple(shape))


def tiny_config(**changes: Any) -> dict[str, Any]:
    """The config of the golden drafter (dflash.md 10.2) with changes; a value of None removes the field."""
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "max_position_embeddings": 512,
        "num_target_layers": 8,
        "block_size": 4,
        "dflash_config": {"mask_token_id": 63, "target_layer_ids": [1, 3, 5]},
    }
    config |= changes
    return {name: value for name, value in config.items() if value is not None}


def tiny_shapes(config: dict[str, Any], taps: int = 3) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes typed in from dflash.md 1.5, apart from the loader's own table."""
    h, inter, hd = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * hd, config["num_key_value_heads"] * hd
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (h, taps * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    for i in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm.weight": (h,),
            "post_attention_layernorm.weight": (h,),
            "self_attn.q_proj.weight": (q, h),
            "self_attn.k_proj.weight": (kv, h),
            "self_attn.v_proj.weight": (kv, h),
            "self_attn.o_proj.weight": (h, q),
            "self_attn.q_norm.weight": (hd,),
            "self_attn.k_norm.weight": (hd,),
            "mlp.gate_proj.weight": (inter, h),
            "mlp.up_proj.weight": (inter, h),
            "mlp.down_proj.weight": (h, inter),
        }
        if config.get("attention_bias"):
            layer |= {f"self_attn.{p}_proj.bias": (w,) for p, w in (("q", q), ("k", kv), ("v", kv), ("o", h))}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def tiny_tensors(config: dict[str, Any], taps: int = 3) -> dict[str, torch.Tensor]:
    """The weights of dflash.md 10.2: filled in ASCII order of the names."""
    shapes = tiny_shapes(config, taps)
    return {
        name: fill(shapes[name], index, *((0.8, 1.2) if len(shapes[name]) == 1 else (-0.25, 0.25)))
        for index, name in enumerate(sorted(shapes))
    }


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """A drafter folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


@dataclass
class ToyTarget:
    """Embedding and head of dflash.md 10.2; it is its own `spec`."""

    dtype: torch.dtype = torch.float32
    vocab_size: int = 64
    hidden_size: int = 32
    embedding_rows: int = 64
    num_layers: int = 8
    context_limit: int = 512
    embedded: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.embedding = fill([self.embedding_rows, self.hidden_size], 100, -1, 1).to(self.dtype)
        self.matrix = fill([self.vocab_size, self.hidden_size], 101, -0.5, 0.5).to(self.dtype)

    @property
    def spec(self) -> ToyTarget:
        return self

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        self.embedded.append(token_ids.clone())
        return self.embedding[token_ids]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.matrix.T


def tiny_drafter(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    target: ToyTarget | None = None,
    notify: Callable[[str], None] | None = None,
    tokenizer_len: int | None = None,
    **changes: Any,
) -> DFlashDrafter:
    """Write the golden checkpoint with config `changes` and load it; a notice fails the test unless it is asked for."""
    config = tiny_config(**changes)
    write_checkpoint(folder, config, tiny_tensors(config))
    drafter = load_drafter(
        folder,
        target or ToyTarget(dtype),
        dtype=dtype,
        device="cpu",
        notify=notify or refuse_notice,
        tokenizer_len=tokenizer_len,
    )
    drafter.allocate(4096, 16)
    return drafter


def ask(request: int, pending: int, context_len: int, block_size: int, candidates: int = 1) -> DraftRequest:
    """A request for a block whose tree takes what it gets."""
    return DraftRequest(request, pending, context_len, block_size, candidates, 64, block_size - 1)


def commit(drafter: Drafter, request: int, taps: torch.Tensor, tokens: Sequence[int] | None = None) -> None:
    """Commit rows of one request, which is opened when it is new; a DFlash drafter does not look at tokens."""
    if isinstance(drafter, DFlashDrafter) and request not in drafter.pool.requests:
        drafter.open(request, np.zeros(0, np.int64), len(taps) + 128)
    ids = np.zeros(len(taps), np.int64) if tokens is None else np.array(tokens, np.int64)
    drafter.commit(Committed((request,), np.array([0, len(taps)]), ids, taps))


def draft(drafter: Drafter, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
    """The scores behind the trees that a block drafter proposes."""
    block = drafter.propose([replace(request, candidates=candidates) for request in requests]).source
    assert isinstance(block, DraftBlock)
    return block


def refuse_notice(line: str) -> None:
    """A notify that nobody expects to be called."""
    raise AssertionError(f"unexpected notice: {line}")


def taps_of(rows: int, index: int = 102, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(rows, 96) features as in dflash.md 10.2."""
    return fill([rows, 96], index, -2, 2).to(dtype)
