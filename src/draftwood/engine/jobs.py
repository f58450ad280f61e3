"""What a step carries: which requests take part, with which rows, and how the rows are packed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ..core import Pack, Segment, Visibility
from ..tree.grow import root_tree
from ..tree.layout import visibility
from .costs import Load
from .request import Job, Request
from .scheduler import admit
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


def _load(jobs: list[Job]) -> Load:
    """What the step carries whatever the policies choose: one root per round, all prefill rows."""
    rounds = [job for job in jobs if job.is_round]
    context = sum(job.request.context_len for job in rounds) // max(1, len(rounds))
    rows = sum(len(job.token_ids) for job in jobs)
    return Load(rows, context, max(1, len(rounds)), has_prefill=len(rounds) < len(jobs))


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
