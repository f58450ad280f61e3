"""What the stages of a step work on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from ..cache import PAGE_ROWS, KVPool, row_bytes
from ..core import MAX_NODES
from ..draft.base import Drafter
from ..errors import UsageError
from ..memory import budget_bytes, parse
from ..models.base import TargetModel
from ..policy import Policy, PolicyState
from ..policy.batch import Sharing
from .costs import CostModel, Load
from .requests import Request


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine that do not change while it runs."""

    prefill_chunk: int = 512
    """Most prompt rows in one step."""
    max_requests: int = 64
    """Most requests that run at once; others wait in order of arrival."""
    kv_memory: str | float | None = None
    """Memory of the KV pools: a share of what is free (0.5, "50%") or bytes ("2GiB"); None: half of what is free, on a
    device 85 %. On a CPU it is address space until rows are written."""
    max_kv_rows: int | None = None
    """Rows of the KV pool, in place of `kv_memory`."""
    row_tiers: tuple[int, ...] = ()
    """Sizes to which the rows of a forward are padded, increasing (captured graphs need them); (): no padding."""
    sharing: Sharing = field(default_factory=Sharing)
    """How cost-aware requests divide a round."""
    shared_policy: Policy | None = None
    """The policy of shared allocations; None: that of the first request that shares."""

    def __post_init__(self) -> None:
        for name in ("prefill_chunk", "max_requests", "max_kv_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: expected at least 1")
        if self.kv_memory is not None:
            parse(self.kv_memory)
        if list(self.row_tiers) != sorted({*self.row_tiers}) or any(tier < 1 for tier in self.row_tiers):
            raise UsageError(f"row_tiers {self.row_tiers}: expected increasing numbers of rows")


@dataclass(slots=True)
class StepFacts:
    """What one step was, for those who learn from its seconds."""

    rows: int
    """T of the batch."""
    drafted: int
    """Requests of the drafter's pass."""
    recorded: list[Request]
    """Requests whose round was recorded in this step."""
    complete: bool
    """Every request had a round and none was set back."""


@dataclass(slots=True)
class EngineState:
    """Models, pools and requests of one engine."""

    target: TargetModel
    drafter: Drafter | None
    pool: KVPool
    config: EngineConfig
    inbox: deque[Request] = field(default_factory=deque)
    """Submitted by any thread; the next step moves them to `waiting`."""
    waiting: list[Request] = field(default_factory=list)
    """In order of arrival."""
    running: list[Request] = field(default_factory=list)
    """In order of arrival."""
    policy_shared: dict[Policy, Any] = field(default_factory=dict)
    """The engine half of each policy's state."""
    costs: CostModel | None = None
    """None until a profile is given or measured; policies that need costs cannot run before."""
    load: Load | None = None
    """What the current step carries."""
    facts: StepFacts | None = None
    """Of the last step; None before its rounds have been recorded."""
    taps: torch.Tensor | None = None
    """Reused buffer (rows, taps * h)."""

    @property
    def context_limit(self) -> int:
        """Positions that a request can reach: the model's, or what the pool can hold of one request."""
        return min(self.target.spec.context_limit, self.pool.kv_rows)

    @property
    def busy(self) -> bool:
        """True while there is something to step."""
        return bool(self.running or self.waiting or self.inbox)

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


def new_state(target: TargetModel, drafter: Drafter | None, config: EngineConfig) -> EngineState:
    """Set the pools up, the target's and the drafter's. Raises UsageError when there is no memory for them."""
    spec = target.spec
    rows = config.max_kv_rows or _affordable_rows(target, drafter, config)
    pool = KVPool(spec.layers, kv_rows=rows, dtype=spec.dtype, device=spec.device)
    if drafter is not None:
        drafter.allocate(pool.kv_rows, config.max_requests)
    return EngineState(target, drafter, pool, config)


def _affordable_rows(target: TargetModel, drafter: Drafter | None, config: EngineConfig) -> int:
    """Rows that the memory holds in both pools, at most what all requests together can ever use."""
    spec = target.spec
    each = row_bytes(spec.layers, spec.dtype) + (drafter.kv_row_bytes if drafter is not None else 0)
    rows = budget_bytes(config.kv_memory, spec.device) // each
    if rows < 2 * PAGE_ROWS:
        raise UsageError(f"kv_memory {config.kv_memory!r}: room for {rows} rows of {each} bytes, expected at least 32")
    return int(min(rows, config.max_requests * (spec.context_limit + MAX_NODES + 2 * PAGE_ROWS)))
