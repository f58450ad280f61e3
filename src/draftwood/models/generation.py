"""What a checkpoint's generation_config.json asks for, and what becomes of it.

`model` takes the checkpoint's sampling defaults as vLLM does (there: --generation-config auto), `none` leaves the file
aside but for its end ids. Settings that are not honoured are named once, at load.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import UsageError

CHOICES = ("none", "model")

IRRELEVANT = {
    "transformers_version": "who wrote the file",
    "_from_model_config": "who wrote the file",
    "eos_token_id": "honoured: ends an answer",
    "bos_token_id": "for prompts that are empty, which are refused",
    "pad_token_id": "nothing is padded",
    "decoder_start_token_id": "for encoder-decoder models, which are refused",
    "use_cache": "always",
    "cache_implementation": "transformers' own cache",
    "cache_config": "transformers' own cache",
    "max_length": "the length is asked for with each request",
    "max_new_tokens": "the length is asked for with each request",
    "max_time": "the length is asked for with each request",
    "num_return_sequences": "asked for with each request",
    "trust_remote_code": "code of a checkpoint never runs",
    "custom_generate": "code of a checkpoint never runs",
    "output_attentions": "an output that is not made",
    "output_hidden_states": "an output that is not made",
    "output_scores": "an output that is not made",
    "output_logits": "an output that is not made",
    "return_dict_in_generate": "an output that is not made",
    "num_assistant_tokens": "another way of drafting",
    "num_assistant_tokens_schedule": "another way of drafting",
    "assistant_confidence_threshold": "another way of drafting",
    "assistant_early_exit": "another way of drafting",
    "assistant_lookbehind": "another way of drafting",
    "target_lookbehind": "another way of drafting",
    "prompt_lookup_num_tokens": "another way of drafting",
    "max_matching_ngram_size": "another way of drafting",
    "is_assistant": "another way of drafting",
    "compile_config": "how transformers compiles",
    "disable_compile": "how transformers compiles",
    "prefill_chunk_size": "how transformers cuts prompts",
    "early_stopping": "beams",
    "length_penalty": "beams",
}
"""Settings that change no token, with the reason."""
_SAMPLING = (
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_h",
)
"""Defaults of sampling: without `model` the default is greedy."""


def sampling_defaults(config: Any, choice: str | None) -> tuple[float, str | None]:
    """(temperature that a request has by default, the one notice to give or None).

    `config` is a transformers GenerationConfig; `choice` one of CHOICES, or None: like none, but settings of the file
    that would change the text are named. Raises UsageError for another choice.
    """
    if choice is not None and choice not in CHOICES:
        raise UsageError(f"generation_config {choice!r}: expected {' or '.join(CHOICES)}")
    if choice == "none" or config is None:
        return 0.0, None
    asked = {
        name: value
        for name, value in config.to_diff_dict().items()
        if name not in IRRELEVANT and value is not None and not (name == "do_sample" and not value)
    }
    temperature = 0.0
    if choice == "model" and asked.pop("do_sample", False):
        temperature = float(asked.pop("temperature", 1.0))
    if "do_sample" not in asked and choice != "model":
        # Without sampling its settings change nothing.
        asked = {name: value for name, value in asked.items() if name not in _SAMPLING}
    if not asked:
        return temperature, None
    named = ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in sorted(asked.items()))
    way = "" if choice == "model" else "; --generation-config model takes the temperature, none says nothing"
    return temperature, f"generation_config.json asks for what is not applied: {named}{way}"
