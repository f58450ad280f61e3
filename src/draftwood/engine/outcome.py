"""What a step decided: the walk down each tree, what becomes prefix, what is delivered and recorded."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch

from ..core import DraftTree, RoundRecord
from ..errors import NonFiniteLogitsError
from ..policy import RoundOutcome
from ..verify import walk as walk_tree
from .jobs import Forward
from .request import Job, Request
from .scheduler import finish
from .state import EngineState


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
