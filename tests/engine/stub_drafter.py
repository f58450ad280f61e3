"""A drafter that knows the text and is told how often to be right, and a policy that writes down what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from draftwood.core import DraftBlock, Forest
from draftwood.draft.base import Committed, DraftRequest
from draftwood.policy import Policy, PolicyState, RoundCosts, RoundOutcome
from draftwood.tree.grow import GrowLimits, grow_forest

TOP_SCORE = 0.6


@dataclass
class KnowingDrafter:
    """Puts the true token of each depth at rank 0 with 0.7, at another rank with 0.2, nowhere with 0.1.

    Scores are 0.6 for rank 0 and equal behind it. Where the true token goes is a function of (`dice`, request,
    position of the root, depth), so a request's luck does not depend on its neighbours. It keeps the taps it was given
    and refuses a round whose context has a hole.
    """

    vocab: int
    block_size: int = 8
    candidates: int = 16
    target_layer_ids: tuple[int, ...] = (0, 1)
    texts: dict[int, list[int]] = field(default_factory=dict)
    """Prompt and continuation by request id."""
    dice: dict[int, int] = field(default_factory=dict)
    """What a request's luck is drawn from, by request id."""
    taps: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """Committed tokens by request id, as they came with the taps."""
    closed: list[int] = field(default_factory=list)
    asked: list[DraftRequest] = field(default_factory=list)

    kv_row_bytes: int = 0

    def know(self, request: int, text: Sequence[int], dice: int) -> None:
        self.texts[request] = list(text)
        self.dice[request] = dice

    def allocate(self, kv_rows: int, requests: int) -> None:
        assert not self.taps, "requests are open"

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        assert request not in self.taps, "open already"
        assert self.texts[request][: len(token_ids)] == token_ids.tolist() and rows >= len(token_ids)
        self.taps[request], self.tokens[request] = [], []

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        block = self.score(wanted, max(item.candidates for item in wanted))
        return grow_forest(block, [limits_of(item) for item in wanted])

    def score(self, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
        depths = np.array([request.block_size - 1 for request in requests], dtype=np.int64)
        kept = min(candidates, self.candidates)
        shape = (len(requests), int(depths.max()), 1, kept)
        block = DraftBlock(np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64), depths)
        for index, request in enumerate(requests):
            self._check(request)
            for depth in range(int(depths[index])):
                ids = self._row(request, depth + 1)
                block.ids[index, depth, 0] = ids[:kept]
                behind = (1.0 - TOP_SCORE) / (self.candidates - 1)
                block.logp[index, depth, 0] = np.log([TOP_SCORE] + [behind] * (kept - 1))
        return block

    def commit(self, committed: Committed) -> None:
        assert committed.taps is not None and len(committed.taps) == len(committed.token_ids) == committed.offsets[-1]
        for at, request in enumerate(committed.requests):
            rows = slice(int(committed.offsets[at]), int(committed.offsets[at + 1]))
            before = self.rows(request)
            tokens = committed.token_ids[rows].tolist()
            known = self.texts[request][before : before + len(tokens)]
            assert tokens[: len(known)] == known, "committed tokens are not the text's"
            self.taps[request].append(committed.taps[rows].clone())
            self.tokens[request] += tokens

    def close(self, request: int) -> None:
        self.taps.pop(request, None)
        self.tokens.pop(request, None)
        self.closed.append(request)

    def rows(self, request: int) -> int:
        """Committed rows of a request."""
        return sum(len(part) for part in self.taps.get(request, ()))

    def _check(self, request: DraftRequest) -> None:
        self.asked.append(request)
        assert 2 <= request.block_size <= self.block_size
        assert request.context_len == self.rows(request.request), "the drafter's context has a hole"
        text = self.texts[request.request]
        assert text[request.context_len] == request.pending, "the pending token is not the text's"

    def _row(self, request: DraftRequest, depth: int) -> np.ndarray:
        """Candidates of one depth, best first."""
        text, pos = self.texts[request.request], request.context_len + depth
        true = text[pos] if pos < len(text) else -1
        return thrown(self.vocab, self.candidates, (self.dice[request.request], request.context_len, depth), true)


@cache
def thrown(vocab: int, candidates: int, dice: tuple[int, ...], true: int) -> np.ndarray:
    """Distinct ids (candidates,), the true token (none when negative) where the dice put it."""
    rng = np.random.default_rng(dice)
    ids = rng.permutation(np.setdiff1d(np.arange(vocab), [true]))[:candidates]
    luck = rng.random()
    rank = int(rng.integers(1, candidates))
    if true >= 0 and luck < 0.9:
        ids[0 if luck < 0.7 else rank] = true
    return ids


def limits_of(item: DraftRequest) -> GrowLimits:
    """What a request's tree may become."""
    return GrowLimits(item.pending, item.candidates, item.max_nodes, item.max_depth)


@dataclass(frozen=True)
class Watched:
    """A policy that keeps every RoundOutcome; one for each request."""

    inner: Policy
    outcomes: list[RoundOutcome] = field(default_factory=list, compare=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        return self.inner.wants_draft(state, costs)

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        return self.inner.choose(gains, round_cost_s, base_tokens, state)

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        self.outcomes.append(outcome)
        return self.inner.observe(state, outcome)


def share_above_rank_0(outcomes: Sequence[RoundOutcome]) -> float:
    """Of the paths that accepted something, the share that uses a candidate behind the first."""
    accepted = [outcome for outcome in outcomes if len(outcome.path) > 1]
    above = [outcome for outcome in accepted if outcome.tree.rank[outcome.path].max() > 0]
    return len(above) / len(accepted)
