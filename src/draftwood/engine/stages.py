"""The stages that `step` calls, in order. Each is a function of the engine state and the jobs of this step.

Drafting, growing, choosing and verifying are here; `jobs` makes what they work on, `outcome` ends the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ..core import DraftBlock, Pack
from ..cost.rounds import RoundCosts
from ..draft.base import Drafter, DraftRequest
from ..errors import CostError, NonFiniteLogitsError
from ..policy import Policy
from ..policy.batch import Member, allocate, draft_wishes
from ..tree.grow import grow as grow_tree
from ..tree.layout import positions
from .jobs import Forward, pack, schedule
from .outcome import commit, deliver, walk
from .request import Job, Request
from .state import EngineState


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


def verify(state: EngineState, packed: Pack) -> Forward:
    """One target forward."""
    taps = state.tap_buffer(len(packed.tap_rows)) if len(packed.tap_rows) else None
    layers = state.tap_layers if taps is not None else ()
    return Forward(packed, state.target.forward(packed, state.pool, layers, taps), taps)


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


def _costs(state: EngineState, policy: Policy, extra_rows: int) -> RoundCosts:
    if state.costs is None or state.load is None:
        raise CostError(f"policy {policy.name} needs a cost profile: give one with --profile, or measure it first")
    return state.costs.round_costs(state.load, policy, extra_rows=extra_rows)
