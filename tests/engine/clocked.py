"""A clock that only moves when a model works, and a tiny pair that moves it: planted costs on the real stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from decoding import random_drafter
from families import family

from draftwood.batch import Batch
from draftwood.core import Forest
from draftwood.draft.base import Committed, DraftRequest
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
    cost: Callable[[Batch], float]
    batches: list[Batch] = field(default_factory=list)

    @property
    def spec(self) -> Any:
        return self.inner.spec

    def forward(self, batch: Batch, pool: Any, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        self.clock.now += self.cost(batch)
        self.batches.append(batch)
        logits: torch.Tensor = self.inner.forward(batch, pool, tap_layers, taps)
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
        self.kv_row_bytes = self.inner.kv_row_bytes
        self.target_layer_ids = self.inner.target_layer_ids

    def allocate(self, kv_rows: int, requests: int) -> None:
        self.inner.allocate(kv_rows, requests)

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        self.inner.open(request, token_ids, rows)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        self.clock.now += self.cost(wanted)
        self.asked.append(tuple(wanted))
        forest: Forest = self.inner.propose(wanted)
        return forest

    def commit(self, committed: Committed) -> None:
        self.committed += zip(committed.requests, np.diff(committed.offsets).tolist(), strict=True)
        self.inner.commit(committed)

    def close(self, request: int) -> None:
        self.inner.close(request)


@dataclass
class Pair:
    """An engine over the clocked pair."""

    engine: Engine
    clock: Clock
    target: ClockedTarget
    drafter: ClockedDrafter


def verify_cost(batch: Batch) -> float:
    """10 ms and 0.5 ms a row, 1 ms for each further request."""
    return 0.010 + 0.0005 * len(batch.token_ids) + 0.001 * (len(batch.requests) - 1)


def draft_cost(requests: Sequence[DraftRequest]) -> float:
    """3 ms and 1 ms a request."""
    return 0.003 + 0.001 * len(requests)


def clocked_pair(
    folder: Path,
    *,
    cost: Callable[[Batch], float] = verify_cost,
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
        encode_own=lambda prompt: [ord(character) % 63 for character in prompt],
        decode=lambda ids: "".join(chr(97 + token % 26) for token in ids),
        end_ids=(),
        raw_end_ids=(),
    )
