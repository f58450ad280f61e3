"""The stages that `step` calls, in order. Each is a function of the engine state and the jobs of this step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from ..core import DraftBlock, Pack, RoundRecord, Segment, Visibility
from ..draft.base import DraftRequest
from ..errors import NonFiniteLogitsError
from ..policy import RoundOutcome
from ..tree.grow import grow as grow_tree
from ..tree.layout import positions, visibility
from ..verify import walk as walk_tree
from .request import Job, Request
from .scheduler import admit, finish
from .state import EngineState, root_tree


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
    return jobs


def draft(state: EngineState, jobs: list[Job]) -> DraftBlock | None:
    """One drafter pass for all rounds whose policy wants one; None when there are none."""
    wanted: list[DraftRequest] = []
    for job in jobs:
        request = job.request
        if job.max_depth == 0 or not request.policy.wants_draft(request.policy_state, None):
            continue
        job.draft_index = len(wanted)
        limit = state.target.spec.context_limit
        block_size = min(request.block_size, limit - request.context_len)
        wanted.append(DraftRequest(request.id, request.token_ids[-1], request.context_len, block_size))
    if not wanted or state.drafter is None:
        return None
    candidates = max(job.request.policy.candidates for job in jobs if job.draft_index is not None)
    return state.drafter.draft(wanted, candidates)


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
    """Cut each tree to the number of nodes that its policy finds worth verifying; lay out the rows."""
    for job in jobs:
        if job.draft_index is None or job.tree is None:
            continue
        request = job.request
        num_nodes = request.policy.choose(job.tree.gains, None, 1, request.policy_state)
        job.tree = job.tree.prefix(num_nodes)
        job.token_ids = job.tree.token
        job.pos = positions(job.tree, request.context_len)


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
        try:
            verdict = walk_tree(job.tree, logits, job.request.choose, int(job.pos[0 if job.is_round else -1]))
        except NonFiniteLogitsError as error:
            job.request.error = error
            continue
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
            if state.drafter is not None and request.error is None:
                whole = len(job.path) == len(rows)
                state.drafter.commit(request.id, rows if whole else rows[torch.from_numpy(job.path).to(rows.device)])


def deliver(state: EngineState, jobs: list[Job]) -> list[Request]:
    """Append the decided tokens up to the first stop or cap, record the rounds, retire what has ended."""
    now_s = perf_counter()
    for job in jobs:
        request = job.request
        was_round = job.is_round
        context = request.context_len
        if not was_round:
            request.prefilled += len(job.token_ids)
        delivered = _append(request, job.new_tokens)
        if request.first_token_s is None and delivered:
            request.first_token_s = now_s
        if was_round and request.error is None and job.tree is not None:
            record = RoundRecord(
                rows=job.tree.num_rows,
                committed=delivered,
                drafted=job.draft_index is not None,
                context=context,
                accepted=len(job.path) - 1,
            )
            request.rounds.append(record)
            request.policy_state = request.policy.observe(
                request.policy_state, RoundOutcome(record, job.tree, job.path, None)
            )
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


def timed(stages: Stages, seconds: dict[str, float]) -> Stages:
    """The same stages, each adding its seconds to `seconds[name]`; waits for the device after every one."""

    def clocked(name: str) -> Callable[..., object]:
        stage = getattr(stages, name)

        def run(*args: object) -> object:
            start_s = perf_counter()
            result = stage(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + perf_counter() - start_s
            return result

        return run

    return replace(stages, **{name: clocked(name) for name in Stages.__slots__})


def _round_job(state: EngineState, request: Request) -> Job:
    """The pending token; how deep a tree may reach follows from tokens, context and block left."""
    depth = 0
    if request.policy.drafts and state.drafter is not None:
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


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
