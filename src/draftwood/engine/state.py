"""What the stages of a step work on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ..cache import KVPool
from ..core import DraftTree
from ..draft.base import Drafter
from ..policy import Policy
from ..target.base import TargetModel
from .request import Request


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine that do not change while it runs."""

    prefill_chunk: int = 512
    """Most prompt rows in one step."""
    max_requests: int = 64
    """Most requests that run at once; others wait in order of arrival."""
    max_kv_rows: int | None = None
    """Most rows of the KV pool; None: as many as needed."""


@dataclass(slots=True)
class EngineState:
    """Models, pools and requests of one engine."""

    target: TargetModel
    drafter: Drafter | None
    pool: KVPool
    config: EngineConfig
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    policy_shared: dict[Policy, object] = field(default_factory=dict)
    """The engine half of each policy's state."""
    taps: torch.Tensor | None = None
    """Reused buffer (rows, taps * h)."""

    @property
    def tap_layers(self) -> tuple[int, ...]:
        """Layers whose output the drafter wants."""
        return tuple(self.drafter.target_layer_ids) if self.drafter is not None else ()

    def tap_buffer(self, rows: int) -> torch.Tensor:
        """The first `rows` rows of the tap buffer, which grows as needed."""
        if self.taps is None or self.taps.shape[0] < rows:
            spec = self.target.spec
            width = len(self.tap_layers) * spec.hidden_size
            self.taps = torch.empty(max(rows, 64), width, dtype=spec.dtype, device=spec.device)
        return self.taps[:rows]


def root_tree(token: int) -> DraftTree:
    """A tree of the root alone."""
    return DraftTree(
        parent=np.full(1, -1, dtype=np.int32),
        token=np.array([token], dtype=np.int64),
        depth=np.zeros(1, dtype=np.int32),
        rank=np.zeros(1, dtype=np.int32),
        logp=np.zeros(1, dtype=np.float64),
    )
