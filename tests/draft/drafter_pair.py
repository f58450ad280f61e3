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

from draftwood.core import DraftBlock, Forest
from draftwood.draft import Committed, Drafter, DraftRequest
from draftwood.draft.dflash import DFlashDrafter, load_drafter
from draftwood.tree.grow import GrowLimits, grow_forest

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
    """Write the golden checkpoint with config `changes` and load it, with room for the requests of a test.

    A notice fails the test unless it is asked for.
    """
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
    drafter.allocate(2000, 16)
    return drafter


def refuse_notice(line: str) -> None:
    """A notify that nobody expects to be called."""
    raise AssertionError(f"unexpected notice: {line}")


def taps_of(rows: int, index: int = 102, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(rows, 96) features as in dflash.md 10.2."""
    return fill([rows, 96], index, -2, 2).to(dtype)


def feed(drafter: Drafter, request: int, taps: torch.Tensor) -> None:
    """Commit taps of one request alone; token ids play no part."""
    feed_all(drafter, {request: taps})


def feed_all(drafter: Drafter, taps: dict[int, torch.Tensor]) -> None:
    """Commit taps of several requests in one step."""
    sizes = [len(rows) for rows in taps.values()]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    drafter.commit(Committed(tuple(taps), offsets, np.zeros(sum(sizes), np.int64), torch.cat(list(taps.values()))))


def start(drafter: Drafter, request: int, taps: torch.Tensor) -> None:
    """Open a request and commit its first taps."""
    drafter.open(request, np.zeros(len(taps), np.int64), len(taps))
    feed(drafter, request, taps)


def ask(
    request: int,
    pending: int,
    context_len: int,
    block_size: int,
    *,
    candidates: int = 4,
    max_nodes: int = 16,
    max_depth: int | None = None,
    scored: int = 0,
) -> DraftRequest:
    """A drafting request; the tree may fill its block."""
    depth = block_size - 1 if max_depth is None else max_depth
    return DraftRequest(request, pending, context_len, block_size, candidates, max_nodes, depth, scored)


def scores(drafter: Drafter, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
    """The scores of one pass, `candidates` a depth."""
    block = drafter.propose([replace(request, candidates=candidates) for request in requests]).source
    assert isinstance(block, DraftBlock)
    return block


@dataclass
class StubDrafter:
    """Trees of scores that a test chose: `score(request) -> (logp, ids)` of shape (depth, P, K), P = 1 or K."""

    score: Callable[[DraftRequest], tuple[np.ndarray, np.ndarray]]
    block_size: int = 4
    target_layer_ids: tuple[int, ...] = (1,)
    kv_row_bytes: int = 0
    committed: dict[int, int] = field(default_factory=dict)

    def allocate(self, kv_rows: int, requests: int) -> None:
        assert not self.committed

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        self.committed[request] = 0

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        depths = np.array([request.block_size - 1 for request in wanted], dtype=np.int64)
        scored = [self.score(request) for request in wanted]
        shape = (len(wanted), int(depths.max()), *scored[0][0].shape[1:])
        block = DraftBlock(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64), depths)
        for index, ((logp, ids), depth) in enumerate(zip(scored, depths, strict=True)):
            block.logp[index, :depth], block.ids[index, :depth] = logp[:depth], ids[:depth]
        return grow_forest(
            block, [GrowLimits(one.pending, one.candidates, one.max_nodes, one.max_depth) for one in wanted]
        )

    def commit(self, committed: Committed) -> None:
        for request, rows in zip(committed.requests, np.diff(committed.offsets).tolist(), strict=True):
            self.committed[request] += rows

    def close(self, request: int) -> None:
        self.committed.pop(request, None)
