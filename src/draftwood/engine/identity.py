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
from ..models.digest import folder_digest, sampled_digest
from ..models.machine import processor_name
from ..models.source import ModelSource, fetch_folder


def identity_of(source: ModelSource, drafters: Sequence[Path | None], spec: TargetSpec, *, attention: str) -> Identity:
    """Describe everything that changes what a round of this pair costs in this process.

    `drafters` are the folders of the drafter's parts, None for the one that needs no training.
    A profile also holds mean gains, which are those of the very weights: drafters are small and every byte counts; of
    targets a sample does (see `models.digest`).
    """
    return Identity(
        device=device_name(spec.device),
        threads=torch.get_num_threads(),
        dtype=str(spec.dtype).removeprefix("torch."),
        attention=attention,
        model=model_digest(source),
        drafter="+".join("suffix" if folder is None else folder_digest(folder, whole=True) for folder in drafters),
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
    """Digest of a target: of its folder, or of a GGUF file; large files by a sample."""
    if source.kind == "gguf" and source.path is not None:
        return sampled_digest(source.path)[:32]
    return folder_digest(fetch_folder(source), whole=False)
