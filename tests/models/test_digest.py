"""Digests of model files: what changes them, and how much is read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from draftwood.models import digest
from draftwood.models.digest import BLOCK, folder_digest, remembered_digest, sample, sampled_digest, whole_digest


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file counts as large."""
    monkeypatch.setattr(digest, "WHOLE_BYTES", 0)


def checkpoint(folder: Path, weights: dict[str, torch.Tensor], config: str = "{}") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    save_file(weights, folder / "model.safetensors")
    return folder


def weights() -> dict[str, torch.Tensor]:
    """Two large tensors around a small one."""
    torch.manual_seed(0)
    return {"a": torch.randn(300, 200), "norm": torch.randn(200), "z": torch.randn(200, 300)}


def test_whole_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 10_000)
    assert whole_digest(file) == sampled_digest(file) == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["a", "norm", "z"])
@pytest.mark.parametrize("value", [0, 17, -1])
def test_one_value_of_a_drafter_changes_its_digest(tmp_path: Path, name: str, value: int) -> None:
    base = folder_digest(checkpoint(tmp_path / "d", weights()), whole=True)
    changed = weights()
    flat = changed[name].view(-1)
    flat[value] = torch.nextafter(flat[value], torch.tensor(9.0))
    assert folder_digest(checkpoint(tmp_path / "d", changed), whole=True) != base
    assert folder_digest(checkpoint(tmp_path / "d", weights()), whole=True) == base


@pytest.mark.usefixtures("sampling")
class TestSample:
    @pytest.mark.parametrize("name", ["a", "norm", "z"])
    @pytest.mark.parametrize("part", ["first", "middle", "last", "all"])
    def test_a_trained_tensor_changes_it(self, tmp_path: Path, name: str, part: str) -> None:
        base = folder_digest(checkpoint(tmp_path / "t", weights()), whole=False)
        changed = weights()
        flat = changed[name].view(-1)
        few = {"first": slice(3), "middle": slice(len(flat) // 2 - 1, len(flat) // 2 + 2), "last": slice(-3, None)}
        flat[few.get(part, slice(None))] += 1e-3
        assert folder_digest(checkpoint(tmp_path / "t", changed), whole=False) != base
        assert folder_digest(checkpoint(tmp_path / "t", weights()), whole=False) == base

    def test_config_header_and_size_change_it(self, tmp_path: Path) -> None:
        base = folder_digest(checkpoint(tmp_path / "t", weights()), whole=False)
        assert folder_digest(checkpoint(tmp_path / "t", weights(), "[]"), whole=False) != base
        halved = {name: tensor.bfloat16() for name, tensor in weights().items()}
        assert folder_digest(checkpoint(tmp_path / "t", halved), whole=False) != base
        renamed = {name.replace("a", "b"): tensor for name, tensor in weights().items()}
        assert folder_digest(checkpoint(tmp_path / "t", renamed), whole=False) != base

    @pytest.mark.parametrize("at", [0, 5_000, 1 << 21, -1])
    def test_other_files_are_sampled_at_even_distances(self, tmp_path: Path, at: int) -> None:
        file = tmp_path / "model.gguf"
        data = bytearray(os.urandom(1 << 23))  # 2048 blocks of 4096 bytes are all of it
        file.write_bytes(data)
        base = sampled_digest(file)
        data[at] ^= 1
        file.write_bytes(data)
        assert sampled_digest(file) != base
        file.write_bytes(data[:-1])
        assert sampled_digest(file) != base

    def test_a_header_that_cannot_be_read_is_no_error(self, tmp_path: Path) -> None:
        file = tmp_path / "odd.safetensors"
        file.write_bytes(b"\xff" * 9000)
        assert sampled_digest(file)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_little_is_read_of_a_large_file(tmp_path: Path, suffix: str) -> None:
    """100 GB of holes: the runs that are read add up to less than 20 MB, and reach both ends."""
    file = tmp_path / f"large{suffix}"
    size, tensors = 100 << 30, 500
    each = size // tensors
    header = {f"t{at}": {"dtype": "U8", "data_offsets": [at * each, (at + 1) * each]} for at in range(tensors)}
    text = json.dumps(header).encode()
    with file.open("wb") as data:
        data.write(len(text).to_bytes(8, "little") + text)
        data.truncate(8 + len(text) + tensors * each)
    total = file.stat().st_size
    with file.open("rb") as data:
        spans = list(sample(file, data))
    assert sum(span.length for span in spans) < 20e6
    assert spans[0].start == 0 and any(span.start == total - BLOCK for span in spans)
    assert all(span.start + span.length <= total for span in spans)
    assert sampled_digest(file) == sampled_digest(file)


@pytest.mark.usefixtures("sampling")
class TestRemembered:
    @pytest.fixture
    def reads(self, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
        """Files that were read whole."""
        seen: list[Path] = []
        monkeypatch.setattr(digest, "whole_digest", lambda file: (seen.append(file), whole_digest(file))[1])
        return seen

    @pytest.fixture
    def file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A file that was written long ago, as far as its digest is concerned."""
        path = tmp_path / "model.gguf"
        path.write_bytes(os.urandom(1 << 24))
        now_ns = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + 10 * digest.SETTLED_NS)
        return path

    def test_is_taken_once(self, file: Path, tmp_path: Path, reads: list[Path]) -> None:
        expected = hashlib.sha256(file.read_bytes()).hexdigest()
        assert [remembered_digest(file, tmp_path / "memory") for _ in range(3)] == [expected] * 3
        assert reads == [file]

    def test_an_edit_with_its_time_set_back_is_seen(self, file: Path, tmp_path: Path, reads: list[Path]) -> None:
        before, first = file.stat(), remembered_digest(file, tmp_path / "memory")
        with file.open("r+b") as data:
            data.seek((1 << 23) + 5_000)  # between two blocks of the sample
            byte = data.read(1)
            data.seek(-1, os.SEEK_CUR)
            data.write(bytes([byte[0] ^ 1]))
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert file.stat().st_mtime_ns == before.st_mtime_ns and file.stat().st_size == before.st_size
        second = remembered_digest(file, tmp_path / "memory")
        assert second != first and second == hashlib.sha256(file.read_bytes()).hexdigest()
        assert reads == [file, file]

    def test_another_file_in_its_place_is_seen(self, file: Path, tmp_path: Path, reads: list[Path]) -> None:
        first = remembered_digest(file, tmp_path / "memory")
        other = tmp_path / "other"
        other.write_bytes(os.urandom(1 << 24))
        os.replace(other, file)
        assert remembered_digest(file, tmp_path / "memory") != first and len(reads) == 2

    def test_a_file_that_was_just_written_is_not_remembered(self, tmp_path: Path, reads: list[Path]) -> None:
        path = tmp_path / "fresh.gguf"
        path.write_bytes(os.urandom(1 << 20))
        assert remembered_digest(path, tmp_path / "memory") == remembered_digest(path, tmp_path / "memory")
        assert reads == [path, path]

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"state": 1}', '{"digest": "0"}'])
    def test_a_broken_memory_is_made_again(self, file: Path, tmp_path: Path, reads: list[Path], text: str) -> None:
        expected = remembered_digest(file, tmp_path / "memory")
        (note,) = (tmp_path / "memory").iterdir()
        note.write_text(text)
        assert [remembered_digest(file, tmp_path / "memory") for _ in range(2)] == [expected] * 2
        assert reads == [file, file]

    def test_no_memory_is_no_error(self, file: Path, tmp_path: Path, reads: list[Path]) -> None:
        (tmp_path / "memory").write_text("a file where the folder should be")
        assert remembered_digest(file, tmp_path / "memory") == remembered_digest(file, tmp_path / "memory")
        assert reads == [file, file]
