"""Configurations in the publishers' own words, which hold more than a class of transformers declares, are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from draftwood.errors import UnsupportedError
from draftwood.models.checkpoint import read_config

YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn",
        "original_max_position_embeddings": 4096}  # fmt: skip
PUBLISHED: list[dict[str, Any]] = [
    {"model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25, "use_parallel_residual": True},
    {"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"},
    {"model_type": "gemma3_text", "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window_pattern": 6},
    {"model_type": "deepseek_v3", "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "rope_scaling": YARN},
    {"model_type": "glm4_moe", "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5},
    {"model_type": "stablelm", "partial_rotary_factor": 0.25, "rotary_scaling_factor": 1.0},
    {"model_type": "phi3", "partial_rotary_factor": 0.75, "full_attn_mod": 1, "interpolate_factor": 1},
    {"model_type": "gpt_oss", "experts_per_token": 4, "num_experts_per_tok": 4, "swiglu_limit": 7.0},
]


def write(folder: Path, values: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


@pytest.mark.parametrize("values", PUBLISHED, ids=lambda values: str(values["model_type"]))
def test_it_is_what_transformers_reads(values: dict[str, Any], tmp_path: Path) -> None:
    folder = write(tmp_path, values)
    found, theirs = (
        config.to_dict() for config in (read_config(folder, "T", print), AutoConfig.from_pretrained(folder))
    )
    assert found.pop("return_dict", True) and {**theirs, "return_dict": True} == {**found, "return_dict": True}


@pytest.mark.parametrize("kind", ["qwen3_moe", "cohere2", "gpt_neox", "glm4_moe"])
def test_what_transformers_writes_can_be_read(kind: str, tmp_path: Path) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    assert read_config(tmp_path, "T", print).model_type == kind


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [("gemma2", "hidden_act", "silu"), ("gpt_oss", "experts_per_token", 2), ("deepseek_v3", "moe_layer_freq", 2),
     ("stablelm", "rotary_scaling_factor", 2.0), ("phi3", "full_attn_mod", 2), ("mixtral", "norm_topk_prob", False),
     ("llama", "is_causal", False), ("llama", "use_rope", False), ("llama", "text_config", {"hidden_size": 8})],
)  # fmt: skip
def test_another_value_of_such_a_key_is_refused(model_type: str, key: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as error:
        read_config(write(tmp_path, {"model_type": model_type, key: value}), "T", print)
    assert f"config.json: {key} = {json.dumps(value)}: " in str(error.value) and "correct the key" in str(error.value)
