"""What a step decided: the walk down the trees, what becomes prefix, what is delivered and recorded."""

from __future__ import annotations

from itertools import accumulate, compress
from time import perf_counter

import numpy as np
import torch

from ..batch import Batch
from ..core import DraftTree, Forest, RoundRecord, Verdicts
from ..draft.base import Committed
from ..errors import DraftwoodError
from ..policy import RoundOutcome
from ..verify import RowsChooser, walk_forest
from .requests import Request
from .round import Forward
from .schedule import Job, finish
from .state import EngineState, StepFacts


def walk(jobs: list[Job], forest: Forest, forward: Forward) -> Verdicts:
    """Let the target decide all judged trees."""
    judged = [job for job in jobs if job.judged]
    root_pos = np.array([job.pos[-1] for job in judged], np.int64)
    return walk_forest(forest, forward.logits, RowsChooser([job.request.sampling for job in judged]), root_pos)


def commit(state: EngineState, jobs: list[Job], batch: Batch, forward: Forward, verdicts: Verdicts) -> None:
    """Make the accepted rows prefix, in the target's pool and in the drafter's context."""
    rows = batch.logit_rows[verdicts.rows]
    if not all(job.is_round for job in jobs):
        rows = np.flatnonzero(_accepted(jobs, batch, verdicts, rows))
    counts = state.pool.commit(batch, rows)
    for job, count in zip(jobs, counts, strict=True):
        job.request.committed += count
    taps = forward.taps
    if state.drafter is None or not len(batch.tap_rows):
        return
    drafting = [job.request.policy.drafts for job in jobs]
    # Accepted rows as rows of the taps; often everything is tapped.
    kept = rows if len(batch.tap_rows) == batch.num_rows else np.flatnonzero(np.isin(batch.tap_rows, rows))
    if taps is not None and len(kept) < len(batch.tap_rows):
        taps = taps.index_select(0, torch.from_numpy(kept).to(taps.device))
    state.drafter.commit(
        Committed(
            requests=tuple(compress(batch.requests, drafting)),
            offsets=np.array([0, *accumulate(compress(counts, drafting))], np.int64),
            token_ids=batch.token_ids[batch.tap_rows[kept]],
            taps=taps,
        )
    )


def deliver(state: EngineState, jobs: list[Job], forest: Forest, batch: Batch, verdicts: Verdicts) -> list[Request]:
    """Append the decided tokens up to the first stop or cap, record the rounds, retire what has ended."""
    now_s = perf_counter()
    costly = state.load is None or state.load.drafts
    drafted = sum(job.asked is not None for job in jobs) if costly else 0
    predicted_s = _predicted_s(state, batch.num_rows, drafted) if any(job.is_round for job in jobs) else None
    recorded, tree = [], 0
    for job in jobs:
        request = job.request
        if job.judged:
            if request.error is None and _decided(
                state, job, forest[tree], verdicts, tree, verdicts.path(tree, forest), predicted_s
            ):
                recorded.append(request)
            tree += 1
        if request.token_ids and request.first_token_s is None:
            request.first_token_s = now_s
        if request.error is not None:
            finish(state, request, "error", request.error)
        elif request.finish_reason is None and request.committed >= state.context_limit and request.token_ids:
            finish(state, request, "length")
    rounds = [job.request for job in jobs if job.is_round]
    complete = len(rounds) == len(jobs) == len(recorded)
    state.facts = StepFacts(batch.num_rows, drafted, [item for item in recorded if item in rounds], complete)
    return [job.request for job in jobs]


def _accepted(jobs: list[Job], batch: Batch, verdicts: Verdicts, decided: np.ndarray) -> np.ndarray:
    """(T,) bool: `decided` rows, and those of prompts, unless what they decide is at fault."""
    accepted = np.zeros(batch.num_rows, bool)
    accepted[decided] = True
    tree = 0
    for index, job in enumerate(jobs):
        if not job.is_round and not (job.judged and tree in verdicts.faults):
            accepted[batch.rows(index)] = True
        tree += job.judged
    return accepted


def _decided(
    state: EngineState,
    job: Job,
    tree: DraftTree,
    verdicts: Verdicts,
    index: int,
    path: np.ndarray,
    predicted_s: float | None,
) -> bool:
    """Take one verdict to its request; returns whether something was decided.

    A drafted row that is not finite spoils rows that do not see it, for a masked NaN is still 0 * NaN in a product.
    Plain decoding never met that row, so only a round of the root alone tells whether the text itself is at fault.
    """
    request = job.request
    if index in verdicts.faults:
        if job.is_round and tree.num_nodes:
            request.plain_next = True
        else:
            request.error = verdicts.faults[index]
        return False
    request.plain_next = False
    context = request.committed - len(path)
    tokens = (*(int(token) for token in tree.token[path[1:]]), int(verdicts.pending[index]))
    delivered = _append(state, request, tokens)
    if job.is_round:
        _record(state, job, tree, path, context=context, delivered=delivered, predicted_s=predicted_s)
    return True


def _append(state: EngineState, request: Request, tokens: tuple[int, ...]) -> int:
    """Scan in order; the first event wins. Returns how many tokens were delivered."""
    for delivered, token in enumerate(tokens, start=1):
        request.token_ids.append(token)
        if token in request.limits.end_ids:
            finish(state, request, "stop")
        elif request.remaining_tokens == 0:
            finish(state, request, "length")
        if request.finished:
            return delivered
    return len(tokens)


def _predicted_s(state: EngineState, rows: int, drafted: int) -> float | None:
    """Predicted seconds of this step under the profile; None without one."""
    if state.costs is None or state.load is None:
        return None
    return state.costs.predicted_s(state.load, rows, drafted)


def _record(
    state: EngineState,
    job: Job,
    tree: DraftTree,
    path: np.ndarray,
    *,
    context: int,
    delivered: int,
    predicted_s: float | None,
) -> None:
    """Keep the round and let the policy learn from it."""
    request = job.request
    factors = state.costs.factors if state.costs is not None else None
    record = RoundRecord(
        rows=tree.num_rows,
        committed=delivered,
        drafted=job.asked is not None,
        context=context,
        accepted=len(path) - 1,
        predicted_s=predicted_s,
        cost_factors=None if factors is None else (factors.base, factors.slope, factors.draft),
    )
    request.rounds.append(record)
    try:
        memory = request.policy.observe(state.policy_state(request), RoundOutcome(record, tree, path, job.costs))
    except DraftwoodError as error:
        request.error = error
        return
    state.remember(request, memory)
