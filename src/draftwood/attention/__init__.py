"""Attention over ragged packs, and its registration with transformers' AttentionInterface.

The plan of a forward travels as the keyword `plan` of the model call. No mask function is registered, so models pass
no mask at all.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import UnsupportedError
from .base import AttendOptions, AttentionBackend, Plan
from .sdpa import SdpaBackend

__all__ = [
    "ATTENTION_NAME",
    "BACKENDS",
    "AttendOptions",
    "AttentionBackend",
    "Plan",
    "SdpaBackend",
    "attention_forward",
    "ensure_registered",
    "make_backend",
]

ATTENTION_NAME = "draftwood"
BACKENDS: dict[str, type[AttentionBackend]] = {SdpaBackend.name: SdpaBackend}

# Keywords of a transformers call that ride along to the attention function and do not change its result.
_HARMLESS = frozenset({"position_ids", "use_cache", "output_hidden_states", "output_router_logits", "is_causal"})


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: Plan | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **unknown: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers: query (1, H, T, E) -> (1, T, H, E_v), None.

    Raises UnsupportedError for a mask, dropout, a missing plan, or a keyword that it does not know and is not None.
    """
    layer: int = module.layer_idx  # type: ignore[assignment]
    for name, given in unknown.items():
        if given is not None and name not in _HARMLESS:
            raise UnsupportedError(f"attention of layer {layer} asks for {name!r}, which this backend does not know")
    if plan is None or attention_mask is not None or dropout:
        raise UnsupportedError(f"attention of layer {layer} needs a plan, no mask and no dropout")
    options = AttendOptions(scaling or query.shape[-1] ** -0.5, sliding_window, softcap, s_aux)
    return plan.attend(layer, query[0], key[0], value[0], options)[None], None


def ensure_registered() -> None:
    """Make `draftwood` known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def make_backend(name: str) -> AttentionBackend:
    """The backend of that name; UnsupportedError lists the names."""
    if name not in BACKENDS:
        raise UnsupportedError(f"attention {name!r}: expected one of {', '.join(BACKENDS)}")
    return BACKENDS[name]()
