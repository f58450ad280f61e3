"""Recording: runs the engine and keeps what a replay needs of every round.

A policy's own trace holds the rounds that this policy visited. With `every_position` the engine drafts at every
position of the plain text and verifies nothing but the pending token, so that any policy can be replayed on it.
Either way the drafter is asked for 64 candidates a depth whatever the policy keeps: growth reads only its own K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from ..core import DraftBlock
from ..draft.base import Drafter, DraftRequest
from ..engine import Engine, Request, RequestOptions
from ..engine.request import Job
from ..engine.stages import STAGE_NAMES, Stages
from ..engine.state import EngineState
from ..errors import TraceError, UsageError
from ..policy import Policy, PolicyState, RoundCosts, RoundOutcome
from ..prompts.units import Unit
from .builder import TraceBuilder, TraceRound
from .format import MAX_CANDIDATES, Trace, TraceMeta
from .replay import policy_options

FACTOR_NAMES = ("base", "slope", "draft")
EVERY_POSITION_BATCH = 8


@dataclass(frozen=True, slots=True)
class EveryPosition:
    """Drafts in every round and verifies no node: plain decoding with the drafter looking on."""

    candidates: int = MAX_CANDIDATES
    max_nodes: int = 0

    name: ClassVar[str] = "every-position"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Always."""
        return True

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """No node."""
        return 0

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """How a trace is made."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0
    block_size: int | None = None
    """None: the checkpoint's."""
    batch: int = 1
    """Requests decoded together; more than one only with every position, where no choice depends on it."""
    end_ids: frozenset[int] | None = None
    """None: the model's own."""


class WideDrafter:
    """A drafter that is asked for at least `candidates` a depth; everything else is passed on."""

    def __init__(self, inner: Drafter, candidates: int) -> None:
        self.inner = inner
        self.candidates = candidates

    @property
    def block_size(self) -> int:
        """The inner drafter's."""
        return self.inner.block_size

    @property
    def depth(self) -> int:
        """The inner drafter's."""
        return self.inner.depth

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """The inner drafter's."""
        return tuple(self.inner.target_layer_ids)

    def draft(self, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
        """See `Drafter.draft`."""
        return self.inner.draft(requests, max(candidates, self.candidates))

    def commit(self, request: int, taps: torch.Tensor) -> None:
        """See `Drafter.commit`."""
        self.inner.commit(request, taps)

    def release(self, request: int) -> None:
        """See `Drafter.release`."""
        self.inner.release(request)


class _Seen(NamedTuple):
    """A round as it stands when its tree has been grown; the job is filled in by the stages behind."""

    job: Job
    position: int
    pending: int
    context: int
    scores: tuple[np.ndarray, np.ndarray] | None
    """(depth, K) log-probabilities and ids."""


class _Watcher:
    """Looks at the rounds of a step after `grow`."""

    def __init__(self, candidates: int) -> None:
        self.candidates = candidates
        self.seen: list[_Seen] = []

    def change(self, stages: Stages) -> Stages:
        """The same stages, watched."""

        def grow(state: EngineState, jobs: list[Job], block: DraftBlock | None) -> None:
            stages.grow(state, jobs, block)
            self.seen += [self._look(job, block) for job in jobs if job.is_round]

        return replace(stages, grow=grow)

    def take(self) -> list[_Seen]:
        """The rounds since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def _look(self, job: Job, block: DraftBlock | None) -> _Seen:
        request = job.request
        scores = None
        if block is not None and job.draft_index is not None:
            scores = _scores(block, job.draft_index, self.candidates)
        return _Seen(job, len(request.token_ids) - 1, request.token_ids[-1], request.context_len, scores)


def record(
    engine: Engine,
    units: Sequence[Unit],
    policy: Policy | None,
    options: RecordOptions,
    *,
    model: str,
    drafter: str = "",
    versions: dict[str, str] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Trace:
    """Decode `units` and return their trace; without a policy every position is drafted.

    What policies learned before is forgotten first. `advance` is called after each finished request. Raises
    UsageError without a drafter, for a policy that never drafts, or for a batch of a policy's own rounds; TraceError
    for a drafter whose scores depend on the parent; and the engine's error for a request that fails.
    """
    if engine.state.drafter is None:
        raise UsageError("a trace keeps draft scores: name a drafter with --drafter")
    if policy is not None and not policy.drafts:
        raise UsageError(f"policy {policy.name!r} never drafts: use --every-position, or a policy that drafts")
    if policy is not None and options.batch != 1:
        raise UsageError(f"batch {options.batch}: a policy's own rounds are recorded one request at a time")
    meta = _meta(engine, policy, options, model, drafter, versions or {})
    builder = TraceBuilder(meta, depth=engine.state.drafter.depth)
    watcher = _Watcher(builder.candidates)
    engine.reset_policies()
    with _wide(engine, builder.candidates), engine.replacing_stages(watcher.change):
        for start in range(0, len(units), options.batch):
            group = units[start : start + options.batch]
            _record_group(engine, group, policy or EveryPosition(), options, builder, watcher)
            for _ in group:
                advance()
    return builder.build()


def _record_group(
    engine: Engine,
    units: Sequence[Unit],
    policy: Policy,
    options: RecordOptions,
    builder: TraceBuilder,
    watcher: _Watcher,
) -> None:
    """Decode some units together; the rounds go to the builder as they end."""
    asked = RequestOptions(
        options.max_tokens, options.temperature, options.seed, block_size=options.block_size, end_ids=options.end_ids
    )
    index: dict[int, int] = {}
    requests: list[Request] = []
    try:
        for unit in units:
            request = engine.submit(unit.prompt_ids, policy, asked)
            requests.append(request)
            index[request.id] = builder.add_request(
                request_id=unit.prompt_id,
                set_name=unit.set_name,
                prompt_hash=unit.prompt_hash,
                prompt_len=len(unit.prompt_ids),
                max_tokens=options.max_tokens,
            )
        while not all(request.finished for request in requests):
            engine.step(timing=True)
            for seen in watcher.take():
                if seen.job.request.error is not None:
                    raise seen.job.request.error
                if not seen.job.new_tokens:
                    continue  # drafted rows were not finite: the round is decided again
                builder.add_round(index[seen.job.request.id], _round(seen))
    finally:
        for request in requests:
            engine.abort(request)
    for request in requests:
        if request.error is not None:
            raise request.error
        builder.finish_request(index[request.id], request.token_ids, request.finish_reason or "abort")


def _round(seen: _Seen) -> TraceRound:
    """The finished round: the record is the request's last one."""
    job, result = seen.job, seen.job.request.rounds[-1]
    logp, ids = seen.scores if seen.scores is not None else (None, None)
    factors = dict(zip(FACTOR_NAMES, result.cost_factors, strict=True)) if result.cost_factors is not None else {}
    return TraceRound(
        position=seen.position,
        pending=seen.pending,
        context=seen.context,
        logp=logp,
        ids=ids,
        candidates=job.request.policy.candidates if result.drafted else 0,
        num_nodes=result.rows - 1,
        accepted=job.path[1:],
        committed=result.committed,
        seconds=result.seconds,
        factors=factors,
    )


def _meta(
    engine: Engine, policy: Policy | None, options: RecordOptions, model: str, drafter: str, versions: dict[str, str]
) -> TraceMeta:
    own = policy is not None
    return TraceMeta(
        policy=policy.name if policy is not None else "",
        options=policy_options(policy) if policy is not None else {},
        model=model,
        drafter=drafter,
        dtype=engine.dtype_name,
        vocab_size=engine.state.target.spec.vocab_size,
        seed=options.seed,
        temperature=options.temperature,
        every_position=not own,
        stages=STAGE_NAMES,
        factor_names=FACTOR_NAMES if own and engine.state.costs is not None else (),
        versions=versions,
        extra={"device": engine.device_name, "threads": engine.threads, "batch": options.batch},
    )


@contextmanager
def _wide(engine: Engine, candidates: int) -> Iterator[None]:
    """Let the engine's drafter score `candidates` per depth meanwhile."""
    drafter = engine.state.drafter
    assert drafter is not None
    engine.state.drafter = WideDrafter(drafter, candidates)
    try:
        yield
    finally:
        engine.state.drafter = drafter


def _scores(block: DraftBlock, index: int, candidates: int) -> tuple[np.ndarray, np.ndarray]:
    """(depth, K) scores and ids of one request; what a drafter leaves out of K gets no probability."""
    if block.logp.shape[2] != 1:
        raise TraceError("scores that depend on the parent's rank: a trace keeps one row of scores a depth")
    depth, width = int(block.depths[index]), min(block.logp.shape[3], candidates)
    logp = np.full((depth, candidates), -np.inf, dtype=np.float32)
    ids = np.zeros((depth, candidates), dtype=np.int64)
    logp[:, :width] = block.logp[index, :depth, 0, :width]
    ids[:, :width] = block.ids[index, :depth, 0, :width]
    return logp, ids
