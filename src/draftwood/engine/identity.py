"""The identity of a cost profile here and now: machine, settings, versions, and digests of the two models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from .. import __version__
from ..cost.identity import Identity
from ..models.base import TargetSpec
from ..models.gguf_header import read_header
from ..models.machine import processor_name
from ..models.source import ModelSource, fetch_folder

_LENGTH_BYTES = 8


def identity_of(source: ModelSource, drafters: Sequence[Path | None], spec: TargetSpec, *, attention: str) -> Identity:
    """Describe everything that changes what a round of this pair costs in this process.

    `drafters` are the folders of the drafter's parts, None for the one that needs no training.
    """
    return Identity(
        device=device_name(spec.device),
        threads=torch.get_num_threads(),
        dtype=str(spec.dtype).removeprefix("torch."),
        attention=attention,
        model=model_digest(source),
        drafter="+".join("suffix" if folder is None else folder_digest(folder) for folder in drafters),
        versions={
            "draftwood": __version__,
            "torch": torch.__version__,
            "transformers": version("transformers"),
        },
    )


def identity_key(identity: Identity) -> str:
    """A file name's worth of it: equal identities give equal keys."""
    text = json.dumps(identity.to_json(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def device_name(device: torch.device) -> str:
    """Name of the accelerator, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def model_digest(source: ModelSource) -> str:
    """Digest of a target: of its folder, or of a GGUF file's size and metadata."""
    if source.kind == "gguf" and source.path is not None:
        header = json.dumps(read_header(source.path), sort_keys=True)
        return _digest([f"{source.path.stat().st_size} {header}".encode()])
    return folder_digest(fetch_folder(source))


def folder_digest(folder: Path) -> str:
    """Digest of a checkpoint folder: its config, and size and header of each safetensors file; weights are not read."""
    parts = [(folder / "config.json").read_bytes()]
    for file in sorted(folder.glob("*.safetensors")):
        parts += [f"{file.name} {file.stat().st_size}".encode(), _header(file)]
    return _digest(parts)


def _header(file: Path) -> bytes:
    """The JSON header of a safetensors file, as it is."""
    with file.open("rb") as data:
        length = int.from_bytes(data.read(_LENGTH_BYTES), "little")
        return data.read(length)


def _digest(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode() + part)
    return digest.hexdigest()[:32]
