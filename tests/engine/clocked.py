"""A clock that only moves when a model works, and a tiny pair that moves it: planted costs on the real stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from decoding import random_drafter
from families import family

from draftwood.core import DraftBlock, Pack
from draftwood.draft.base import DraftRequest
from draftwood.engine import Engine, EngineConfig


@dataclass
class Clock:
    """Seconds since the start; `tick` of them pass at every reading."""

    now: float = 0.0
    tick: float = 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@dataclass
class ClockedTarget:
    """A target whose forward takes `cost(pack)` seconds and is remembered."""

    inner: Any
    clock: Clock
    cost: Callable[[Pack], float]
    packs: list[Pack] = field(default_factory=list)

    @property
    def spec(self) -> Any:
        return self.inner.spec

    def forward(self, pack: Pack, pool: Any, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        self.clock.now += self.cost(pack)
        self.packs.append(pack)
        logits: torch.Tensor = self.inner.forward(pack, pool, tap_layers, taps)
        return logits

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.inner.embed(token_ids)
        return embedded

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner.head(hidden)
        return logits


@dataclass
class ClockedDrafter:
    """A drafter whose pass takes `cost(requests)` seconds; its committed rows are remembered by request."""

    inner: Any
    clock: Clock
    cost: Callable[[Sequence[DraftRequest]], float]
    asked: list[Sequence[DraftRequest]] = field(default_factory=list)
    committed: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.block_size = self.inner.block_size
        self.depth = self.inner.depth
        self.target_layer_ids = self.inner.target_layer_ids

    def draft(self, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
        self.clock.now += self.cost(requests)
        self.asked.append(tuple(requests))
        block: DraftBlock = self.inner.draft(requests, candidates)
        return block

    def commit(self, request: int, taps: torch.Tensor) -> None:
        self.committed.append((request, len(taps)))
        self.inner.commit(request, taps)

    def release(self, request: int) -> None:
        self.inner.release(request)


@dataclass
class Pair:
    """An engine over the clocked pair."""

    engine: Engine
    clock: Clock
    target: ClockedTarget
    drafter: ClockedDrafter


def verify_cost(pack: Pack) -> float:
    """10 ms and 0.5 ms a row, 1 ms for each further request."""
    return 0.010 + 0.0005 * len(pack.token_ids) + 0.001 * (len(pack.segments) - 1)


def draft_cost(requests: Sequence[DraftRequest]) -> float:
    """3 ms and 1 ms a request."""
    return 0.003 + 0.001 * len(requests)


def clocked_pair(
    folder: Path,
    *,
    cost: Callable[[Pack], float] = verify_cost,
    prefill_chunk: int = 16,
    tick: float = 0.0,
    codec: bool = False,
    drafter: bool = True,
) -> Pair:
    """A tiny random llama and drafter; with `codec` the engine can encode texts."""
    made = family("llama", "float32")
    clock = Clock(tick=tick)
    target = ClockedTarget(made.target, clock, cost)
    clocked = ClockedDrafter(random_drafter(folder / "drafter", made), clock, draft_cost)
    engine = Engine(
        target,  # type: ignore[arg-type]
        clocked if drafter else None,
        config=EngineConfig(prefill_chunk=prefill_chunk),
        codec=toy_codec() if codec else None,  # type: ignore[arg-type]
    )
    return Pair(engine, clock, target, clocked)


def toy_codec() -> Any:
    """Characters as ids of a vocabulary of 63 (the last id is the drafter's mask)."""
    return SimpleNamespace(
        tokenizer=SimpleNamespace(chat_template=None),
        encode=lambda prompt, raw=False, system=None: [ord(character) % 63 for character in prompt],
        decode=lambda ids: "".join(chr(97 + token % 26) for token in ids),
        end_ids=(),
        raw_end_ids=(),
    )
