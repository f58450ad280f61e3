"""Values of odd types mean what they say, undeclared keys are named, and broken files give the true reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_checkpoint import edit_config, write_checkpoint
from transformers import AutoConfig, AutoModelForCausalLM, Gemma3Config, LlamaConfig

from draftwood.errors import DraftwoodError, ModelError, UnsupportedError
from draftwood.models.checkpoint import context_limit, read_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "T")


def silent(line: str) -> None:
    raise AssertionError(f"unexpected notice: {line}")


def read(folder: Path) -> Any:
    return read_config(folder, "T", silent)


def refused(folder: Path, kind: type[DraftwoodError] = ModelError) -> str:
    with pytest.raises(kind) as error:
        read(folder)
    line = str(error.value)
    assert "\n" not in line and "model 'T'" in line
    return line


def test_an_ordinary_one_is_what_transformers_reads(folder: Path) -> None:
    assert read(folder).to_dict() == AutoConfig.from_pretrained(folder).to_dict()


@pytest.mark.parametrize(
    ("key", "value", "means"),
    [
        ("rms_norm_eps", "1e-6", 1e-6),
        ("rms_norm_eps", 1, 1.0),
        ("max_position_embeddings", 512.0, 512),
        ("max_position_embeddings", "512", 512),
        ("initializer_range", 0, 0.0),
        ("tie_word_embeddings", 1, True),
        ("tie_word_embeddings", "False", False),
        ("head_dim", "8", 8),
        ("attention_bias", 0.0, False),
        ("hidden_act", "silu", "silu"),
    ],
)
def test_other_spellings_of_a_value(key: str, value: object, means: object, folder: Path) -> None:
    edit_config(folder, **{key: value})
    found = getattr(read(folder), key)
    assert found == means and type(found) is type(means)


def test_numbers_in_quotes_scale_positions(folder: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": "10000.0", "factor": "4"}
    edit_config(folder, rope_parameters=rope)
    model = AutoModelForCausalLM.from_config(read(folder))
    plain = AutoModelForCausalLM.from_config(LlamaConfig(**{**read(folder).to_dict(), "rope_parameters": None}))
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, plain.model.rotary_emb.inv_freq / 4)


def test_the_older_spelling_of_rope(folder: Path) -> None:
    edit_config(folder, ("rope_parameters",), rope_theta="500000", rope_scaling={"type": "linear", "factor": 2})
    parameters = read(folder).rope_parameters
    assert parameters["rope_theta"] == 500000 and parameters["factor"] == 2 and parameters["rope_type"] == "linear"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", None),
        ("bos_token_id", [1, 2]),
        ("hidden_size", "wide"),
        ("num_hidden_layers", 2.5),
        ("head_dim", [8]),
    ],
)
def test_a_value_that_means_nothing_is_named(key: str, value: object, folder: Path) -> None:
    edit_config(folder, **{key: value})
    assert key in refused(folder)


@pytest.mark.parametrize(
    "key",
    ["attn_logit_softcapping", "query_pre_attn_scalar", "sliding_window", "logit_scale", "residual_multiplier",
     "rope_thetas",
     "num_experts", "use_qk_norm", "layer_types", "clip_qkv", "alibi", "attention_sinks", "hidden_activation"],
)  # fmt: skip
def test_an_undeclared_key_that_sounds_like_arithmetic_is_refused(key: str, folder: Path) -> None:
    edit_config(folder, **{key: 7})
    line = refused(folder, UnsupportedError)
    assert f"config.json: {key} = 7: " in line and "LlamaConfig" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("sliding_window", None), ("use_qk_norm", False), ("transformers.js_config", {"x": 1}), ("_name_or_path", "there"),
     ("resid_pdrop", 0.1), ("temperature", 0.7), ("unsloth_version", "2026.1"), ("pretraining_tp", 2)],
)  # fmt: skip
def test_what_changes_nothing_is_accepted_in_silence(key: str, value: object, folder: Path) -> None:
    edit_config(folder, **{key: value})
    read(folder)


def test_other_undeclared_keys_stand_in_one_notice(folder: Path) -> None:
    edit_config(folder, colour="red", shape=[1, 2])
    notices: list[str] = []
    read_config(folder, "T", notices.append)
    assert len(notices) == 1 and 'colour = "red", shape = [1, 2]' in notices[0]


@pytest.mark.parametrize("packed", [{"quant_method": "fp8"}, {"quant_method": "awq", "bits": 4}])
def test_packed_weights_are_refused_by_name(packed: dict[str, object], folder: Path) -> None:
    edit_config(folder, quantization_config=packed)
    assert f"quantization_config ({packed['quant_method']})" in refused(folder, UnsupportedError)


def test_own_code_never_runs(folder: Path) -> None:
    (folder / "own.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    edit_config(folder, auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    notices: list[str] = []
    assert type(read_config(folder, "T", notices.append)) is LlamaConfig
    assert len(notices) == 1 and "auto_map" in notices[0] and "llama" in notices[0]
    edit_config(folder, model_type="theirs")
    line = refused(folder, UnsupportedError)
    assert "model_type 'theirs'" in line and "never runs" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_attention_heads", 0), ("num_hidden_layers", 0), ("max_position_embeddings", -5), ("vocab_size", "-1")],
)
def test_a_size_below_one(key: str, value: object, folder: Path) -> None:
    edit_config(folder, **{key: value})
    assert f"config.json: {key} = {value}: expected a whole number from 1" in refused(folder)


def test_unknown_names_are_refused_with_what_can_stand_there(folder: Path) -> None:
    edit_config(folder, hidden_act="swoosh")
    assert "hidden_act 'swoosh': expected one that transformers has, as silu" in refused(folder, UnsupportedError)
    edit_config(folder, hidden_act="silu", dtype="bf16")
    assert "dtype 'bf16': expected float64, float32, float16 or bfloat16" in refused(folder, UnsupportedError)
    edit_config(folder, dtype="float32", torch_dtype="float16")
    assert 'torch_dtype = "float16" but dtype = "float32"' in refused(folder)


def test_the_form_of_results_is_no_matter_of_the_file(folder: Path) -> None:
    edit_config(folder, return_dict=False)
    assert read(folder).return_dict is True


def test_numbers_in_quotes_that_are_not_finite(folder: Path) -> None:
    edit_config(folder, max_position_embeddings="1e999")
    assert "max_position_embeddings" in refused(folder)


def test_an_unknown_type_of_model(folder: Path) -> None:
    edit_config(folder, model_type="lama")
    assert "model_type 'lama': expected one that this transformers has built in" in refused(folder, UnsupportedError)
    edit_config(folder, model_type=["llama"])
    assert "model_type ['llama']: expected one" in refused(folder, UnsupportedError)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "config.json is not JSON"),
        ('{"rms_norm_eps": 1e999}', "not JSON: the number 1e999"),
        ('{"vocab_size": 8, "vocab_size": 9}', "the key 'vocab_size' stands in it twice"),
        ("[1]", "expected a JSON object, found list"),
        ('{"model_type": "llama", "rms_norm_eps": NaN}', "not JSON: the number NaN"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_broken_files_give_the_true_reason(content: str | bytes, reason: str, folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content, encoding="utf-8")
    assert reason in refused(folder)


def test_a_folder_in_place_of_the_file(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json is a folder" in refused(folder)


def test_a_byte_order_mark_is_no_content(folder: Path) -> None:
    path = folder / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(folder).hidden_size == 32


def test_sizes_one_level_down(tmp_path: Path) -> None:
    text = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "rms_norm_eps": "1e-5"}
    Gemma3Config().save_pretrained(tmp_path)
    edit_config(tmp_path, text_config={"model_type": "gemma3_text", **text})
    found = read(tmp_path).get_text_config()
    assert (found.vocab_size, found.hidden_size, found.rms_norm_eps) == (64, 32, 1e-5)
    edit_config(tmp_path, text_config={"model_type": "gemma3_text", **text, "residual_multiplier": 3})
    assert "text_config.residual_multiplier = 3" in refused(tmp_path, UnsupportedError)


def scaled(kind: str, original: int | None, limit: int, factor: float = 4.0) -> LlamaConfig:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": original}
    return LlamaConfig(max_position_embeddings=limit, rope_parameters={k: v for k, v in rope.items() if v is not None})


def test_the_context_of_scaled_positions() -> None:
    assert context_limit(LlamaConfig(max_position_embeddings=300), "T", silent) == 300
    assert context_limit(scaled("yarn", 64, 256), "T", silent) == 256
    assert context_limit(scaled("linear", None, 256), "T", silent) == 256
    notices: list[str] = []
    assert context_limit(scaled("yarn", 64, 64), "T", notices.append) == 256
    assert len(notices) == 1
    assert re.search(r"yarn scaling .* extends 64 positions 4.0 times: context of 256 tokens", notices[0])


def test_a_model_without_a_context() -> None:
    class Bare:
        rope_parameters = None

    with pytest.raises(UnsupportedError, match="names no context length: expected max_position_embeddings"):
        context_limit(Bare(), "T", silent)
