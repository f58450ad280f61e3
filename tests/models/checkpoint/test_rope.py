"""Positions: keys that a kind of scaling does not read, places that disagree, impossible numbers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import CONFIG_MAPPING, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftwood.errors import DraftwoodError, ModelError, UnsupportedError
from draftwood.models.checkpoint.rope import COMMON, READ, check_rope

COMPLETE: dict[str, Any] = {
    "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "attention_factor": None,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": True,
    "partial_rotary_factor": 1.0,
}  # fmt: skip


class Recorder(dict[str, Any]):
    """Notes which keys are asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("kind", sorted(ROPE_INIT_FUNCTIONS))
def test_a_kind_reads_what_transformers_own_function_asks_for(kind: str) -> None:
    recorder = Recorder({**COMPLETE, "rope_type": kind})
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=256)
    object.__setattr__(config, "rope_parameters", recorder)
    ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=256)
    assert recorder.asked - COMMON <= READ[kind]
    assert READ[kind] - recorder.asked <= {"attention_factor"}


def test_every_kind_of_transformers_is_known() -> None:
    assert {*READ} == {*ROPE_INIT_FUNCTIONS, "default"}


def refused(raw: dict[str, Any], kind: type[DraftwoodError], model_type: str = "llama") -> str:
    with pytest.raises(kind) as error:
        check_rope(raw, CONFIG_MAPPING[model_type], "model 'T': config.json")
    line = str(error.value)
    assert "\n" not in line and line.startswith("model 'T': config.json: ")
    return line


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"rope_type": "linear", "factr": 4.0, "factor": 2.0}, "factr = 4.0"),
        ({"rope_type": "linear", "factor": 4.0, "beta_fast": 8}, "beta_fast = 8"),
        ({"factor": 4.0}, "factor = 4.0"),
        ({"rope_type": "llama3", "mscale": 2.0}, "mscale = 2.0"),
    ],
)
def test_a_key_that_the_kind_does_not_read(parameters: dict[str, Any], key: str) -> None:
    line = refused({"rope_scaling": parameters}, UnsupportedError)
    assert f"rope_scaling.{key}" in line and "correct the key" in line


def test_an_unknown_kind_is_refused_with_the_list() -> None:
    line = refused({"rope_parameters": {"rope_type": "linaer", "factor": 4.0}}, UnsupportedError)
    assert "rope_parameters.rope_type 'linaer': expected one of default, linear" in line


@pytest.mark.parametrize(
    ("raw", "both"),
    [
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 1e4}}, ("rope_theta = 10000.0", "rope_theta = 5.0")),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 1e4,
          "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, ("factor = 4.0", "factor = 2.0")),
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2.0}}, ('"linear"', '"yarn"')),
        # transformers takes rope_scaling whole, so that the other's theta would be lost
        ({"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 5e5}}, ("500000.0", "null")),
    ],
)  # fmt: skip
def test_two_places_that_disagree(raw: dict[str, Any], both: tuple[str, str]) -> None:
    line = refused(raw, ModelError)
    assert all(part in line for part in both) and "keep one" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("factor", 0), ("factor", -4.0), ("factor", None), ("factor", "four"), ("factor", True), ("factor", [2.0]),
     ("rope_theta", 0), ("original_max_position_embeddings", -1), ("beta_fast", "wide")],
)  # fmt: skip
def test_impossible_numbers(key: str, value: object) -> None:
    line = refused({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, key: value}}, ModelError)
    assert f"rope_scaling.{key} = " in line and "expected a number" in line


@pytest.mark.parametrize(
    "raw",
    [
        {"partial_rotary_factor": 0.5},
        {"rope_local_base_freq": 5.0},
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
    ],
)
def test_a_rotation_that_the_model_does_not_read(raw: dict[str, Any]) -> None:
    """Llama's model turns whole heads and has one base; those of Phi and Gemma 3 read these keys."""
    assert "LlamaConfig and its model do not read it" in refused(raw, UnsupportedError)
    check_rope(raw, CONFIG_MAPPING["gemma3_text" if "rope_local_base_freq" in raw else "phi"], "T")


def test_parameters_by_type_of_layer() -> None:
    layers = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    check_rope({"rope_parameters": layers}, CONFIG_MAPPING["gemma3_text"], "T")
    layers["full_attention"]["factor"] = 8.0
    line = refused({"rope_parameters": layers}, UnsupportedError, "gemma3_text")
    assert "rope_parameters.full_attention.factor = 8.0" in line
