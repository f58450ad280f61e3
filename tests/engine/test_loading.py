"""From names to an engine: what is looked up, and what both models are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from byte_tokenizer import byte_level
from drafter_pair import tiny_config, tiny_tensors, write_checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwood.attention import BACKENDS, SdpaBackend
from draftwood.engine.loading import Parts, load_parts
from draftwood.errors import ModelError, UnsupportedError, UsageError

VOCAB, HIDDEN, LAYERS = 265, 32, 3


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a tiny target and its drafter, by hub id."""
    root = tmp_path_factory.mktemp("hub")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, eos_token_id=256, bos_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(root / "target")
    byte_level().save_pretrained(root / "target")
    drafter = tiny_config(
        hidden_size=HIDDEN, vocab_size=VOCAB, num_target_layers=LAYERS, block_size=8,
        dflash_config={"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 1]},
    )  # fmt: skip
    write_checkpoint(root / "drafter", drafter, tiny_tensors(drafter, taps=2))
    return {"some/target": root / "target", "some/drafter": root / "drafter"}


@pytest.fixture
def asked(hub: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The look-ups, each of which gives the next answer of a hub that could change its mind: a folder, then nothing."""
    seen: list[str] = []

    def snapshot_download(name: str, **_: Any) -> str:
        seen.append(name)
        return str(hub[name] if seen.count(name) == 1 else hub[name] / "gone")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return seen


def parts_of(model: str, drafter: str | None, cache: Path) -> Parts:
    return load_parts(
        model, drafter, dtype="auto", device="cpu", attention="sdpa", cache_dir=cache, notify=lambda line: None
    )


def test_a_hub_id_is_looked_up_once(hub: dict[str, Path], asked: list[str], tmp_path: Path) -> None:
    found = parts_of("some/target", "some/drafter", tmp_path)
    assert sorted(asked) == ["some/drafter", "some/target"]
    assert found.target.spec.name == "some/target" and found.drafter is not None
    # The same pair by its folders: the look-up changed nothing else.
    local = parts_of(str(hub["some/target"]), str(hub["some/drafter"]), tmp_path)
    assert local.identity == found.identity and found.identity.model and found.identity.drafter
    assert len(asked) == 2


def test_folders_are_not_looked_up(hub: dict[str, Path], asked: list[str], tmp_path: Path) -> None:
    found = parts_of(str(hub["some/target"]), None, tmp_path)
    assert asked == [] and found.drafter is None and found.identity.drafter == ""


@pytest.mark.parametrize("setting", [{"device": "mps"}, {"device": "meta"}, {"dtype": "int8"}, {"attention": "flash"}])
def test_bad_settings_are_refused_before_a_look_up(setting: dict[str, str], asked: list[str], tmp_path: Path) -> None:
    usual = {"dtype": "auto", "device": "cpu", "attention": "sdpa"}
    (value,) = setting.values()
    with pytest.raises((UsageError, UnsupportedError), match=f"'{value}': expected") as error:
        load_parts("some/target", "some/drafter", cache_dir=tmp_path, notify=print, **{**usual, **setting})
    assert asked == [] and "\n" not in str(error.value)


def test_both_models_attend_by_the_backend_that_was_named(
    hub: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Other(SdpaBackend):
        name = "other"

    monkeypatch.setitem(BACKENDS, "other", Other)
    target, drafter = str(hub["some/target"]), str(hub["some/drafter"])
    found = load_parts(
        target, drafter, dtype="auto", device="cpu", attention="other", cache_dir=tmp_path, notify=lambda line: None
    )
    backend = found.drafter._backend  # type: ignore[union-attr]
    assert isinstance(backend, Other) and backend is not found.target.backend  # type: ignore[attr-defined]
    assert found.identity.attention == "other"
    with pytest.raises(UnsupportedError, match="attention 'flash': expected one of sdpa, other"):
        load_parts(target, None, dtype="auto", device="cpu", attention="flash", cache_dir=tmp_path, notify=print)


def test_an_unknown_id_keeps_its_noun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"^model 'nosuch/model': .* cannot be reached$"):
        parts_of("nosuch/model", None, tmp_path)
    with pytest.raises(ModelError, match=r"^drafter 'nosuch/drafter': .* cannot be reached$"):
        parts_of("nosuch/model", "nosuch/drafter", tmp_path)
