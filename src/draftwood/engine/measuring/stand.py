"""A stand on which single rounds are measured: the engine's own stages on real contexts, real scores, real trees."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from ...core import Sampling
from ...cost.rounds import RoundCosts
from ...errors import UsageError
from ...policy import PolicyState, RoundOutcome
from ..requests import Limits, Request
from ..schedule import finish
from ..state import EngineState
from ..step import Stages, step, timed
from .filled import FilledDrafter

CANDIDATES = 16
LEAST_GAIN_ROUNDS = 1


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A kind of round."""

    rows: int
    """Rows of the pack, summed over the requests; as many rows as requests: a plain round, nothing drafted."""
    context: int
    """L of each request."""
    requests: int = 1
    """R."""


class Sample(NamedTuple):
    """One measured round."""

    verify_s: float
    """The target forward."""
    draft_s: float | None
    """The drafter pass; None in a plain round."""
    host_s: float
    """Everything else."""

    @property
    def total_s(self) -> float:
        """The whole round."""
        return self.verify_s + (self.draft_s or 0.0) + self.host_s


class FixedNodes:
    """The policy of a measured round: it drafts and verifies what it is told. Mutable; one for each request."""

    name: ClassVar[str] = "measure"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    def __init__(self, max_nodes: int, candidates: int = CANDIDATES) -> None:
        self.max_nodes = max_nodes
        self.candidates = candidates
        self.nodes = 0
        self.drafting = False
        self.seen_gains: list[np.ndarray] | None = None
        """Receives the gains of every drafted round, when it is a list."""

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """As told."""
        return self.drafting

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """As told, or all nodes that exist."""
        if self.seen_gains is not None:
            self.seen_gains.append(gains)
        return min(self.nodes, len(gains))

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state


class Stand:
    """Keeps requests at wanted context lengths and runs rounds of wanted sizes on them.

    It shares models and pool with an engine's state and has requests of its own, with ids below 0; only one of the two
    may be stepped at a time. `close` gives everything back.
    """

    def __init__(
        self,
        state: EngineState,
        *,
        max_nodes: int,
        clock: Callable[[], float] = perf_counter,
        seed: int = 0,
    ) -> None:
        """Raises UsageError for a state without a drafter."""
        if state.drafter is None:
            raise UsageError("measuring costs needs a drafter: name one with --drafter (drafter=)")
        self._drafter = FilledDrafter(state.drafter, state.target.spec.vocab_size)
        self._state = EngineState(state.target, self._drafter, state.pool, state.config)
        self._max_nodes = max_nodes
        self._clock = clock
        self._rng = np.random.default_rng(seed)
        self._ids = itertools.count(-1, -1)
        self._held: dict[int, list[Request]] = {}
        self._made: list[Request] = []

    @property
    def block_size(self) -> int:
        """Rows of the drafter's block."""
        return self._drafter.block_size

    def run(self, cell: Cell) -> Sample:
        """Measure one round. Opening a context is not part of it. Raises what the round raises."""
        group = self._group(cell.context, cell.requests)
        nodes = cell.rows - cell.requests
        for at, request in enumerate(group):
            policy = _policy_of(request)
            policy.drafting = nodes > 0
            policy.nodes = nodes // cell.requests + (at < nodes % cell.requests)
        seconds: dict[str, float] = {}
        stages = timed(Stages(), seconds, ("draft", "verify"), self._clock, self._wait)
        start_s = self._clock()
        self._step(group, stages)
        total_s = self._clock() - start_s
        verify_s = seconds["verify"]
        draft_s = seconds["draft"] if nodes > 0 else None
        return Sample(verify_s, draft_s, max(total_s - verify_s - (draft_s or 0.0), 0.0))

    def widest_tree(self, context: int) -> int:
        """Nodes of the largest tree that the drafter's scores give, at most `max_nodes`."""
        group = self._group(context, 1)
        policy = _policy_of(group[0])
        policy.drafting, policy.nodes = True, self._max_nodes
        self._step(group, Stages())
        return group[0].rounds[-1].rows - 1

    def gains(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        end_ids: frozenset[int],
        *,
        width: int,
        candidates: int,
        until: Callable[[], bool],
    ) -> list[np.ndarray]:
        """Decode `prompts` together, verifying `width` nodes, and return the sorted gains of every drafted round.

        Stops early once `until()` is true, but not before LEAST_GAIN_ROUNDS: without any, `cast` has no width.
        """
        seen: list[np.ndarray] = []
        requests = []
        for prompt in prompts:
            policy = FixedNodes(self._max_nodes, candidates)
            policy.drafting, policy.nodes, policy.seen_gains = True, width, seen
            requests.append(self._request(np.asarray(prompt, np.int64), Limits(tokens, end_ids), policy))
        self._state.waiting += requests
        while (self._state.waiting or self._state.running) and (len(seen) < LEAST_GAIN_ROUNDS or not until()):
            step(self._state, Stages())
        for request in [*self._state.running, *self._state.waiting]:
            finish(self._state, request, "abort")
        _raise_errors(requests)
        return seen

    def close(self) -> None:
        """Release every context, those of a step that broke off too."""
        for request in self._made:
            self._drop(request)
        self._made.clear()
        self._held.clear()

    def _group(self, context: int, count: int) -> list[Request]:
        """The first `count` requests near `context`; those that have grown too far are replaced."""
        held = self._held.setdefault(context, [])
        for request in held[:count]:
            if request.committed > context + drift(context):
                held.remove(request)
                self._drop(request)
        while len(held) < count:
            held.append(self._open(context))
        return held[:count]

    def _open(self, context: int) -> Request:
        """A request whose random prompt is prefilled, after one round that projects its queued taps."""
        spec = self._state.target.spec
        span = drift(context)
        prompt = self._rng.integers(0, min(spec.vocab_size, spec.embedding_rows), max(1, context - span))
        limits = Limits(2 * span + 2 * self._drafter.block_size + 2, frozenset())
        policy = FixedNodes(self._max_nodes)
        request = self._request(prompt, limits, policy)
        self._state.waiting.append(request)
        while request.in_prefill:
            self._step(self._state.running, Stages())
        policy.drafting, policy.nodes = True, 1
        self._step([request], Stages())
        return request

    def _request(self, prompt: np.ndarray, limits: Limits, policy: FixedNodes) -> Request:
        request = Request(
            id=next(self._ids),
            prompt_ids=prompt,
            sampling=Sampling(),
            limits=limits,
            policy=policy,
            block_size=self._drafter.block_size,
        )
        self._made.append(request)
        return request

    def _step(self, group: Sequence[Request], stages: Stages) -> None:
        """Advance these requests alone."""
        self._state.running = list(group)
        took_part = step(self._state, stages)
        self._wait()
        self._state.running = [request for request in took_part if request.in_prefill]
        _raise_errors(took_part)

    def _drop(self, request: Request) -> None:
        if not request.finished:  # a request that broke off has been released
            self._state.running = [request]
            finish(self._state, request, "abort")

    def _wait(self) -> None:
        device = self._state.target.spec.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def drift(context: int) -> int:
    """How far a context may be from the wanted length: a round commits tokens, so it grows while it is measured."""
    return max(8, context // 8)


def largest_context(context_limit: int, block_size: int) -> int:
    """The longest context that can be measured, drift and two blocks included; below 1 when there is none."""
    context = context_limit
    while context > 0 and context + drift(context) + 2 * block_size > context_limit:
        context -= 1
    return context


def _policy_of(request: Request) -> FixedNodes:
    assert isinstance(request.policy, FixedNodes)
    return request.policy


def _raise_errors(requests: Sequence[Request]) -> None:
    for request in requests:
        if request.error is not None:
            raise request.error
