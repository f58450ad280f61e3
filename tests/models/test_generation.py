"""What becomes of generation_config.json."""

from __future__ import annotations

import pytest
from transformers import GenerationConfig

from draftwood.errors import UsageError
from draftwood.models.generation import sampling_defaults

PLAIN = {"eos_token_id": [2, 3], "pad_token_id": 0, "max_length": 40, "use_cache": True, "transformers_version": "5"}
QWEN = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize("choice", [None, "none", "model"])
def test_nothing_to_say(choice: str | None) -> None:
    assert sampling_defaults(GenerationConfig(**PLAIN), choice) == (0.0, None)
    assert sampling_defaults(None, choice) == (0.0, None)


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 1.5), ("no_repeat_ngram_size", 2), ("suppress_tokens", [5]), ("begin_suppress_tokens", [5]),
     ("bad_words_ids", [[4]]), ("min_new_tokens", 3), ("forced_bos_token_id", 7), ("forced_eos_token_id", 7),
     ("sequence_bias", [[[4], 1.0]]), ("exponential_decay_length_penalty", [2, 1.5]), ("guidance_scale", 1.5)],
)  # fmt: skip
def test_what_changes_greedy_text_is_named(name: str, value: object) -> None:
    for choice in (None, "model"):
        temperature, line = sampling_defaults(GenerationConfig(**{**PLAIN, name: value}), choice)
        assert temperature == 0.0 and line is not None and f"{name} = " in line and " eos_token_id" not in line
    assert sampling_defaults(GenerationConfig(**{name: value}), "none") == (0.0, None)


def test_the_models_own_sampling() -> None:
    temperature, line = sampling_defaults(GenerationConfig(**PLAIN, **QWEN), None)
    assert temperature == 0.0 and line is not None
    assert all(f"{name} = " in line for name in QWEN) and "--generation-config model" in line
    temperature, line = sampling_defaults(GenerationConfig(**PLAIN, **QWEN), "model")
    assert temperature == 0.6 and line is not None
    assert "top_k = 20, top_p = 0.95" in line and "temperature" not in line
    assert sampling_defaults(GenerationConfig(do_sample=True), "model") == (1.0, None)


def test_settings_of_sampling_mean_nothing_without_it() -> None:
    assert sampling_defaults(GenerationConfig(top_p=0.9, temperature=0.5), None) == (0.0, None)


def test_another_choice() -> None:
    with pytest.raises(UsageError, match="generation_config 'vllm': expected none or model"):
        sampling_defaults(None, "vllm")
