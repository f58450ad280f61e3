"""From names to the parts of an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..attention import make_backend
from ..cost.identity import Identity
from ..draft.base import Drafter
from ..draft.dflash import load_drafter
from ..models.base import TargetModel
from ..models.loading import check_settings, load_target
from ..models.source import fetch_folder, on_this_machine, resolve_model
from ..models.text import TextCodec
from .identity import identity_of


class Parts(NamedTuple):
    """What `Engine.load` puts together."""

    target: TargetModel
    drafter: Drafter | None
    codec: TextCodec
    identity: Identity
    """Whose costs a profile of this engine holds."""


def load_parts(
    model: str,
    drafter: str | None,
    *,
    dtype: str,
    device: str,
    attention: str,
    cache_dir: Path,
    notify: Callable[[str], None],
) -> Parts:
    """Load target, codec and drafter (named or bundled). See `Engine.load`.

    What can be refused without a model is refused before anything is looked up.
    """
    check_settings(dtype, device)
    backend, drafter_backend = make_backend(attention), make_backend(attention)
    source = resolve_model(model)
    folder = source.drafter
    if drafter is not None:
        folder = fetch_folder(resolve_model(drafter), "drafter")
    source = on_this_machine(source)
    loaded = load_target(
        source,
        dtype=dtype,
        device=device,
        backend=backend,
        cache_dir=cache_dir,
        notify=notify,
    )
    spec = loaded.target.spec
    identity = identity_of(source, folder, spec, attention=attention)
    if folder is None:
        return Parts(loaded.target, None, loaded.codec, identity)
    pair = load_drafter(
        folder,
        loaded.target,
        dtype=spec.dtype,
        device=spec.device,
        notify=notify,
        tokenizer_len=len(loaded.codec.tokenizer),
        backend=drafter_backend,
    )
    return Parts(loaded.target, pair, loaded.codec, identity)
