"""The stages that `step` calls, in order. Each is a function of the engine state and the jobs of this step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core import DraftBlock, DraftTree, Pack, RoundRecord, Segment, Visibility
from ..cost.rounds import RoundCosts
from ..draft.base import Drafter, DraftRequest
from ..errors import CostError, NonFiniteLogitsError
from ..policy import Policy, RoundOutcome
from ..policy.batch import Member, allocate, draft_wishes
from ..tree.grow import grow as grow_tree
from ..tree.grow import root_tree
from ..tree.layout import positions, visibility
from ..verify import walk as walk_tree
from .costs import Load
from .request import Job, Request
from .scheduler import admit, finish
from .state import EngineState


class Forward(NamedTuple):
    """What the target gave for a pack."""

    pack: Pack
    logits: torch.Tensor
    """(len(logit_rows), V)."""
    taps: torch.Tensor | None
    """(len(tap_rows), taps * h)."""


def schedule(state: EngineState) -> list[Job]:
    """One job per running request; prompts share `prefill_chunk` rows per step in order of arrival."""
    admit(state)
    budget = state.config.prefill_chunk
    jobs = []
    for request in state.running:
        if not request.in_prefill:
            jobs.append(_round_job(state, request))
        elif budget > 0:
            stop = min(request.prefilled + budget, len(request.prompt_ids))
            budget -= stop - request.prefilled
            jobs.append(_prefill_job(request, stop))
    state.load = _load(jobs)
    return jobs


def draft(state: EngineState, jobs: list[Job]) -> DraftBlock | None:
    """One drafter pass for all rounds whose policy wants one; None when there are none."""
    able = [job for job in jobs if job.is_round and job.max_depth > 0]
    for job in jobs:
        if job.is_round and job.request.policy.needs_costs:
            job.costs = _costs(state, job.request.policy, 0)
    pairs = [(job.request.policy, state.policy_state(job.request)) for job in able]
    wishes = draft_wishes(pairs, partial(_costs, state), default=state.config.shared_policy)
    wanted: list[DraftRequest] = []
    for job, wish in zip(able, wishes, strict=True):
        if not wish:
            continue
        request = job.request
        job.draft_index = len(wanted)
        limit = state.target.spec.context_limit
        block_size = min(request.block_size, limit - request.context_len)
        wanted.append(DraftRequest(request.id, request.token_ids[-1], request.context_len, block_size))
    if not wanted or state.drafter is None:
        return None
    candidates = max(job.request.policy.candidates for job in jobs if job.draft_index is not None)
    try:
        return state.drafter.draft(wanted, candidates)
    except NonFiniteLogitsError:
        return _draft_finite(state.drafter, jobs, wanted, candidates)


def grow(state: EngineState, jobs: list[Job], block: DraftBlock | None) -> None:
    """Grow each drafted request's tree to its policy's largest size."""
    for job in jobs:
        if block is None or job.draft_index is None:
            continue
        policy = job.request.policy
        job.tree = grow_tree(
            block,
            job.draft_index,
            pending=job.request.token_ids[-1],
            candidates=policy.candidates,
            max_nodes=policy.max_nodes,
            max_depth=job.max_depth,
        )


def choose(state: EngineState, jobs: list[Job]) -> None:
    """Cut each tree to the number of nodes that is worth verifying; lay out the rows."""
    drafted = [job for job in jobs if job.draft_index is not None and job.tree is not None]
    if not drafted:
        return
    members = [
        Member(job.request.policy, job.tree.gains, state.policy_state(job.request))
        for job in drafted
        if job.tree is not None
    ]
    assert state.load is not None
    counts = allocate(
        members,
        partial(_costs, state),
        default=state.config.shared_policy,
        sharing=state.config.sharing,
        plain_requests=state.load.requests - len(drafted),
    )
    for job, num_nodes in zip(drafted, counts, strict=True):
        if job.tree is not None:
            job.tree = job.tree.prefix(num_nodes)
            job.token_ids = job.tree.token
            job.pos = positions(job.tree, job.request.context_len)


def pack(state: EngineState, jobs: list[Job]) -> Pack:
    """Join the jobs' rows; a job that is judged gets logits, a drafting request gets taps."""
    segments, logit_rows, tap_rows = [], [], []
    row = 0
    for job in jobs:
        request, num_rows = job.request, len(job.token_ids)
        rows = np.arange(row, row + num_rows)
        job.row_start = row
        tree = job.tree if job.draft_index is not None else None
        segments.append(
            Segment(
                request=request.id,
                row_start=row,
                num_rows=num_rows,
                prefix_len=state.pool.prefix_len(request.id),
                prefix=state.pool.prefix(request.id),
                staged=state.pool.reserve(request.id, num_rows),
                visibility=Visibility.CAUSAL if tree is None else Visibility.ANCESTORS,
                visible=None if tree is None else visibility(tree),
            )
        )
        if job.tree is not None:
            logit_rows.append(rows if job.is_round else rows[-1:])
        if request.policy.drafts:
            tap_rows.append(rows)
        row += num_rows
    return Pack(
        token_ids=np.concatenate([job.token_ids for job in jobs]),
        pos=np.concatenate([job.pos for job in jobs]),
        logit_rows=_joined(logit_rows),
        tap_rows=_joined(tap_rows),
        segments=tuple(segments),
    )


def verify(state: EngineState, packed: Pack) -> Forward:
    """One target forward."""
    taps = state.tap_buffer(len(packed.tap_rows)) if len(packed.tap_rows) else None
    layers = state.tap_layers if taps is not None else ()
    return Forward(packed, state.target.forward(packed, state.pool, layers, taps), taps)


def walk(jobs: list[Job], forward: Forward) -> None:
    """Let the target decide each judged tree."""
    start = 0
    for job in jobs:
        job.path = np.arange(len(job.token_ids))
        if job.tree is None:
            continue
        logits = forward.logits[start : start + job.tree.num_rows]
        start += job.tree.num_rows
        if job.request.error is not None:
            continue
        try:
            verdict = walk_tree(job.tree, logits, job.request.choose, int(job.pos[0 if job.is_round else -1]))
        except NonFiniteLogitsError as error:
            _set_back(job, job.tree, error)
            continue
        job.request.plain_next = False
        if job.is_round:
            job.path = verdict.path
        job.new_tokens = (*(int(token) for token in job.tree.token[verdict.path[1:]]), verdict.pending)


def commit(state: EngineState, jobs: list[Job], forward: Forward) -> None:
    """Make the accepted rows prefix, in the target's pool and in the drafter's context."""
    tap = 0
    for job in jobs:
        request = job.request
        if request.error is None:
            state.pool.commit(request.id, job.path)
        if request.policy.drafts and forward.taps is not None:
            rows = forward.taps[tap : tap + len(job.token_ids)]
            tap += len(job.token_ids)
            if state.drafter is not None and request.error is None and len(job.path):
                whole = len(job.path) == len(rows)
                state.drafter.commit(request.id, rows if whole else rows[torch.from_numpy(job.path).to(rows.device)])


def deliver(state: EngineState, jobs: list[Job]) -> list[Request]:
    """Append the decided tokens up to the first stop or cap, record the rounds, retire what has ended."""
    now_s = perf_counter()
    predicted_s = _predicted_s(state, jobs)
    for job in jobs:
        request = job.request
        context, was_round = request.context_len, job.is_round
        if not was_round:
            request.prefilled += len(job.token_ids)
        delivered = _append(request, job.new_tokens)
        if request.first_token_s is None and delivered:
            request.first_token_s = now_s
        if was_round and job.new_tokens:
            _record(state, job, context=context, delivered=delivered, predicted_s=predicted_s)
        if request.error is not None:
            request.finish_reason = "error"
        elif request.finish_reason is None and request.context_len >= state.target.spec.context_limit:
            request.finish_reason = "length"
        if request.finished:
            request.finished_s = now_s
            finish(state, request)
    return [job.request for job in jobs]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stage functions that `step` calls; `timed` wraps them for the stage-timing mode."""

    schedule: Callable[[EngineState], list[Job]] = schedule
    draft: Callable[[EngineState, list[Job]], DraftBlock | None] = draft
    grow: Callable[[EngineState, list[Job], DraftBlock | None], None] = grow
    choose: Callable[[EngineState, list[Job]], None] = choose
    pack: Callable[[EngineState, list[Job]], Pack] = pack
    verify: Callable[[EngineState, Pack], Forward] = verify
    walk: Callable[[list[Job], Forward], None] = walk
    commit: Callable[[EngineState, list[Job], Forward], None] = commit
    deliver: Callable[[EngineState, list[Job]], list[Request]] = deliver


STAGE_NAMES = tuple(item.name for item in fields(Stages))


def timed(
    stages: Stages,
    seconds: dict[str, float],
    names: Sequence[str] = STAGE_NAMES,
    clock: Callable[[], float] = perf_counter,
) -> Stages:
    """The same stages, those of `names` adding their seconds to `seconds[name]` and waiting for the device."""

    def clocked(name: str) -> Any:
        stage = getattr(stages, name)

        def run(*args: Any) -> Any:
            start_s = clock()
            result = stage(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + clock() - start_s
            return result

        return run

    return replace(stages, **{name: clocked(name) for name in names})


def _draft_finite(drafter: Drafter, jobs: list[Job], wanted: list[DraftRequest], candidates: int) -> DraftBlock | None:
    """Draft again without the requests whose scores are not finite; those end with the error."""
    finite: list[DraftRequest] = []
    for job in jobs:
        if job.draft_index is None:
            continue
        request, job.draft_index = wanted[job.draft_index], None
        try:
            drafter.draft([request], candidates)
        except NonFiniteLogitsError as error:
            job.request.error = error
            continue
        job.draft_index = len(finite)
        finite.append(request)
    return drafter.draft(finite, candidates) if finite else None


def _set_back(job: Job, tree: DraftTree, error: NonFiniteLogitsError) -> None:
    """End the request, or decide the round again without drafts.

    A drafted row that is not finite spoils rows that do not see it, for a masked NaN is still 0 * NaN in a product.
    Plain decoding never met that row, so only a round of the root alone tells whether the text itself is at fault.
    """
    if not (job.is_round and tree.num_nodes):
        job.request.error = error
        return
    job.request.plain_next = True
    job.path = np.empty(0, dtype=np.int64)


def _round_job(state: EngineState, request: Request) -> Job:
    """The pending token; how deep a tree may reach follows from tokens, context and block left."""
    depth = 0
    if request.policy.drafts and state.drafter is not None and not request.plain_next:
        room = state.target.spec.context_limit - request.context_len
        depth = max(0, min(request.block_size - 1, request.remaining_tokens - 1, room - 1))
    return Job(
        request=request,
        token_ids=np.array([request.token_ids[-1]], dtype=np.int64),
        pos=np.array([request.context_len], dtype=np.int64),
        tree=root_tree(request.token_ids[-1]),
        max_depth=depth,
    )


def _prefill_job(request: Request, stop: int) -> Job:
    pos = np.arange(request.prefilled, stop, dtype=np.int64)
    last = stop == len(request.prompt_ids)
    tree = root_tree(int(request.prompt_ids[-1])) if last else None
    return Job(request=request, token_ids=request.prompt_ids[request.prefilled : stop], pos=pos, tree=tree)


def _append(request: Request, tokens: tuple[int, ...]) -> int:
    """Scan in order; the first event wins. Returns how many tokens were delivered."""
    for delivered, token in enumerate(tokens, start=1):
        request.token_ids.append(token)
        if token in request.limits.end_ids:
            request.finish_reason = "stop"
        elif request.remaining_tokens == 0:
            request.finish_reason = "length"
        if request.finished:
            return delivered
    return len(tokens)


def _load(jobs: list[Job]) -> Load:
    """What the step carries whatever the policies choose: one root per round, all prefill rows."""
    rounds = [job for job in jobs if job.is_round]
    context = sum(job.request.context_len for job in rounds) // max(1, len(rounds))
    rows = sum(len(job.token_ids) for job in jobs)
    return Load(rows, context, max(1, len(rounds)), has_prefill=len(rounds) < len(jobs))


def _costs(state: EngineState, policy: Policy, extra_rows: int) -> RoundCosts:
    if state.costs is None or state.load is None:
        raise CostError(f"policy {policy.name} needs a cost profile: give one with --profile, or measure it first")
    return state.costs.round_costs(state.load, policy, extra_rows=extra_rows)


def _predicted_s(state: EngineState, jobs: list[Job]) -> float | None:
    """Predicted seconds of this step under the profile; None without one, and where no round will read them."""
    if state.costs is None or state.load is None or not any(job.is_round for job in jobs):
        return None
    rows = sum(len(job.token_ids) for job in jobs)
    return state.costs.predicted_s(state.load, rows, sum(job.draft_index is not None for job in jobs))


def _record(state: EngineState, job: Job, *, context: int, delivered: int, predicted_s: float | None) -> None:
    """Keep the round and let the policy learn from it."""
    request = job.request
    assert job.tree is not None
    factors = state.costs.factors if state.costs is not None else None
    record = RoundRecord(
        rows=job.tree.num_rows,
        committed=delivered,
        drafted=job.draft_index is not None,
        context=context,
        accepted=len(job.path) - 1,
        predicted_s=predicted_s,
        cost_factors=None if factors is None else (factors.base, factors.slope, factors.draft),
    )
    request.rounds.append(record)
    outcome = RoundOutcome(record, job.tree, job.path, job.costs)
    state.remember(request, request.policy.observe(state.policy_state(request), outcome))


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
