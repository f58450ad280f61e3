"""A target that says what a test wrote down, for tests of stops, limits and streaming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from stepping import submit
from stub_drafter import KnowingDrafter

from draftwood.batch import Batch
from draftwood.cache import KVPool, LayerSpec
from draftwood.draft.base import DraftRequest
from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.models.base import TargetSpec
from draftwood.models.text import TextCodec
from draftwood.policy import make_policy

PROMPT = (1, 2, 3)


@dataclass
class ScriptedTarget:
    """The row at position p decides `scripts[request][p + 1]`, whatever its own token is."""

    vocab: int
    scripts: dict[int, list[int]] = field(default_factory=dict)
    context_limit: int = 4096
    calls: int = 0
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        layers = (LayerSpec(1, 1, 1),)
        cpu = torch.device("cpu")
        self.spec = TargetSpec("scripted", 1, 1, self.vocab, self.vocab, self.context_limit, layers, torch.float32, cpu)

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        self.calls += 1
        self.batches.append(batch)
        following = np.zeros(len(batch.pos), np.int64)
        for index, request in enumerate(batch.requests):
            rows, script = batch.rows(index), self.scripts[request]
            following[rows] = [script[pos + 1] if pos + 1 < len(script) else 0 for pos in batch.pos[rows]]
        if taps is not None:
            taps.zero_()
        return torch.nn.functional.one_hot(torch.from_numpy(following[batch.logit_rows]), self.vocab).float()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(token_ids), 1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), self.vocab)


@dataclass
class Play:
    """An engine whose target plays scripts and whose drafter knows them."""

    vocab: int = 64
    codec: TextCodec | None = None
    block_size: int = 8
    sure: bool = False
    """Whether the drafter always puts the true token first."""
    context_limit: int = 4096
    max_kv_rows: int | None = None

    def __post_init__(self) -> None:
        self.target = ScriptedTarget(self.vocab, context_limit=self.context_limit)
        kind = SureDrafter if self.sure else KnowingDrafter
        self.drafter = kind(self.vocab, block_size=self.block_size, target_layer_ids=(0,))
        self.engine = Engine(
            self.target, self.drafter, codec=self.codec, config=EngineConfig(max_kv_rows=self.max_kv_rows)
        )

    def submit(
        self, text: Sequence[int], policy: str, prompt: Sequence[int] = PROMPT, dice: int = 0, **options: object
    ) -> Request:
        """Queue a request whose script is `prompt` followed by `text`; `options` of the policy and the request."""
        budget = {key: options.pop(key) for key in ("budget", "candidates") if key in options}
        request = submit(self.engine, prompt, make_policy(policy, **budget), SamplingParams(**options))  # type: ignore[arg-type]
        self.expect(request.id, text, prompt, dice)
        return request

    def expect(self, request: int, text: Sequence[int], prompt: Sequence[int] = PROMPT, dice: int = 0) -> None:
        self.target.scripts[request] = [*prompt, *text]
        self.drafter.know(request, self.target.scripts[request], dice)

    def finish(self) -> None:
        while self.engine.loop.step():
            self.engine.check_integrity()
        assert self.engine.state.pool.requests == () and self.drafter.taps == {}


class SureDrafter(KnowingDrafter):
    """Always right."""

    def _row(self, request: DraftRequest, depth: int) -> np.ndarray:
        text = self.texts[request.request]
        pos = request.context_len + depth
        true = text[pos] if pos < len(text) else 0
        others = np.setdiff1d(np.arange(self.candidates + 1), [true])[: self.candidates - 1]
        return np.array([true, *others])
