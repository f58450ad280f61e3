"""Tiny random models of every supported family, and what transformers alone makes of their prompts.

`reference` is a second copy of the model with transformers' own eager attention: nothing of Draftwood takes part in the
expected texts. Weights are scaled up, so that layers matter and a wrong attention shows in the text; prompts whose
reference text comes near a tie are not used, so that float32 rounding cannot decide a test.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from plain_attention import NAME as PLAIN
from plain_attention import register
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from draftwood.attention import SdpaBackend
from draftwood.core import Sampling
from draftwood.models.hf import HFTarget
from draftwood.verify import chooser

VOCAB = 64
WINDOW = 8
CONTEXT_LIMIT = 128
LAYERS = 3
HIDDEN = 32
DTYPES = {"float32": torch.float32, "float64": torch.float64}
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# A text is used only if its closest decision is this far from a tie, as a share of the largest logit.
HEALTHY_GAP = 1e-3

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT_LIMIT,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
_GEMMA = {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}
FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_BASE),
    "qwen3": lambda: Qwen3Config(**_BASE),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_BASE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1
    ),
    "mistral": lambda: MistralConfig(**_BASE, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**_BASE, **_GEMMA, attn_logit_softcapping=5.0, final_logit_softcapping=20.0),
    "gemma3": lambda: Gemma3TextConfig(
        **_BASE, **_GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "gpt_oss": lambda: GptOssConfig(
        **_BASE, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, rope_parameters=dict(_YARN)
    ),
}


@dataclass
class Family:
    """One model three times: behind our attention, with transformers' own, and with a plain exact one."""

    name: str
    target: HFTarget
    reference: PreTrainedModel
    exact: PreTrainedModel

    @torch.inference_mode()
    def logits(self, rows: list[list[int]]) -> torch.Tensor:
        """(n, T, V) float64 logits of texts of one length, each run alone from its first token, exactly."""
        return self.exact(input_ids=torch.tensor(rows), use_cache=False).logits.double()

    @torch.inference_mode()
    def greedy(self, prompt: tuple[int, ...], tokens: int) -> tuple[list[int], float]:
        """What transformers' `generate` appends, and its smallest top-two gap as a share of the largest logit."""
        ids = torch.tensor([prompt])
        out = self.reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        top = torch.stack(out.logits)[:, 0].double().topk(2).values
        gap = ((top[:, 0] - top[:, 1]) / top[:, 0].abs().clamp(min=1.0)).min()
        return out.sequences[0, len(prompt) :].tolist(), float(gap)

    def sampled(self, prompt: tuple[int, ...], tokens: int, sampling: Sampling) -> list[int]:
        """A text drawn one token at a time, every logit from a whole forward of the text."""
        draw = chooser(sampling)
        text = list(prompt)
        for _ in range(tokens):
            text.append(int(draw(self.logits([text])[0, -1:], np.array([len(text)]))[0]))
        return text[len(prompt) :]


@cache
def family(name: str, dtype: str) -> Family:
    """The models of a family, built once a session."""
    torch.manual_seed(sorted(FAMILIES).index(name))
    config = FAMILIES[name]()
    config._experts_implementation = "eager"
    reference = AutoModelForCausalLM.from_config(
        config, dtype=(DTYPES | HALF)[dtype], attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for weight_name, weight in reference.named_parameters():
            if weight_name.endswith(("norm.weight", "layernorm.weight")):  # all ones or zeros would hide a wrong norm
                weight.add_(0.3 * torch.randn_like(weight))
    register()
    exact = copy.deepcopy(reference)
    exact.set_attn_implementation(PLAIN)
    return Family(name, HFTarget(copy.deepcopy(reference), SdpaBackend(), name=name), reference, exact)


@cache
def healthy(name: str, dtype: str, length: int, tokens: int) -> tuple[tuple[int, ...], list[int]]:
    """The first prompt of `length` tokens whose greedy text is varied and never near a tie, and that text."""
    made = family(name, dtype)
    for attempt in range(200):
        rng = np.random.default_rng([length, attempt])
        prompt = tuple(int(token) for token in rng.integers(0, VOCAB, length))
        text, gap = made.greedy(prompt, tokens)
        if gap >= HEALTHY_GAP and len(set(text)) >= min(6, tokens // 2):
            return prompt, text
    raise AssertionError(f"{name} {dtype}: no prompt of {length} tokens has a healthy text of {tokens}")


@contextmanager
def rows_through_the_head(made: Family) -> Iterator[list[int]]:
    """The numbers of rows that the target's head is asked for."""
    seen: list[int] = []
    head = made.target.model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0].numel() // given[0].shape[-1]))
    yield seen
    hook.remove()
