"""Recording: runs the engine and keeps what a replay needs of every round.

A policy's own trace holds the rounds that this policy visited. With `every_position` the engine drafts at every
position of the plain text and verifies nothing but the pending token, so that any policy can be replayed on it.
Either way the drafter is asked for 64 candidates a depth whatever the policy keeps: growth reads only its own K.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import DraftBlock, DraftTree, Forest
from ..draft.base import Committed, Drafter, DraftRequest
from ..draft.suffix import SuffixDrafter
from ..draft.union import UnionDrafter
from ..engine import Engine, SamplingParams
from ..engine.step import STAGE_NAMES
from ..engine.watch import SeenRound, watch_rounds
from ..errors import TraceError, UsageError
from ..policy import Policy, PolicyState, RoundCosts, RoundOutcome
from ..prompts.units import Unit
from .builder import TraceBuilder, TraceRound
from .format import MAX_CANDIDATES, Trace
from .players import policy_options
from .tables import TraceMeta

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
    """A drafter that keeps at least `scored` candidates a depth in `Forest.source`; everything else is passed on."""

    def __init__(self, inner: Drafter, scored: int) -> None:
        self.inner = inner
        self.scored = scored

    @property
    def block_size(self) -> int:
        """The inner drafter's."""
        return self.inner.block_size

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """The inner drafter's."""
        return tuple(self.inner.target_layer_ids)

    @property
    def kv_row_bytes(self) -> int:
        """The inner drafter's."""
        return self.inner.kv_row_bytes

    def allocate(self, kv_rows: int, requests: int) -> None:
        """See `Drafter.allocate`."""
        self.inner.allocate(kv_rows, requests)

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """See `Drafter.open`."""
        self.inner.open(request, token_ids, rows)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """See `Drafter.propose`."""
        return self.inner.propose([replace(item, scored=self.scored) for item in wanted])

    def commit(self, committed: Committed) -> None:
        """See `Drafter.commit`."""
        self.inner.commit(committed)

    def close(self, request: int) -> None:
        """See `Drafter.close`."""
        self.inner.close(request)


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
    builder = TraceBuilder(meta, depth=_scored_depth(engine.state.drafter))
    engine.reset_policies()
    seen: list[SeenRound] = []
    own = engine.state.drafter
    engine.state.drafter = WideDrafter(own, builder.candidates)
    try:
        with engine.loop.watching(watch_rounds(seen.append), timing=True):
            for start in range(0, len(units), options.batch):
                group = units[start : start + options.batch]
                _record_group(engine, group, policy or EveryPosition(), options, builder, seen)
                for _ in group:
                    advance()
    finally:
        engine.state.drafter = own
    return builder.build()


def _scored_depth(drafter: Drafter) -> int:
    """D of the trace: the positions that a block drafter scores; 0 for one that scores paths."""
    if isinstance(drafter, UnionDrafter):
        return max(_scored_depth(part) for part in drafter.parts)
    return 0 if isinstance(drafter, SuffixDrafter) else drafter.block_size - 1


def _record_group(
    engine: Engine,
    units: Sequence[Unit],
    policy: Policy,
    options: RecordOptions,
    builder: TraceBuilder,
    seen: list[SeenRound],
) -> None:
    """Decode some units together and hand their rounds to the builder. Raises the error of a request that fails."""
    asked = SamplingParams(
        options.max_tokens, options.temperature, options.seed, block_size=options.block_size, end_ids=options.end_ids
    )
    requests = [engine.make_request(unit.prompt_ids, policy, asked) for unit in units]
    seen.clear()
    for request in engine.run(requests):
        if request.error is not None:
            raise request.error
    index = {
        request.id: builder.add_request(
            request_id=unit.prompt_id,
            set_name=unit.set_name,
            prompt_hash=unit.prompt_hash,
            prompt_len=len(unit.prompt_ids),
            max_tokens=options.max_tokens,
        )
        for request, unit in zip(requests, units, strict=True)
    }
    for item in seen:
        builder.add_round(index[item.request.id], _round(item, builder.candidates))
    for request in requests:
        builder.finish_request(index[request.id], request.token_ids, request.finish_reason or "abort")


def _round(seen: SeenRound, candidates: int) -> TraceRound:
    """What the trace keeps of a round."""
    result = seen.record
    found = _found(*seen.draft, candidates) if seen.draft is not None else _Found()
    factors = dict(zip(FACTOR_NAMES, result.cost_factors, strict=True)) if result.cost_factors is not None else {}
    return TraceRound(
        position=seen.position,
        pending=int(seen.tree.token[0]),
        context=seen.context,
        logp=found.logp,
        ids=found.ids,
        tree=found.tree,
        candidates=seen.request.policy.candidates if result.drafted else 0,
        num_nodes=result.rows - 1,
        accepted=seen.path[1:],
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


class _Found(NamedTuple):
    """What one proposal leaves in a trace."""

    logp: np.ndarray | None = None
    ids: np.ndarray | None = None
    tree: DraftTree | None = None


def _found(forest: Forest, index: int, candidates: int) -> _Found:
    """The scores of a block drafter, the tree of one that scores paths, or one of each from a union."""
    source = forest.source
    if isinstance(source, DraftBlock):
        if source.logp.shape[2] != 1:
            raise TraceError("scores that depend on the parent's rank: a trace keeps one row of scores a depth")
        # What a drafter leaves out of K gets no probability.
        depth, width = int(source.depths[index]), min(source.logp.shape[3], candidates)
        logp = np.full((depth, candidates), -np.inf, dtype=np.float32)
        ids = np.zeros((depth, candidates), dtype=np.int64)
        logp[:, :width] = source.logp[index, :depth, 0, :width]
        ids[:, :width] = source.ids[index, :depth, 0, :width]
        return _Found(logp, ids)
    if source is None:
        return _Found(tree=forest[index])
    parts = [_found(part, index, candidates) for part in source]
    scored = [part for part in parts if part.logp is not None]
    trees = [part.tree for part in parts if part.tree is not None]
    if len(scored) > 1 or len(trees) > 1:
        raise TraceError("a union of two drafters of one kind: a trace keeps one table of scores and one tree a round")
    best = scored[0] if scored else _Found()
    return best._replace(tree=trees[0] if trees else None)
