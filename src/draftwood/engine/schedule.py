"""Who takes part in a step, and with which rows: admission, preemption, prompt chunks, retirement."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from operator import attrgetter
from time import perf_counter

import numpy as np

from ..cost.rounds import RoundCosts
from ..draft.base import DraftRequest
from .costs import Load
from .requests import Request
from .state import EngineState

EXPECTED_TOKENS, EXPECTED_NODES = 1024, 64
"""Answer tokens (if it may have as many) and drafted rows for which room is left behind a new request."""
_ARRIVAL = attrgetter("id")


@dataclass(slots=True)
class Job:
    """The part of one request in one step: a prefill chunk or a round."""

    request: Request
    token_ids: np.ndarray
    """(rows,) int64: a chunk of the known text, or the pending token alone."""
    pos: np.ndarray
    """(rows,) int64."""
    is_round: bool
    judged: bool
    """Whether the target decides something: in every round, and behind the last token of a prompt."""
    max_depth: int = 0
    """Deepest node that can still be delivered in this round."""
    asked: DraftRequest | None = None
    """What the drafter is asked for this round; None when it drafts nothing."""
    costs: RoundCosts | None = None
    """The costs under which drafting and nodes were chosen; None for policies that need none."""


def schedule(state: EngineState) -> list[Job]:
    """One job for every running request that can have one; prompts share `prefill_chunk` rows in order of arrival.

    Rounds come first. One that finds no row in the pool takes the pages of the youngest request, which waits and
    computes its context again later.
    """
    state.facts = None
    while state.inbox:
        insort(state.waiting, state.inbox.popleft(), key=_ARRIVAL)
    _admit(state)
    while True:
        jobs = _jobs(state)
        if jobs or not state.running:
            break
        _preempt(state, state.running[-1])  # prompts alone hold every page, and none can go on
        _admit(state)
    state.load = _load(jobs)
    return jobs


def finish(state: EngineState, request: Request, reason: str, error: BaseException | None = None) -> None:
    """End a request and free whatever it owns. Does nothing when it has ended."""
    if request.finished:
        return
    request.finish_reason, request.error = reason, error or request.error
    request.finished_s = perf_counter()
    if request in state.running:
        state.running.remove(request)
        _give_back(state, request)
    elif request in state.waiting:
        state.waiting.remove(request)


def _admit(state: EngineState) -> None:
    """Move waiting requests to the running ones, first come first served, while their known text has room.

    The room that running prompts will still take is theirs, and each request keeps a page to grow into. Alone, a
    request always has room: the pool holds at least its context limit.
    """
    promised = sum(max(0, item.prefill_len - item.committed) for item in state.running if item.in_prefill)
    while state.waiting and len(state.running) < state.config.max_requests:
        request = state.waiting[0]
        margin = state.pool.page_rows * (len(state.running) + 1)
        if state.running and state.pool.free_rows < promised + request.prefill_len + margin:
            return
        promised += request.prefill_len
        del state.waiting[0]
        insort(state.running, request, key=_ARRIVAL)
        rows = request.prefill_len + min(request.remaining_tokens, EXPECTED_TOKENS) + EXPECTED_NODES
        state.pool.open(request.id, min(rows, state.context_limit))
        if request.policy.drafts and state.drafter is not None:
            known = request.known_ids(0, request.prefill_len)
            state.drafter.open(request.id, known, min(rows, state.context_limit))


def _jobs(state: EngineState) -> list[Job]:
    free = state.pool.free_rows
    rounds = []
    for request in [item for item in state.running if not item.in_prefill]:
        if request not in state.running:
            continue  # it has given way to an older one
        needed = state.pool.lacking(request.id, 1)
        while needed > free and request in state.running:
            free += _preempt(state, state.running[-1])
        if request in state.running:
            free -= needed
            rounds.append(_round_job(state, request))
    return rounds + _chunks(state, free)


def _chunks(state: EngineState, free: int) -> list[Job]:
    """Chunks of prompts, together at most `prefill_chunk` rows and what the pool has free."""
    left, jobs = state.config.prefill_chunk, []
    for request in [item for item in state.running if item.in_prefill]:
        room = min(left, free + state.pool.spare(request.id))
        stop = min(request.committed + room, request.prefill_len)
        if stop > request.committed:
            taken = stop - request.committed
            left, free = left - taken, free - state.pool.lacking(request.id, taken)
            jobs.append(_chunk_job(request, stop))
    return jobs


def _round_job(state: EngineState, request: Request) -> Job:
    """The pending token; how deep a tree may reach follows from tokens, context and block left."""
    depth = 0
    if request.policy.drafts and state.drafter is not None and not request.plain_next:
        room = state.context_limit - request.committed
        depth = max(0, min(request.block_size - 1, request.remaining_tokens - 1, room - 1))
    pending, pos = np.array(request.token_ids[-1:], np.int64), np.array([request.committed], np.int64)
    return Job(request, pending, pos, is_round=True, judged=True, max_depth=depth)


def _chunk_job(request: Request, stop: int) -> Job:
    pos = np.arange(request.committed, stop, dtype=np.int64)
    # After a preemption the token behind the known text is known too.
    judged = stop == request.prefill_len and not request.token_ids
    return Job(request, request.known_ids(request.committed, stop), pos, is_round=False, judged=judged)


def _preempt(state: EngineState, request: Request) -> int:
    """Take everything from a running request and let it wait; returns the rows that became free."""
    before = state.pool.free_rows
    _give_back(state, request)
    state.running.remove(request)
    request.committed, request.preemptions = 0, request.preemptions + 1
    insort(state.waiting, request, key=_ARRIVAL)
    return state.pool.free_rows - before


def _give_back(state: EngineState, request: Request) -> None:
    """Free what a running request owns. A drafter that fails to close it leaves it running, to end with that error."""
    if request.id in state.pool.requests:
        state.pool.release(request.id)
    if request.policy.drafts and state.drafter is not None:
        state.drafter.close(request.id)


def _load(jobs: list[Job]) -> Load:
    """What the step carries whatever the policies choose: one root per round, all prefill rows."""
    rounds = [job for job in jobs if job.is_round]
    context = sum(job.request.committed for job in rounds) // max(1, len(rounds))
    rows = sum(len(job.token_ids) for job in jobs)
    return Load(rows, context, max(1, len(rounds)), has_prefill=len(rounds) < len(jobs))
