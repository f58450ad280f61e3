"""What the stages of a step work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..cache import KVPool
from ..draft.base import Drafter
from ..errors import UsageError
from ..models.base import TargetModel
from ..policy import Policy, PolicyState
from ..policy.batch import Sharing
from .costs import CostModel, Load
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
    sharing: Sharing = field(default_factory=Sharing)
    """How cost-aware requests divide a round."""
    shared_policy: Policy | None = None
    """The policy of shared allocations; None: that of the first request that shares."""

    def __post_init__(self) -> None:
        for name in ("prefill_chunk", "max_requests", "max_kv_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: expected at least 1")


@dataclass(slots=True)
class EngineState:
    """Models, pools and requests of one engine."""

    target: TargetModel
    drafter: Drafter | None
    pool: KVPool
    config: EngineConfig
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    policy_shared: dict[Policy, Any] = field(default_factory=dict)
    """The engine half of each policy's state."""
    costs: CostModel | None = None
    """None until a profile is given or measured; policies that need costs cannot run before."""
    load: Load | None = None
    """What the current step carries."""
    taps: torch.Tensor | None = None
    """Reused buffer (rows, taps * h)."""

    def policy_state(self, request: Request) -> PolicyState:
        """Both halves of what the request's policy remembers."""
        return PolicyState(request.policy_memory, self.policy_shared.get(request.policy))

    def remember(self, request: Request, memory: PolicyState) -> None:
        """Store both halves."""
        request.policy_memory = memory.request
        if memory.engine is not None:
            self.policy_shared[request.policy] = memory.engine

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
