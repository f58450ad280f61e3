"""The contract of attention backends: `plan` once per forward, `attend` once per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ..cache import KVPool
from ..core import Pack


@dataclass(frozen=True, slots=True)
class AttendOptions:
    """What a layer asks of its attention beyond queries, keys and values."""

    scaling: float
    window: int | None = None
    """A key is visible iff q_pos - k_pos < window."""
    softcap: float | None = None
    """Scores become softcap * tanh(score / softcap)."""
    sinks: torch.Tensor | None = None
    """(H,) logits that take probability and have no value."""

    @property
    def needs_explicit(self) -> bool:
        """True when the fused call of torch cannot do it."""
        return self.softcap is not None or self.sinks is not None


class Plan(Protocol):
    """One packed forward, resolved."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttendOptions
    ) -> torch.Tensor:
        """q (H, T, E), k (G, T, E), v (G, T, E_v) -> (T, H, E_v); stages k and v in the pool."""
        ...


class AttentionBackend(Protocol):
    """Makes plans."""

    name: str

    def plan(self, pack: Pack, pool: KVPool, dtype: torch.dtype, device: torch.device) -> Plan:
        """Masks, extents and offsets of a pack, on the device."""
        ...
