"""GGUF files as checkpoint folders: converted once to float32, kept in the user's cache.

    <cache_dir>/gguf/<key>/    config.json, generation_config.json, tokenizer files, safetensors, draftwood.json

The key is a digest of the file's bytes, remembered in <cache_dir>/digests so that an unchanged file is not read whole
at every start, and of the versions that shape the result. A folder is written under another
name, then renamed, and `draftwood.json`, written last, lists what must be in it: a cache that was cut short by a crash
or a full disk is recognised and made again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..digest import remembered_digest
from ..source import Notify
from .convert import GGUF_EXTRA, convert
from .header import Scalar, read_header

MANIFEST = "draftwood.json"
DIGESTS = "digests"
SCHEMA = 2
END_ID_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
STALE_AFTER_S = 24 * 3600.0

_TEMPORARY = ".making-"


@dataclass(frozen=True, slots=True)
class GgufFolder:
    """A converted file in the cache: load it like any checkpoint folder."""

    folder: Path
    end_ids: tuple[int, ...]
    """End ids that the file's metadata names."""


@dataclass(frozen=True, slots=True)
class GgufInMemory:
    """A converted file that could not be kept."""

    model: Any
    """A transformers causal LM in float32 on the CPU."""
    tokenizer: Any
    end_ids: tuple[int, ...]
    """End ids that the file's metadata names."""


def open_gguf(path: Path, *, cache_dir: Path, notify: Notify) -> GgufFolder | GgufInMemory:
    """The float32 checkpoint of a GGUF file, from the cache or converted now.

    When the cache cannot be written (read-only folder, full disk), `notify` gets one line and the model is handed
    over in memory. Several processes may convert the same file at once; the first to finish wins.
    Raises ModelError in one line for a broken file, an architecture that transformers does not convert, and when the
    `gguf` extra is not installed.
    """
    header = read_header(path)
    check_architecture(path, header)
    end_ids = tuple(int(header[key]) for key in END_ID_KEYS if key in header)
    folder = cache_dir / "gguf" / cache_key(path, cache_dir / DIGESTS)
    if is_complete(folder):
        return GgufFolder(folder, end_ids)
    if folder.exists():
        notify(f"the cached conversion {folder} is incomplete; converting again")
    model, tokenizer = convert(path, notify)
    reason = _store(folder, model, tokenizer)
    if reason is None:
        return GgufFolder(folder, end_ids)
    notify(f"cannot write the cache {cache_dir} ({reason}): going on without it, the next start converts again")
    return GgufInMemory(model, tokenizer, end_ids)


def check_architecture(path: Path, header: dict[str, Scalar]) -> None:
    """Raise ModelError, naming the list, when transformers does not convert this file's architecture."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    architecture = str(header.get("general.architecture", ""))
    known = sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"})
    # llama.cpp writes qwen2moe and gpt-oss where transformers writes qwen2_moe and gpt_oss.
    spellings = {architecture, architecture.replace("-", "_"), architecture.replace("moe", "_moe")}
    if not spellings & set(known):
        raise ModelError(
            f"model {str(path)!r}: GGUF architecture {architecture!r} is not one that transformers converts: "
            f"{', '.join(known)}"
        )


def cache_key(path: Path, memory: Path) -> str:
    """Digest of the file's bytes, the cache's schema and the versions of the packages that unpack it.

    The folder `memory` keeps digests of files for the next time.
    """
    digest = hashlib.sha256(remembered_digest(path, memory).encode())
    try:
        versions = [version(package) for package in ("transformers", "gguf")]
    except PackageNotFoundError as error:
        raise ModelError(f"model {str(path)!r}: reading GGUF needs the extra gguf; run: {GGUF_EXTRA}") from error
    digest.update(json.dumps([SCHEMA, *versions]).encode())
    return digest.hexdigest()[:32]


def is_complete(folder: Path) -> bool:
    """True when the folder's manifest is there and every file it lists has the size and digest it had when written."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"]
        return manifest["schema"] == SCHEMA and all(_mark(folder / name) == mark for name, mark in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _store(folder: Path, model: Any, tokenizer: Any) -> str | None:
    """Write the cache folder in one step; the reason when that is impossible, None when it is there."""
    from safetensors import SafetensorError

    making: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        making = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder.parent))
        model.save_pretrained(making)
        tokenizer.save_pretrained(making)
        manifest = {"schema": SCHEMA, "files": {file.name: _mark(file) for file in _files(making)}}
        (making / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        _move_into_place(making, folder)
    except (OSError, SafetensorError) as error:
        return getattr(error, "strerror", None) or " ".join(str(error).split())
    finally:
        if making is not None:
            shutil.rmtree(making, ignore_errors=True)
    return None


def _move_into_place(making: Path, folder: Path) -> None:
    """Rename `making` to `folder`; a complete folder that another process put there stays, a broken one goes.

    Raises OSError when neither works.
    """
    making.chmod(0o755)  # mkdtemp makes it private, unlike the folders around it
    try:
        making.rename(folder)
    except OSError:
        if is_complete(folder):
            return
        shutil.rmtree(folder)
        making.rename(folder)


def _sweep(parent: Path) -> None:
    """Remove what killed processes left behind, old enough to belong to nobody."""
    for leftover in parent.glob(f"{_TEMPORARY}*"):
        if time.time() - leftover.stat().st_mtime > STALE_AFTER_S:
            shutil.rmtree(leftover, ignore_errors=True)


def _files(folder: Path) -> Iterable[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file())


def _mark(file: Path) -> list[int | str]:
    """Size and a digest: of the whole file, or of a safetensors file's header, which names every tensor and offset."""
    size = file.stat().st_size
    with file.open("rb") as data:
        if file.suffix != ".safetensors":
            return [size, hashlib.sha256(data.read()).hexdigest()]
        length = data.read(8)
        return [size, hashlib.sha256(length + data.read(int.from_bytes(length, "little"))).hexdigest()]
