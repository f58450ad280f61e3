"""Weights of a drafter: everything the config promises, checked before a tensor is read."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import drafter_pair as pair
import pytest
import torch
from safetensors.torch import save_file

from draftwood.draft.checkpoint import check_tensors, expected_shapes, load_tensors, read_header
from draftwood.draft.config import parse_config, read_config
from draftwood.draft.dflash import DFlashDrafter, load_drafter
from draftwood.errors import ModelError, UnsupportedError, UsageError


def load(folder: Path, target: pair.ToyTarget | None = None, **options: Any) -> DFlashDrafter:
    options = {"dtype": torch.float32, "device": "cpu", "notify": pair.refuse_notice, **options}
    drafter = load_drafter(folder, target or pair.ToyTarget(), **options)
    drafter.allocate(100, 4)
    return drafter


def refusal(folder: Path, error: type[UsageError] = ModelError, target: pair.ToyTarget | None = None) -> str:
    """The one-line message with which a folder is refused."""
    with pytest.raises(error) as caught:
        load(folder, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def config() -> dict[str, Any]:
    return pair.tiny_config()


@pytest.fixture
def tensors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    return pair.tiny_tensors(config)


@pytest.mark.parametrize("layers, bias, count", [(2, False, 25), (5, False, 58), (8, True, 123), (1, True, 18)])
def test_tensor_count_and_shapes(layers: int, bias: bool, count: int) -> None:
    raw = pair.tiny_config(num_hidden_layers=layers, attention_bias=bias)
    shapes = expected_shapes(parse_config("config.json", raw), 3)
    assert len(shapes) == count == (15 if bias else 11) * layers + 3
    assert shapes == pair.tiny_shapes(raw)


def test_shapes_of_a_public_checkpoint() -> None:
    raw = pair.tiny_config(
        hidden_size=2560, intermediate_size=9728, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    )
    shapes = expected_shapes(parse_config("config.json", raw), 5)
    assert shapes["fc.weight"] == (2560, 12800)
    assert shapes["layers.1.self_attn.q_proj.weight"] == (4096, 2560)
    assert shapes["layers.1.self_attn.k_proj.weight"] == (1024, 2560)
    assert shapes["layers.1.self_attn.o_proj.weight"] == (2560, 4096)
    assert shapes["layers.1.mlp.down_proj.weight"] == (2560, 9728)


def golden_states(drafter: DFlashDrafter) -> torch.Tensor:
    pair.start(drafter, 0, pair.taps_of(7))
    return drafter.block_states([pair.ask(0, 5, 7, 4)])


def test_prefix_and_shards_load_alike(tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    usual = golden_states(load(pair.write_checkpoint(tmp_path / "one", config, tensors)))
    prefixed = {f"model.{name}": tensor for name, tensor in tensors.items()}
    # Where a tensor lies in its file decides how it is aligned, and with that the last bit of a product.
    same = partial(torch.testing.assert_close, expected=usual, rtol=1e-5, atol=1e-5)
    same(golden_states(load(pair.write_checkpoint(tmp_path / "two", config, prefixed))))

    folder = tmp_path / "three"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    same(golden_states(load(folder)))
    (folder / "b.safetensors").unlink()
    assert "b.safetensors: no such file" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("{}", encoding="utf-8")
    assert "weight_map" in refusal(folder)


def test_biases_of_all_four_projections_are_used(tmp_path: Path) -> None:
    raw = pair.tiny_config(attention_bias=True)
    tensors = pair.tiny_tensors(raw)
    usual = golden_states(load(pair.write_checkpoint(tmp_path, raw, tensors)))
    for name in ("q", "k", "v", "o"):
        changed = dict(tensors)
        bias = f"layers.1.self_attn.{name}_proj.bias"
        changed[bias] = changed[bias] + torch.linspace(-1, 1, len(changed[bias]))
        moved = golden_states(load(pair.write_checkpoint(tmp_path, raw, changed))) - usual
        assert moved.abs().max() > 1e-3, name


def test_weights_take_the_dtype_that_is_asked_for(tmp_path: Path, config: dict[str, Any]) -> None:
    stored = {name: tensor.bfloat16() for name, tensor in pair.tiny_tensors(config).items()}
    folder = pair.write_checkpoint(tmp_path, config, stored)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        drafter = load(folder, pair.ToyTarget(dtype), dtype=dtype)
        assert {parameter.dtype for parameter in drafter.model.parameters()} == {dtype}
        assert drafter.model.rotary.inv_freq.dtype == torch.float32
        pair.start(drafter, 0, pair.taps_of(7, dtype=dtype))
        block = pair.scores(drafter, [pair.ask(0, 5, 7, 4)], 4)
        assert block.ids[0, :, 0, 0].tolist() == [19, 19, 19]


def test_missing_tensors_are_named(tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    del tensors["layers.1.self_attn.k_norm.weight"]
    assert "layers.1.self_attn.k_norm.weight missing" in refusal(pair.write_checkpoint(tmp_path, config, tensors))
    del tensors["fc.weight"]
    assert "fc.weight missing" in refusal(pair.write_checkpoint(tmp_path, config, tensors))
    deeper = pair.tiny_config(num_hidden_layers=3)
    message = refusal(pair.write_checkpoint(tmp_path, deeper, pair.tiny_tensors(config)))
    assert "layers.2." in message and "and 7 more missing" in message and "3 layers" in message


@pytest.mark.parametrize(
    "name, shape, word",
    [
        ("layers.0.mlp.up_proj.weight", [48, 16], "expected [48, 32]"),
        ("layers.1.self_attn.q_norm.weight", [8], "expected [16]"),
        ("norm.weight", [1, 32], "expected [32]"),
        ("fc.weight", [32, 64], "expected [32, 96]"),
        ("fc.weight", [32, 100], "expected [32, taps * 32]"),
    ],
)
def test_misshapen_tensors_are_named_with_both_shapes(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], name: str, shape: list[int], word: str
) -> None:
    tensors[name] = torch.zeros(shape)
    message = refusal(pair.write_checkpoint(tmp_path, config, tensors))
    assert f"{name} has shape {shape}" in message and word in message


def test_left_over_and_foreign_tensors_are_named(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    extra = {**tensors, "layers.2.norm.weight": torch.zeros(3), "layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    message = refusal(pair.write_checkpoint(tmp_path, config, extra))
    assert "tensors layers.0.self_attn.q_proj.bias, layers.2.norm.weight left over" in message
    assert "the 25 tensors of 2 layers" in message
    for name, dialect in {
        "candidate_selector.predecessor_codebook": "DFlash2",
        "layers.0.mlp_conv.base_kernel": "DFlash2",
        "verifier_norm.weight": "speculators",
        "t2d": "speculators",
        "midlayer.norm.weight": "Muse",
        "mask_embedding": "mask embedding",
        "embed_tokens.weight": "own embedding",
        "lm_head.weight": "own embedding or head",
    }.items():
        folder = pair.write_checkpoint(tmp_path, config, {**tensors, name: torch.zeros(2)})
        message = refusal(folder, UnsupportedError)
        assert name in message and dialect in message


def test_stored_integers_are_refused(tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.0.mlp.up_proj.weight"] = torch.zeros(48, 32, dtype=torch.int8)
    message = refusal(pair.write_checkpoint(tmp_path, config, tensors), UnsupportedError)
    assert "layers.0.mlp.up_proj.weight is I8" in message


@pytest.mark.parametrize(
    "content, word",
    [
        (None, "no weights: expected model.safetensors"),
        (b"", "empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
        (b"PK\x03\x04 something else", "not a whole safetensors file"),
    ],
)
def test_files_that_hold_no_weights(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], content: bytes | None, word: str
) -> None:
    folder = pair.write_checkpoint(tmp_path, config, tensors)
    weights = folder / "model.safetensors"
    weights.unlink()
    if content is not None:
        weights.write_bytes(content)
    assert word in refusal(folder)


def test_a_cut_file_is_refused(tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    weights = pair.write_checkpoint(tmp_path, config, tensors) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "not a whole safetensors file" in refusal(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nowhere")


def test_names_with_and_without_prefix_at_once(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> None:
    tensors["model.norm.weight"] = torch.ones(32)
    assert "norm.weight occurs twice" in refusal(pair.write_checkpoint(tmp_path, config, tensors))


def test_a_target_of_another_size_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = pair.write_checkpoint(tmp_path, config, pair.tiny_tensors(config))
    assert "hidden_size 32: the target has 48" in refusal(folder, target=pair.ToyTarget(hidden_size=48))
    assert "vocab_size 64: the target has 96" in refusal(folder, target=pair.ToyTarget(vocab_size=96))
    message = refusal(folder, target=pair.ToyTarget(embedding_rows=63))
    assert "mask_token_id 63" in message and "0..62" in message


@pytest.mark.parametrize("layers, ok", [(7, True), (6, False), (5, False), (4, False)])
def test_tapped_layers_must_exist_below_the_last(tmp_path: Path, layers: int, ok: bool) -> None:
    """Trap 38: [5, 1, 3] on targets whose last usable layer is 5, 4, 3 and 2."""
    raw = pair.tiny_config(num_target_layers=layers)
    raw["dflash_config"]["target_layer_ids"] = [5, 1, 3]
    folder = pair.write_checkpoint(tmp_path, raw, pair.tiny_tensors(raw))
    target = pair.ToyTarget(num_layers=layers)
    if ok:
        assert load(folder, target).target_layer_ids == (5, 1, 3)
    else:
        message = refusal(folder, target=target)
        assert "holds 5" in message and f"0..{layers - 2}" in message and "0-based" in message


def test_padding_and_another_depth_of_the_target_are_noticed(tmp_path: Path) -> None:
    raw = pair.tiny_config(vocab_size=60, num_target_layers=9)
    folder = pair.write_checkpoint(tmp_path, raw, pair.tiny_tensors(raw))
    lines: list[str] = []
    drafter = load(folder, notify=lines.append)
    assert len(lines) == 2
    assert "num_target_layers 9" in lines[0] and "vocab_size 60 and the target's 64 differ by padding" in lines[1]
    golden_states(drafter)
    assert pair.scores(drafter, [pair.ask(0, 5, 7, 4)], 100).ids.shape[3] == 64


def test_a_mask_token_is_guessed_only_with_a_tokenizer(tmp_path: Path) -> None:
    raw = pair.tiny_config(dflash_config={"target_layer_ids": [1, 3, 5]})
    folder = pair.write_checkpoint(tmp_path, raw, pair.tiny_tensors(raw))
    assert "mask_token_id is missing" in refusal(folder)
    lines: list[str] = []
    drafter = load(folder, tokenizer_len=62, notify=lines.append)
    assert drafter.config.mask_token_id == 62 and "guessed 62" in lines[0]
    with pytest.raises(ModelError, match="mask_token_id 64"):
        load(folder, tokenizer_len=64, notify=lines.append)


def test_the_bundled_checkpoint_loads() -> None:
    if not pair.DEMO.is_dir():
        pytest.skip("package data smollm2-135m-dflash is not there")
    config = read_config(pair.DEMO)
    header = read_header(pair.DEMO)
    assert len(header) == 11 * 3 + 3
    check_tensors(config, header)
    tensors = load_tensors(header, torch.bfloat16, torch.device("cpu"))
    assert tensors["fc.weight"].shape == (576, 3 * 576) and tensors["fc.weight"].dtype == torch.bfloat16
    assert sum(tensor.numel() for tensor in tensors.values()) == pytest.approx(11.6e6, rel=0.01)
    target = pair.ToyTarget(vocab_size=49152, hidden_size=576, embedding_rows=49152, num_layers=30)
    drafter = load(pair.DEMO, target)
    pair.start(drafter, 0, pair.fill([12, 1728], 3, -1, 1))
    block = pair.scores(drafter, [pair.ask(0, 5, 12, 8)], 16)
    assert block.ids.shape == (1, 7, 1, 16) and (block.logp <= 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor], value: float
) -> None:
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors["layers.0.mlp.up_proj.weight"][0, 0] = value
    assert "layers.0.mlp.up_proj.weight holds numbers that are not finite" in refusal(
        pair.write_checkpoint(tmp_path, config, tensors)
    )
