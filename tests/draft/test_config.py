"""Reading `config.json` of a drafter: where fields may stand, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drafter_pair as pair
import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from draftwood.draft.config import (
    DFlashConfig,
    LayerRule,
    check_layer_ids,
    default_target_layers,
    fill_guesses,
    parse_config,
    read_config,
)
from draftwood.draft.model import qwen3_config
from draftwood.errors import ModelError, UnsupportedError, UsageError


def parse(**changes: Any) -> DFlashConfig:
    return parse_config("config.json", pair.tiny_config(**changes))


def refused(error: type[UsageError], **changes: Any) -> str:
    """The one-line message with which the config is refused."""
    with pytest.raises(error) as caught:
        parse(**changes)
    message = str(caught.value)
    assert "\n" not in message and message.startswith("config.json: ")
    return message


def inner(**fields: Any) -> dict[str, Any]:
    return {"mask_token_id": 63, "target_layer_ids": [1, 3, 5], **fields}


def test_the_public_demo_config() -> None:
    if not pair.DEMO.is_dir():
        pytest.skip("package data smollm2-135m-dflash is not there")
    config = read_config(pair.DEMO)
    assert (config.block_size, config.depth, config.mask_token_id) == (8, 7, 16)
    assert config.target_layer_ids == (1, 14, 27) and config.num_target_layers == 30
    assert config.layers == (LayerRule(None, False),) * 3
    assert dict(config.rope) == {"rope_theta": 1e5, "rope_type": "default"}
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (576, 9, 3, 64)


def test_dflash_config_goes_before_the_top_level_and_then_the_default() -> None:
    assert parse(block_size=8).block_size == 8
    assert parse(block_size=None, dflash_config=inner(block_size=6)).block_size == 6
    assert parse(block_size=8, dflash_config=inner(block_size=8)).block_size == 8
    assert parse(block_size=8, dflash_config=inner(block_size=None)).block_size == 8
    assert parse(block_size=None).block_size == 16
    flat = parse(dflash_config=None, mask_token_id=7, target_layer_ids=[2, 0, 1])
    assert flat.mask_token_id == 7 and flat.target_layer_ids == (2, 0, 1)
    scales = parse(input_embedding_scale=2, dflash_config=inner(output_multiplier=0.5, input_embedding_scale=2))
    assert (scales.input_embedding_scale, scales.output_multiplier, scales.final_logit_softcapping) == (2.0, 0.5, None)


@pytest.mark.parametrize(
    "layers, target_layers, expected",
    [
        (1, 30, [15]),
        (5, 16, [1, 4, 7, 10, 13]),
        (5, 24, [1, 6, 11, 16, 21]),
        (5, 28, [1, 7, 13, 19, 25]),
        (5, 32, [1, 8, 15, 22, 29]),
        (5, 36, [1, 9, 17, 25, 33]),
        (5, 40, [1, 10, 19, 28, 37]),
        (5, 48, [1, 12, 23, 34, 45]),
        (5, 64, [1, 16, 31, 46, 61]),
    ],
)
def test_default_target_layers(layers: int, target_layers: int, expected: list[int]) -> None:
    assert list(default_target_layers(layers, target_layers)) == expected


def test_guesses_are_announced_and_refused_when_unsound() -> None:
    bare = parse(dflash_config=None, num_hidden_layers=3)
    lines: list[str] = []
    filled = fill_guesses(bare, 3, 8, 60, lines.append)
    assert filled.target_layer_ids == (1, 3, 5) and filled.mask_token_id == 60
    assert len(lines) == 2 and "[1, 3, 5] (0-based)" in lines[0] and "mask_token_id is missing, guessed 60" in lines[1]
    with pytest.raises(ModelError, match=r"fc\.weight takes 2 "):
        fill_guesses(bare, 2, 8, 60, lines.append)
    with pytest.raises(ModelError, match="this target has 9 layers"):
        fill_guesses(bare, 3, 9, 60, lines.append)
    with pytest.raises(ModelError, match="mask_token_id is missing"):
        fill_guesses(bare, 3, 8, None, lines.append)
    complete = parse()
    assert fill_guesses(complete, 2, 8, None, pair.refuse_notice) is complete


@pytest.mark.parametrize("layer", [-1, 3, "3", 2.0, True, None])
def test_bad_layer_ids_are_named(layer: object) -> None:
    message = refused(ModelError, dflash_config=inner(target_layer_ids=[1, 3, layer]))
    assert f"holds {layer!r}" in message and "0-based" in message and "0..6" in message


@pytest.mark.parametrize("ids", [[], "1,2", 5])
def test_lists_that_are_none(ids: object) -> None:
    assert "0-based" in refused(ModelError, dflash_config=inner(target_layer_ids=ids))


def test_the_last_layer_and_those_behind_it_are_refused() -> None:
    config = parse(dflash_config=inner(target_layer_ids=[5, 1, 3]))
    assert config.target_layer_ids == (5, 1, 3)
    check_layer_ids(config, 7)
    for layers in (6, 5):
        with pytest.raises(ModelError, match=rf"holds 5: expected distinct 0-based layer ids in 0\.\.{layers - 2}"):
            check_layer_ids(config, layers)


def test_layer_types_and_causality() -> None:
    mixed = ["sliding_attention", "full_attention"]
    assert parse(layer_types=None).layers == (LayerRule(None, False),) * 2
    assert parse(layer_types=None, sliding_window=4).layers == (LayerRule(None, False),) * 2
    assert parse(layer_types=None, sliding_window=4, use_sliding_window=True, max_window_layers=2).layers == (
        (LayerRule(None, False),) * 2
    )
    assert parse(layer_types=mixed, sliding_window=4).layers == (LayerRule(4, True), LayerRule(None, False))
    assert parse(layer_types=mixed, sliding_window=4, is_causal=False).layers == (
        LayerRule(4, False),
        LayerRule(None, False),
    )
    assert parse(is_causal=True).layers == (LayerRule(None, True),) * 2
    assert parse(dflash_config=inner(causal=True)).layers == (LayerRule(None, True),) * 2


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"layer_types": ["full_attention"]}, "expected 2 entries"),
        ({"layer_types": "full_attention"}, "expected 2 entries"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window None"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": False}, "False"),
        ({"use_sliding_window": True, "sliding_window": 4}, "without layer_types"),
        ({"sliding_window": 0}, "sliding_window 0"),
        ({"is_causal": True, "dflash_config": inner(causal_head=False)}, "contradict"),
        ({"is_causal": 1}, "is_causal 1"),
        ({"block_size": 1}, "block_size 1: expected an integer of at least 2"),
        ({"block_size": "8"}, "block_size '8'"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": True}, "num_attention_heads True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3: expected a divisor of 4"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps -1.0"),
        ({"dflash_config": [1]}, r"dflash_config [1]"),
        ({"dflash_config": inner(mask_token_id=-1)}, "mask_token_id -1"),
        ({"final_logit_softcapping": float("inf")}, "final_logit_softcapping inf"),
    ],
)
def test_unusable_values(changes: dict[str, Any], word: str) -> None:
    assert word in refused(ModelError, **changes)


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"architectures": ["Qwen3DSparkModel"]}, "Qwen3DSparkModel"),
        ({"dflash_config": inner(selector_rank=256)}, "DFlash2"),
        ({"dflash_config": inner(projector_type="domino")}, "Domino"),
        ({"speculators_model_type": "dflash"}, "speculators"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "'linear_attention'"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e6}}, "'longrope'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
    ],
)
def test_other_drafters_and_conventions_are_refused_by_name(changes: dict[str, Any], word: str) -> None:
    assert word in refused(UnsupportedError, **changes)


YARN = {"factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 500000}, "rope_scaling": {"type": "yarn", **YARN}},
        {"rope_theta": 5e5, "rope_parameters": {"type": "yarn", "rope_theta": 5e5, **YARN}, "rope_scaling": None},
        {"rope_theta": None, "dflash_config": inner(rope_theta=5e5, rope_scaling={"type": "yarn", **YARN})},
        {"rope_theta": 5e5, "max_position_embeddings": 128, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ],
)
def test_rope_is_found_in_every_spelling(changes: dict[str, Any]) -> None:
    """Trap 40; the second route is transformers' own reading of a config in the new spelling."""
    config = parse(**changes)
    assert dict(config.rope) == {"rope_theta": 5e5, "rope_type": "yarn", **YARN}
    own = Qwen3RotaryEmbedding(qwen3_config(config))
    parameters = {"rope_type": "yarn", "rope_theta": 5e5, **YARN}
    theirs = Qwen3RotaryEmbedding(Qwen3Config(head_dim=16, rope_parameters=parameters, max_position_embeddings=512))
    torch.testing.assert_close(own.inv_freq, theirs.inv_freq, atol=0, rtol=0)
    assert own.attention_scaling == theirs.attention_scaling != 1.0


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"rope_theta": None}, "no rope_theta"),
        ({"rope_theta": None, "rope_scaling": {"type": "yarn", **YARN}}, "no rope_theta"),
        (
            {"rope_parameters": {"rope_theta": 1e4}},
            "rope_theta 1000000.0 contradicts rope_parameters.rope_theta 10000.0",
        ),
        ({"dflash_config": inner(rope_theta=1e4)}, "dflash_config.rope_theta 10000.0 contradicts rope_theta 1000000.0"),
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear", **YARN}}, "'yarn' contradicts"),
        ({"rope_scaling": {"type": "yarn", **YARN}, "rope_parameters": {"rope_type": "default"}}, "contradicts"),
        ({"rope_scaling": {"type": "yarn", **YARN}, "rope_parameters": {"factor": 8.0}}, "contradicts"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' lacks factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": None}, "lacks original_max"),
        ({"rope_theta": "1e6"}, "rope_theta '1e6'"),
        ({"rope_theta": 0}, "rope_theta 0"),
        ({"rope_scaling": ["yarn"]}, "expected an object"),
    ],
)
def test_contradictory_or_missing_rope_is_refused(changes: dict[str, Any], word: str) -> None:
    assert word in refused(ModelError, **changes)


def test_the_sections_of_a_multimodal_rope_change_nothing() -> None:
    config = parse(rope_parameters={"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True})
    assert dict(config.rope) == {"rope_theta": 1e6, "rope_type": "default"}


@pytest.mark.parametrize(
    "content, word",
    [
        (None, "no config.json"),
        (b"{", "JSON"),
        (b"[1]", "list"),
        (b"\xff", "not UTF-8"),
        (b'{"rms_norm_eps": Infinity}', "the number Infinity"),
        (b"version https://git-lfs.github.com/spec/v1", "pointer"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes | None, word: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=word) as caught:
        read_config(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelError, match=r"config\.json is a folder"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "name, value",
    [
        ("layer_norm_eps", 1e-5), ("norm_type", "layernorm"), ("qk_norm", False), ("use_qk_norm", False),
        ("attn_logit_softcapping", 50.0), ("query_pre_attn_scalar", 256), ("attention_multiplier", 0.1),
        ("residual_multiplier", 0.5), ("logits_scaling", 8.0), ("logit_scale", 0.25), ("scale_embeddings", True),
        ("rope_interleaved", True), ("is_neox_style", False), ("rotary_dim", 8), ("mlp_bias", True),
        ("quantization_config", {"quant_method": "fp8"}), ("num_experts", 8), ("kv_lora_rank", 32),
        ("attention_sinks", True), ("alibi", True), ("row_layout", "anchor_last"), ("hidden_activation", "gelu"),
        ("parallel_residual", True), ("clip_qkv", 8.0), ("use_rope", False), ("anchor_offset", 0),
    ],
)  # fmt: skip
def test_a_key_that_would_be_ignored_is_refused(name: str, value: object) -> None:
    for changes, place in (({name: value}, name), ({"dflash_config": inner(**{name: value})}, f"dflash_config.{name}")):
        line = refused(UnsupportedError, **changes)
        assert name in line and repr(value) in line and (name == "hidden_activation" or place in line)


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp_bias": False}, {"qk_norm": True}, {"residual_multiplier": 1.0}, {"alibi": None}, {"auto_map": {"x": "y"}},
        {"_name_or_path": "x"}, {"dtype": "bfloat16"}, {"eos_token_id": 3}, {"attention_dropout": 0.1},
        {"rope_interleaved": False}, {"tie_word_embeddings": True},
    ],
)  # fmt: skip
def test_a_key_that_changes_nothing_is_accepted(changes: dict[str, Any]) -> None:
    assert parse(**changes) == parse()


@pytest.mark.parametrize(
    "name, values", [("block_size", (8, 6)), ("mask_token_id", (7, 63)), ("target_layer_ids", ([0], [1]))]
)
def test_two_places_that_disagree_are_refused(name: str, values: tuple[Any, Any]) -> None:
    line = refused(ModelError, **{name: values[0], "dflash_config": inner(**{name: values[1]})})
    assert f"dflash_config.{name} {values[1]!r} contradicts {name} {values[0]!r}" in line


def test_ids_of_the_other_convention_are_hinted_at() -> None:
    for layer, hinted in ((9, True), (10, True), (11, False)):
        config = parse(dflash_config=inner(target_layer_ids=[1, layer]))
        with pytest.raises(ModelError, match=f"holds {layer}") as error:
            check_layer_ids(config, 10)
        assert ("each is one less here" in str(error.value)) == hinted
