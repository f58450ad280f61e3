"""GGUF conversion and its cache."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_gguf import write_tiny_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from draftwood.errors import ModelError
from draftwood.models import digest
from draftwood.models.digest import whole_digest
from draftwood.models.gguf import GgufFolder, GgufInMemory, open_gguf
from draftwood.models.gguf import folder as cache
from draftwood.models.gguf.folder import MANIFEST, cache_key, is_complete
from draftwood.models.gguf.header import read_header


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> GgufFolder:
    result = open_gguf(tiny, cache_dir=tmp_path_factory.mktemp("cache"), notify=no_notice)
    assert isinstance(result, GgufFolder)
    return result


@pytest.fixture
def cached(tiny: Path, converted: GgufFolder, tmp_path: Path) -> Path:
    """A cache folder of its own that holds the conversion."""
    shutil.copytree(converted.folder, tmp_path / "gguf" / converted.folder.name)
    return tmp_path


def no_notice(line: str) -> None:
    raise AssertionError(f"unexpected notice: {line}")


def no_conversion(path: Path, notify: Any) -> Any:
    raise AssertionError("converted again")


def reference(path: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


def test_header_holds_the_scalars_and_steps_over_arrays(tiny: Path) -> None:
    header = read_header(tiny)
    assert header["general.architecture"] == "llama"
    assert header["llama.embedding_length"] == 64
    assert header["llama.rope.freq_base"] == 10000.0
    assert header["tokenizer.ggml.eot_token_id"] == 257  # written after the arrays
    assert "tokenizer.ggml.tokens" not in header


def test_cache_is_float32_and_equal_to_what_transformers_unpacks(tiny: Path, converted: GgufFolder) -> None:
    stored = load_file(converted.folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float32}
    loaded = AutoModelForCausalLM.from_pretrained(converted.folder, dtype=torch.float32).state_dict()
    expected = reference(tiny)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_tokenizer_and_end_ids_survive(tiny: Path, converted: GgufFolder) -> None:
    text = "héllo  <|turn|> 🎉"
    kept = AutoTokenizer.from_pretrained(converted.folder)
    original = AutoTokenizer.from_pretrained(tiny.parent, gguf_file=tiny.name)
    assert kept(text)["input_ids"] == original(text)["input_ids"]
    assert kept.chat_template == original.chat_template
    assert converted.end_ids == (256, 257)


def test_second_start_reads_the_cache(tiny: Path, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "convert", no_conversion)
    assert isinstance(open_gguf(tiny, cache_dir=cached, notify=no_notice), GgufFolder)


@pytest.mark.parametrize("damage", ["shorten", "no manifest", "broken manifest", "other header", "no tokenizer"])
def test_half_written_cache_is_noticed_and_made_again(tiny: Path, cached: Path, damage: str) -> None:
    (folder,) = (cached / "gguf").iterdir()
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    if damage == "shorten":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "no manifest":
        (folder / MANIFEST).unlink()
    elif damage == "broken manifest":
        (folder / MANIFEST).write_text("[1, 2")
    elif damage == "other header":
        weights.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    else:
        (folder / "tokenizer.json").unlink()
    assert not is_complete(folder)
    notices: list[str] = []
    result = open_gguf(tiny, cache_dir=cached, notify=notices.append)
    assert result == GgufFolder(folder, (256, 257))
    assert is_complete(folder)
    assert weights.read_bytes() == data
    assert len(notices) == 1 and "incomplete" in notices[0]
    assert [path.name for path in (cached / "gguf").iterdir()] == [folder.name]


def test_cache_that_cannot_be_made_is_reported_and_work_goes_on(tiny: Path, tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_text("a file where the cache folder should be")
    notices: list[str] = []
    result = open_gguf(tiny, cache_dir=obstacle, notify=notices.append)
    assert isinstance(result, GgufInMemory)
    assert len(notices) == 1 and "\n" not in notices[0] and str(obstacle) in notices[0]
    expected = reference(tiny)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in result.model.state_dict().items())
    assert result.tokenizer("ab")["input_ids"]
    assert result.end_ids == (256, 257)


@pytest.mark.parametrize("failing", ["save_pretrained", "manifest"])
def test_full_disk_leaves_nothing_behind(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def no_space(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if failing == "save_pretrained":
        monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", no_space)
    else:
        monkeypatch.setattr(cache, "_mark", no_space)
    notices: list[str] = []
    assert isinstance(open_gguf(tiny, cache_dir=tmp_path, notify=notices.append), GgufInMemory)
    assert "No space left on device" in notices[0]
    assert list((tmp_path / "gguf").iterdir()) == []


@pytest.mark.parametrize("complete", [True, False])
def test_another_process_that_finishes_first_wins_if_it_is_complete(
    tiny: Path, converted: GgufFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    theirs = tmp_path / "gguf" / converted.folder.name
    convert = cache.convert

    def overtaken(path: Path, notify: Any) -> Any:
        result = convert(path, notify)
        shutil.copytree(converted.folder, theirs)
        (theirs / "mine").touch()
        if not complete:
            (theirs / MANIFEST).unlink()
        return result

    monkeypatch.setattr(cache, "convert", overtaken)
    assert open_gguf(tiny, cache_dir=tmp_path, notify=no_notice) == GgufFolder(theirs, (256, 257))
    assert is_complete(theirs)
    assert (theirs / "mine").exists() == complete
    assert list((tmp_path / "gguf").iterdir()) == [theirs]


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "hole.gguf", leave_out="blk.1.attn_k.weight")
    with pytest.raises(ModelError, match=r"weights are missing: model\.layers\.1\.self_attn\.k_proj\.weight"):
        open_gguf(path, cache_dir=tmp_path, notify=no_notice)


def test_leftovers_of_killed_processes_go_after_a_day(tiny: Path, tmp_path: Path) -> None:
    old, fresh = tmp_path / "gguf" / ".making-old", tmp_path / "gguf" / ".making-fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
    os.utime(old, (1.0, 1.0))
    open_gguf(tiny, cache_dir=tmp_path, notify=no_notice)
    assert not old.exists() and fresh.exists()


def test_a_start_reads_an_unchanged_file_whole_only_once(
    tiny: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cached / "model.gguf"
    shutil.copy(tiny, file)
    reads: list[Path] = []
    now_ns = time.time_ns
    monkeypatch.setattr(digest, "WHOLE_BYTES", 0)
    monkeypatch.setattr(digest, "whole_digest", lambda path: (reads.append(path), whole_digest(path))[1])
    monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 10 * digest.SETTLED_NS)
    monkeypatch.setattr(cache, "convert", no_conversion)
    found = [open_gguf(file, cache_dir=cached, notify=no_notice) for _ in range(3)]
    assert reads == [file] and found[0] == found[1] == found[2]
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(AssertionError, match="converted again"):
        open_gguf(file, cache_dir=cached, notify=no_notice)
    assert reads == [file, file]


def test_key_follows_the_bytes(tiny: Path, tmp_path: Path) -> None:
    same = tmp_path / "renamed.gguf"
    shutil.copy(tiny, same)
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    assert cache_key(same, tmp_path) == cache_key(tiny, tmp_path) != cache_key(other, tmp_path)


def test_unknown_architecture_names_the_list(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "odd.gguf", architecture="oddity")
    with pytest.raises(ModelError, match=r"'oddity' is not one .*: .*llama, .*qwen3, ") as error:
        open_gguf(path, cache_dir=tmp_path, notify=no_notice)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a GGUF file"),
        (b"hello, I am text", "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"GGUF\x03\x00\x00\x00" + bytes(8) + b"\x05", "cut or broken"),
        (b"GGUF\x09\x00\x00\x00" + bytes(16), "GGUF version 9"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words) as error:
        open_gguf(path, cache_dir=tmp_path, notify=no_notice)
    assert "\n" not in str(error.value) and "broken.gguf" in str(error.value)


def test_file_cut_in_its_weights_is_an_error(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny.read_bytes()[:-4096])
    with pytest.raises(ModelError, match="cannot convert") as error:
        open_gguf(path, cache_dir=tmp_path, notify=no_notice)
    assert "\n" not in str(error.value)
