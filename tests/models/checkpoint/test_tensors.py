"""Number types from the files themselves, and tensors that would be left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from byte_tokenizer import byte_level
from safetensors.torch import load_file, save_file
from tiny_checkpoint import edit_config, edit_tensors, write_checkpoint
from transformers import AutoModelForCausalLM

from draftwood.attention import make_backend
from draftwood.errors import DraftwoodError, ModelError, UnsupportedError
from draftwood.models.checkpoint import check_left_over, stored_dtype
from draftwood.models.loading import load_target
from draftwood.models.source import resolve_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "T")


def silent(line: str) -> None:
    raise AssertionError(f"unexpected notice: {line}")


def refused(folder: Path, kind: type[DraftwoodError] = ModelError) -> str:
    with pytest.raises(kind) as error:
        stored_dtype(folder, "T", None, silent)
    line = str(error.value)
    assert "\n" not in line and "model 'T'" in line
    return line


def everything(folder: Path, notify: Callable[[str], None] = lambda line: None) -> Any:
    byte_level().save_pretrained(folder)
    return load_target(
        resolve_model(str(folder)), dtype="float32", device="cpu", backend=make_backend("sdpa"),
        cache_dir=folder.parent / "cache", notify=notify,
    )  # fmt: skip


def loaded(folder: Path, notify: Callable[[str], None] = lambda line: None) -> Any:
    return everything(folder, notify).target


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_files_say_what_the_configuration_does_not(dtype: torch.dtype, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, dtype)
    assert stored_dtype(folder, "T", None, silent) == dtype
    assert stored_dtype(folder, "T", torch.float32, silent) == torch.float32
    assert stored_dtype(folder, "T", "bfloat16", silent) == torch.bfloat16


def test_mixed_types_are_announced(folder: Path) -> None:
    edit_tensors(folder, **{"model.norm.weight": torch.ones(32, dtype=torch.bfloat16)})
    notices: list[str] = []
    assert stored_dtype(folder, "T", None, notices.append) == torch.float32
    assert len(notices) == 1 and "float32, bfloat16" in notices[0]


def test_float8_and_packed_weights_are_refused_by_name(folder: Path) -> None:
    weight = "model.layers.0.mlp.up_proj.weight"
    for dtype, name in (
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.int8, "I8"),
        (torch.int32, "I32"),
        (torch.uint8, "U8"),
    ):
        edit_tensors(folder, **{weight: torch.zeros(48, 32).to(dtype)})
        assert f"tensor {weight} is stored as {name}: " in refused(folder, UnsupportedError)
    with pytest.raises(UnsupportedError, match="dtype 'float8_e4m3fn': expected one of float64"):
        stored_dtype(write_checkpoint(folder.parent / "other"), "T", torch.float8_e4m3fn, silent)


def test_files_that_are_not_there_or_no_files(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:40])
    assert "model.safetensors is not a safetensors file, or cut" in refused(folder)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    assert "Git LFS pointer" in refused(folder)
    weights.unlink()
    assert "no model.safetensors and no model.safetensors.index.json" in refused(folder)
    (folder / "pytorch_model.bin").touch()
    assert "found pytorch_model.bin, a pickle, which is never opened" in refused(folder)
    weights.mkdir()
    assert "model.safetensors is a folder" in refused(folder)


@pytest.mark.parametrize("shard", ["model-00002-of-00002.safetensors", "../elsewhere.safetensors", ""])
def test_an_index_that_names_no_file(shard: str, folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model.safetensors", "lm_head.weight": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert f"index.json names {shard!r}: no such file" in refused(folder)


def test_shards_are_read_all(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in shards.items():
        save_file({name: tensors[name].double() for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert stored_dtype(folder, "T", None, silent) == torch.float64
    (folder / "model.safetensors.index.json").write_text('{"weight_map": [1]}', encoding="utf-8")
    assert "weight_map: expected file names by tensor" in refused(folder)


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_norm.weight", "model.layers.0.self_attn.sinks",
     "model.layers.0.mlp.up_proj.weight_scale", "model.layers.0.post_feedforward_layernorm.weight", "lora_A.weight"],
)  # fmt: skip
def test_a_tensor_with_a_meaning_is_refused(name: str, folder: Path) -> None:
    edit_tensors(folder, **{name: torch.ones(32)})
    with pytest.raises(
        ModelError, match=rf"1 tensors of the checkpoint have no place .*: .*|{re.escape(name)}"
    ) as error:
        loaded(folder)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_harmless_tensors_and_layers_that_draft() -> None:
    check_left_over(
        "T",
        ["model.layers.0.self_attn.rotary_emb.inv_freq", "transformer.h.0.attn.masked_bias",
         "model.layers.2.mlp.up.weight",
         "model.layers.2.eh_proj.weight",
         "mtp.0.weight", "vision_tower.patch.weight", "model.embeddings.position_ids"],
        num_layers=2,
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"the first is model\.layers\.1\.x"):
        check_left_over("T", ["model.layers.1.x", "model.layers.2.x", "model.layers.2.enorm.weight"], num_layers=2)


def test_a_count_of_layers_below_those_stored_is_no_drafting(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=1)
    with pytest.raises(ModelError, match=r"9 tensors .* no place in the model, the first is model\.layers\.1\.input"):
        loaded(folder)


def test_shapes_that_do_not_fit_are_named(folder: Path) -> None:
    edit_config(folder, intermediate_size=40)
    with pytest.raises(
        ModelError,
        match=r"6 tensors .* first is model\.layers\.0\.mlp\.down_proj\.weight: \(32, 48\) .*, \(32, 40\) by",
    ):
        loaded(folder)


def test_an_adapter_is_no_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "adapter_config.json: " in refused(folder, UnsupportedError)


def test_a_file_and_an_index_of_others(folder: Path) -> None:
    save_file({"x": torch.ones(1)}, folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors"}}', encoding="utf-8")
    assert "both model.safetensors and model.safetensors.index.json" in refused(folder)


def test_a_missing_tensor_is_not_made_up(folder: Path) -> None:
    edit_tensors(folder, **{"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(
        ModelError, match=r"1 tensors are not in the checkpoint, the first is model\.layers\.1\.mlp\.up_proj"
    ):
        loaded(folder)


def test_a_head_that_the_configuration_does_not_expect_is_announced(tmp_path: Path) -> None:
    """Tied by the configuration, stored with other numbers: what transformers runs is run, and said."""
    folder = write_checkpoint(tmp_path / "T", tie_word_embeddings=False)
    edit_config(folder, tie_word_embeddings=True)
    stored = load_file(folder / "model.safetensors")
    assert not torch.equal(stored["lm_head.weight"], stored["model.embed_tokens.weight"])
    notices: list[str] = []
    target = loaded(folder, notices.append)
    assert len(notices) == 1 and "tie_word_embeddings is true" in notices[0] and "lm_head.weight" in notices[0]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).get_output_embeddings().weight
    hidden = torch.eye(32)
    torch.testing.assert_close(target.head(hidden), hidden @ theirs.T)
    assert torch.equal(theirs, stored["lm_head.weight"])
    edit_tensors(folder, **{"lm_head.weight": stored["model.embed_tokens.weight"].clone()})
    loaded(folder, silent)


def test_where_an_end_id_comes_from_is_told_truly(folder: Path) -> None:
    """Without a generation_config.json transformers makes one up from the configuration."""
    settings = folder / "generation_config.json"
    settings.write_text('{"eos_token_id": [7, 2]}', encoding="utf-8")
    ends = {end.token_id: end.source for end in everything(folder).codec.ends()}
    assert (ends[7], ends[2]) == ("generation_config", "generation_config")
    settings.unlink()
    ends = {end.token_id: end.source for end in everything(folder).codec.ends()}
    assert ends[2] == "config" and 7 not in ends
