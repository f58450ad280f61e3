"""From names to the parts of an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..attention import make_backend
from ..draft.base import Drafter
from ..draft.dflash import load_drafter
from ..target.base import TargetModel
from ..target.loading import load_target
from ..target.source import fetch_folder, resolve_model
from ..target.text import TextCodec


class Parts(NamedTuple):
    """What `Engine.load` puts together."""

    target: TargetModel
    drafter: Drafter | None
    codec: TextCodec


def load_parts(
    model: str,
    drafter: str | None,
    *,
    dtype: str,
    device: str,
    attention: str,
    cache_dir: Path | None,
    notify: Callable[[str], None] | None,
) -> Parts:
    """Load target, codec and drafter (named or bundled). See `Engine.load`."""
    tell = notify or (lambda message: None)
    source = resolve_model(model)
    folder = source.drafter
    if drafter is not None:
        folder = fetch_folder(resolve_model(drafter), "drafter")
    loaded = load_target(
        source,
        dtype=dtype,
        device=device,
        backend=make_backend(attention),
        cache_dir=cache_dir or Path.home() / ".cache" / "draftwood",
        notify=tell,
    )
    if folder is None:
        return Parts(loaded.target, None, loaded.codec)
    spec = loaded.target.spec
    pair = load_drafter(
        folder,
        loaded.target,
        dtype=spec.dtype,
        device=spec.device,
        notify=tell,
        tokenizer_len=len(loaded.codec.tokenizer),
    )
    return Parts(loaded.target, pair, loaded.codec)
