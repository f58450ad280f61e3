"""Writes a tiny Llama GGUF file with random weights, some of them quantized, and a byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

HIDDEN, HEADS, KV_HEADS, MLP, LAYERS = 64, 4, 2, 96, 2
SPECIALS = ["<|end|>", "<|turn|>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|turn|>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins of byte-level tokenizers, in byte order (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def write_tiny_gguf(
    path: Path,
    architecture: str = "llama",
    seed: int = 0,
    leave_out: str = "",
    pairs: Mapping[str, object] = MappingProxyType({}),
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
    user_defined: str = "",
) -> Path:
    """Write the file, with further `pairs` (which go before the usual ones) and `tensors`, and return its path."""
    tokens = [*byte_tokens(), *SPECIALS, "ab", *([user_defined] if user_defined else [])]
    kinds = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(SPECIALS) + [TokenType.NORMAL]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if "tokenizer.ggml.pre" not in pairs:
        writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds + [TokenType.USER_DEFINED] * bool(user_defined))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_eot_token_id(257)
    writer.add_chat_template(TEMPLATE)
    for key, value in pairs.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)  # type: ignore[operator]
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    rng = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)).items():
        weights = rng.normal(0.0, 0.05, shape).astype(np.float32)
        if name == leave_out:
            continue
        if name.endswith("norm.weight"):
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
        elif "ffn" in name:
            blocks = quantize(weights, GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN * KV_HEADS // HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {
            f"{block}.attn_norm.weight": (HIDDEN,),
            f"{block}.ffn_norm.weight": (HIDDEN,),
            f"{block}.attn_q.weight": (HIDDEN, HIDDEN),
            f"{block}.attn_k.weight": (kv, HIDDEN),
            f"{block}.attn_v.weight": (kv, HIDDEN),
            f"{block}.attn_output.weight": (HIDDEN, HIDDEN),
            f"{block}.ffn_gate.weight": (MLP, HIDDEN),
            f"{block}.ffn_up.weight": (MLP, HIDDEN),
            f"{block}.ffn_down.weight": (HIDDEN, MLP),
        }
    return shapes
