"""What happens in a round up to the forward: who drafts, which trees, how many nodes, which rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from ..batch import Batch, RequestRows, build
from ..core import Forest, Visibility
from ..cost.rounds import RoundCosts
from ..draft.base import DraftRequest
from ..errors import CostError, DraftwoodError
from ..policy import Policy
from ..policy.batch import Member, allocate, draft_wishes
from ..tree.grow import root_forest
from ..tree.layout import ancestor_words, positions
from .schedule import Job
from .state import EngineState

LOGGER = logging.getLogger("draftwood")
Answer = TypeVar("Answer")


class Forward(NamedTuple):
    """What the target gave for a batch."""

    logits: torch.Tensor
    """(len(logit_rows), V)."""
    taps: torch.Tensor | None
    """(len(tap_rows), taps * h); None where nothing is tapped."""


def wish(state: EngineState, jobs: list[Job]) -> list[Job]:
    """The rounds that draft, each with what the drafter is asked.

    Trees take only rows that are free once every job has its own: they never push a request out of the pool.
    """
    for job in jobs:
        if job.is_round and job.request.policy.needs_costs:
            (job.costs,) = _answers([job], lambda found: [_costs(state, found[0].request.policy, 0)])
    able = [job for job in jobs if job.request.error is None and job.max_depth > 0]
    if not able or state.drafter is None:
        return []
    wishes = _answers(
        able,
        lambda found: draft_wishes(
            [(job.request.policy, state.policy_state(job.request)) for job in found],
            partial(_costs, state),
            default=state.config.shared_policy,
            plain_requests=sum(job.is_round for job in jobs) - len(found),
        ),
    )
    wishing = [job for job, wanted in zip(able, wishes, strict=True) if wanted]
    room = _room(state, jobs, wishing)
    for job, nodes in zip(wishing, room, strict=True):
        # A policy that drafts and verifies nothing looks on; one that gets no node for want of room does not draft.
        job.asked = _asked(state, job, nodes) if nodes or not job.request.policy.max_nodes else None
    return [job for job in wishing if job.asked is not None]


def draft(state: EngineState, drafting: list[Job]) -> Forest:
    """One drafter pass: a tree for each of `drafting`; where it is the root alone, the round has not drafted."""
    asked = [job.asked for job in drafting if job.asked is not None]
    if not asked or state.drafter is None:
        return root_forest([])
    forest = state.drafter.propose(asked)
    if not forest.costly and state.load is not None:
        state.load = replace(state.load, drafts=False)
    for job, request, rows in zip(drafting, asked, forest.num_rows.tolist(), strict=True):
        if rows == 1 and request.max_nodes:  # nothing was found, or nothing finite
            job.asked = None
        elif job.costs is not None and not forest.costly:
            job.costs = job.costs.without_draft()
    for index, reason in forest.faulty.items():
        failed = drafting[index].request
        failed.faulty_drafts += 1
        if failed.faulty_drafts == 1:
            LOGGER.warning("request %d: %s: such rounds are decoded plainly", failed.id, reason)
    return forest


def choose(state: EngineState, jobs: list[Job], drafting: list[Job], forest: Forest) -> Forest:
    """The trees of all judged jobs, in their order: the drafted ones cut to what is worth verifying, else a root."""
    place = {id(job): index for index, job in enumerate(drafting)}
    chosen = [job for job in drafting if job.asked is not None]  # the others' drafts were not finite
    counts = _answers(chosen, lambda found: _allocate(state, found, forest, place)) if chosen else []
    nodes = np.zeros(len(drafting), np.int64)
    for job, count in zip(chosen, counts, strict=True):
        nodes[place[id(job)]] = count or 0
    cut = forest.prefix(nodes)
    judged = [job for job in jobs if job.judged]
    if [id(job) for job in judged] == list(place):
        return cut
    roots = root_forest([job.token_ids[-1] for job in judged])
    return Forest.of([cut[place[id(job)]] if id(job) in place else roots[at] for at, job in enumerate(judged)])


def pack(state: EngineState, jobs: list[Job], forest: Forest) -> Batch:
    """Join the rows of all jobs; a judged job gets logits, a request that drafts gets taps."""
    judged = [job for job in jobs if job.judged]
    words = ancestor_words(forest) if judged else np.empty((0, 0), np.int64)
    pos = positions(forest, np.array([job.pos[-1] for job in judged], np.int64))
    tree, parts = 0, []
    for job in jobs:
        rows = slice(0, 0)
        if job.judged:
            rows = slice(int(forest.offsets[tree]), int(forest.offsets[tree + 1]))
            tree += 1
        parts.append(_rows(state, job, forest.token[rows], pos[rows], words[rows]))
    return build(parts, state.config.row_tiers)


def verify(state: EngineState, batch: Batch) -> Forward:
    """One target forward."""
    layers = state.tap_layers if len(batch.tap_rows) else ()
    taps = state.tap_buffer(len(batch.tap_rows)) if layers else None
    return Forward(state.target.forward(batch, state.pool, layers, taps), taps)


def _rows(state: EngineState, job: Job, token_ids: np.ndarray, pos: np.ndarray, words: np.ndarray) -> RequestRows:
    """What one job brings: the rows of its tree, or a chunk of its prompt."""
    request, pool = job.request, state.pool
    held = pool.prefix_len(request.id)
    if held != request.committed:
        raise AssertionError(f"request {request.id}: {request.committed} tokens committed, {held} in the pool")
    tree = job.is_round and len(token_ids) > 1
    if not job.is_round:
        token_ids, pos = job.token_ids, job.pos
    return RequestRows(
        request=request.id,
        token_ids=token_ids,
        pos=pos,
        prefix_len=request.committed,
        prefix=pool.prefix(request.id),
        staged=pool.reserve(request.id, len(token_ids)),
        visibility=Visibility.ANCESTORS if tree else Visibility.CAUSAL,
        ancestors=words if tree else None,
        logits_from=None if not job.judged else (0 if job.is_round else len(token_ids) - 1),
        taps=request.policy.drafts,
    )


def _allocate(state: EngineState, found: list[Job], forest: Forest, place: dict[int, int]) -> list[int]:
    members = [
        Member(job.request.policy, forest[place[id(job)]].gains, state.policy_state(job.request)) for job in found
    ]
    assert state.load is not None
    return allocate(
        members,
        partial(_costs, state),
        default=state.config.shared_policy,
        sharing=state.config.sharing,
        plain_requests=state.load.requests - len(found),
    )


def _room(state: EngineState, jobs: list[Job], wishing: list[Job]) -> list[int]:
    """Nodes that each of `wishing` may draft: what its policy wants, within an equal share of the free pages."""
    pool = state.pool
    wanted = [job.request.policy.max_nodes for job in wishing]
    free = pool.free_rows - sum(pool.lacking(job.request.id, len(job.token_ids)) for job in jobs)
    if free >= sum(min(nodes, 64 * pool.page_rows) + pool.page_rows for nodes in wanted):
        return wanted
    share = free // len(wishing) // pool.page_rows * pool.page_rows if wishing else 0
    spare = [
        pool.spare(job.request.id) + pool.lacking(job.request.id, 1) - 1 for job in wishing
    ]  # of the page that the root is in
    return [min(nodes, share + own) for nodes, own in zip(wanted, spare, strict=True)]


def _asked(state: EngineState, job: Job, max_nodes: int) -> DraftRequest:
    request, policy = job.request, job.request.policy
    last_nodes = request.rounds[-1].rows - 1 if request.rounds else 0
    return DraftRequest(
        request=request.id,
        pending=request.token_ids[-1],
        context_len=request.committed,
        block_size=min(request.block_size, state.context_limit - request.committed),
        candidates=policy.candidates,
        max_nodes=max_nodes,
        max_depth=job.max_depth,
        draft_share=0.0 if job.costs is None else job.costs.draft_share(last_nodes),
    )


def _costs(state: EngineState, policy: Policy, extra_rows: int) -> RoundCosts:
    if state.costs is None or state.load is None:
        raise CostError(f"policy {policy.name} needs a cost profile: give one with --profile, or measure it first")
    notice = state.costs.profile.notice_requests(state.load.requests)
    if notice is not None:
        LOGGER.warning("%s", notice)
    return state.costs.round_costs(state.load, policy, extra_rows=extra_rows)


def _answers(jobs: list[Job], ask: Callable[[list[Job]], Sequence[Answer]]) -> list[Answer | None]:
    """Ask the policies of `jobs` together; where that fails, find whose error it is and ask the others again.

    A request whose policy fails alone gets that error; when none does, the error is everybody's. Entries of
    failed ones are None: their round goes on without drafts and delivers nothing.
    """
    try:
        return list(ask(jobs))
    except DraftwoodError as error:
        if len(jobs) == 1:
            jobs[0].request.error = error
            return [None]
        for job in jobs:
            _answers([job], ask)
        healthy = [job for job in jobs if job.request.error is None]
        if len(healthy) == len(jobs):
            for job in jobs:
                job.request.error = error
            return [None] * len(jobs)
        found = iter(_answers(healthy, ask) if healthy else [])
        return [next(found) if job in healthy else None for job in jobs]
