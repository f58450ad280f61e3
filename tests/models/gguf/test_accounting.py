"""Every key and tensor of a GGUF file is honoured, irrelevant or refused by name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_gguf import HEADS, HIDDEN, write_tiny_gguf

from draftwood.errors import ModelError
from draftwood.models.gguf.convert import convert

HEAD = HIDDEN // HEADS


def converted(
    folder: Path, pairs: dict[str, object], tensors: dict[str, np.ndarray] | None = None
) -> tuple[Any, list[str]]:
    notices: list[str] = []
    path = write_tiny_gguf(folder / "tiny.gguf", pairs=pairs, tensors=tensors or {})
    return convert(path, notices.append)[0], notices


def frequencies(model: Any) -> np.ndarray:
    found: np.ndarray = model.model.rotary_emb.inv_freq.double().numpy()
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "longrope"),
        ("llama.attention.clamp_kqv", 8.0),
        ("llama.attention.scale", 0.5),
        ("llama.logit_scale", 0.25),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.attention.sliding_window", 64),
        ("llama.expert_count", 8),
        ("llama.attention.causal", False),
        ("llama.rope.dimension_count", HEAD // 2),
        ("llama.never_heard_of", 1),
        ("general.type", "adapter"),
        ("split.count", 3),
    ],
)
def test_a_key_that_may_change_the_text_is_refused_by_name(key: str, value: object, tmp_path: Path) -> None:
    pairs = {key: value}
    if key == "llama.rope.dimension_count":  # the converter takes it for the size of a head
        pairs["llama.attention.key_length"] = HEAD
    with pytest.raises(ModelError) as error:
        converted(tmp_path, pairs)
    line = str(error.value)
    assert re.search(rf"GGUF key {re.escape(key)} = {re.escape(str(value))}: ", line), line
    assert "tiny.gguf" in line and "safetensors" in line and "\n" not in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.expert_count", 0),
        ("llama.attention.sliding_window", 0),
        ("llama.logit_scale", 1.0),
        ("llama.rope.scaling.type", "none"),
        ("llama.rope.scaling.finetuned", True),
        ("llama.attention.key_length", HEAD),
        ("llama.attention.value_length", HEAD),
        ("general.url", "https://example.org"),
        ("quantize.imatrix.file", "some.dat"),
        ("tokenizer.ggml.fim_pre_token_id", 3),
    ],
)
def test_a_key_that_changes_nothing_is_accepted_in_silence(key: str, value: object, tmp_path: Path) -> None:
    assert converted(tmp_path, {key: value})[1] == []


def test_keys_of_other_makers_are_named_in_one_notice(tmp_path: Path) -> None:
    _, notices = converted(tmp_path, {"maker.one": 1, "maker.two": "x"})
    assert len(notices) == 1 and "maker.one, maker.two" in notices[0]


def test_linear_scaling_by_hand(tmp_path: Path) -> None:
    model, _ = converted(tmp_path, {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    expected = 10000.0 ** -(np.arange(HEAD // 2) / (HEAD // 2)) / 4.0
    np.testing.assert_allclose(frequencies(model), expected, rtol=1e-6)


def test_yarn_as_transformers_computes_it(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    pairs = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    model, _ = converted(tmp_path, {f"llama.rope.scaling.{name}": value for name, value in pairs.items()})
    config = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_hidden_layers=1, vocab_size=8, intermediate_size=8,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        },
    )  # fmt: skip
    rotary = LlamaForCausalLM(config).model.rotary_emb
    assert torch.equal(model.model.rotary_emb.inv_freq, rotary.inv_freq)
    assert model.model.rotary_emb.attention_scaling == rotary.attention_scaling == pytest.approx(0.1 * np.log(4) + 1)


def llama3_divisors(factor: float, low: float = 1.0, high: float = 4.0) -> np.ndarray:
    """The table that a converter of Llama 3 writes, by the rule of the model's own code."""
    divisors = []
    for index in range(HEAD // 2):
        wavelength = 2 * np.pi * 10000.0 ** (index / (HEAD // 2))
        smooth = (8192 / wavelength - low) / (high - low)
        divisors.append(1 / np.clip((1 - smooth) / factor + smooth, 1 / factor, 1))
    return np.array(divisors, np.float32)


def test_the_frequencies_of_llama_3_are_honoured(tmp_path: Path) -> None:
    table = llama3_divisors(8.0)
    assert table.max() > 1.0 and table.min() == 1.0
    model, _ = converted(tmp_path, {}, {"rope_freqs.weight": table})
    plain = 10000.0 ** -(np.arange(HEAD // 2) / (HEAD // 2))
    np.testing.assert_allclose(frequencies(model), plain / table, rtol=1e-5)


def test_other_frequencies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight is not the scaling of Llama 3"):
        converted(tmp_path, {}, {"rope_freqs.weight": llama3_divisors(8.0, high=6.0) * np.float32(1.5)})


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "blk.1.attn_q_norm.weight", "blk.0.attn_q.scale", "cls.weight"])
def test_a_tensor_without_a_place_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        converted(tmp_path, {}, {name: np.ones(HIDDEN, np.float32)})
    assert re.search(
        rf"1 tensors have no place in .*LlamaForCausalLM, the first is {re.escape(name)}", str(error.value)
    )
    assert "\n" not in str(error.value)
