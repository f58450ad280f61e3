"""The contract of attention backends: `plan` once per forward, `attend` once per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ..batch import Batch, BatchTensors
from ..cache import KVPool


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
    """One forward of a batch, resolved."""

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttendOptions
    ) -> torch.Tensor:
        """q (H, T, E), k (G, T, E), v (G, T, E_v) -> (T, H, E_v); stages k and v in the pool."""
        ...


class AttentionBackend(Protocol):
    """Makes plans."""

    name: str

    def plan(self, batch: Batch, tensors: BatchTensors, pool: KVPool, dtype: torch.dtype) -> Plan:
        """Masks, extents and offsets of a batch, on the device of `tensors`; `dtype` is that of the queries."""
        ...
