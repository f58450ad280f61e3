"""From names to the parts of an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..attention import make_backend
from ..cost.identity import Identity
from ..draft.base import Drafter
from ..draft.dflash import load_drafter
from ..draft.suffix import SuffixDrafter
from ..draft.suffix import warm_up as warm_up_suffix
from ..draft.union import UnionDrafter
from ..errors import UsageError
from ..models.base import TargetModel
from ..models.chat import ChatSettings
from ..models.loading import LoadedTarget, check_settings, load_target
from ..models.source import ModelSource, fetch_folder, on_this_machine, resolve_model
from ..models.text import TextCodec
from ..models.threads import choose_threads
from .identity import identity_of

SUFFIX = "suffix"
"""The drafter that needs no training."""
BUNDLED = "bundled"
"""The drafter that comes with the model."""


class Parts(NamedTuple):
    """What `Engine.load` puts together."""

    target: TargetModel
    drafter: Drafter | None
    codec: TextCodec
    identity: Identity
    """Whose costs a profile of this engine holds."""
    temperature: float = 0.0
    """Of requests that name none."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Folder for converted models and measured costs.

    $DRAFTWOOD_CACHE, else $XDG_CACHE_HOME/draftwood, else ~/.cache/draftwood.
    """
    if own := environment.get("DRAFTWOOD_CACHE"):
        return Path(own)
    shared = environment.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "draftwood"


def default_cache_dir() -> Path:
    """The cache folder of this process."""
    return cache_folder(os.environ)


def use_threads(asked: int | None, notify: Callable[[str], None]) -> int:
    """Set the threads of this process, see `choose_threads`, and return their number."""
    threads = choose_threads(asked, notify, os.environ)
    torch.set_num_threads(threads)
    return threads


def drafter_folders(drafter: str | None, source: ModelSource) -> list[Path | None]:
    """What a drafter's name stands for, part by part: a checkpoint folder, or None for `suffix`.

    Without a name: the bundled one, if there is one. A part of the name is `suffix`, `bundled`, a folder or a hub id.
    Raises UsageError or ModelError.
    """
    if drafter is None:
        return [] if source.drafter is None else [source.drafter]
    names = [drafter] if Path(drafter).expanduser().is_dir() else drafter.split("+")
    if len(set(names)) < len(names) or not all(names):
        raise UsageError(f"drafter {drafter!r}: expected different parts joined by +")
    folders: list[Path | None] = []
    for name in names:
        if name == BUNDLED and source.drafter is None:
            raise UsageError(f"drafter {drafter!r}: no drafter comes with model {source.name!r}")
        if name == SUFFIX:
            folders.append(None)
        else:
            bundled = source.drafter if name == BUNDLED else None
            folders.append(bundled or fetch_folder(resolve_model(name), "drafter"))
    return folders


def load_parts(
    model: str,
    drafter: str | None,
    *,
    dtype: str,
    device: str,
    attention: str,
    cache_dir: Path,
    notify: Callable[[str], None],
    generation_config: str | None = None,
    chat: ChatSettings | None = None,
) -> Parts:
    """Load target, codec and drafter (named or bundled). See `Engine.load`.

    What can be refused without a model is refused before anything is looked up.
    """
    check_settings(dtype, device)
    backend = make_backend(attention)
    source = resolve_model(model)
    folders = drafter_folders(drafter, source)
    source = on_this_machine(source)
    loaded = load_target(
        source,
        dtype=dtype,
        device=device,
        backend=backend,
        cache_dir=cache_dir,
        notify=notify,
        generation_config=generation_config,
        chat=chat,
    )
    found: list[Drafter] = [_load_one(folder, loaded, attention, notify) for folder in folders]
    joined = UnionDrafter(found) if len(found) > 1 else (found[0] if found else None)
    identity = identity_of(source, folders, loaded.target.spec, attention=attention)
    return Parts(loaded.target, joined, loaded.codec, identity, loaded.temperature)


def _load_one(folder: Path | None, loaded: LoadedTarget, attention: str, notify: Callable[[str], None]) -> Drafter:
    if folder is None:
        warm_up_suffix()
        return SuffixDrafter()
    spec = loaded.target.spec
    return load_drafter(
        folder,
        loaded.target,
        dtype=spec.dtype,
        device=spec.device,
        notify=notify,
        tokenizer_len=len(loaded.codec.tokenizer),
        backend=make_backend(attention),
    )
