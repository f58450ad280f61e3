"""Which requests run: admission in order of arrival, and retirement."""

from __future__ import annotations

from ..errors import PoolExhaustedError
from .request import Request
from .state import EngineState

# Rows set aside for a tree at admission; a larger tree extends the request's extents when it comes.
EXPECTED_TREE_ROWS = 65


def admit(state: EngineState) -> None:
    """Move waiting requests to the running ones while there is room, first come first served."""
    while state.waiting and len(state.running) < state.config.max_requests:
        request = state.waiting[0]
        tokens = len(request.prompt_ids) + request.limits.max_tokens
        rows = min(tokens, state.target.spec.context_limit) + min(request.policy.max_nodes + 1, EXPECTED_TREE_ROWS)
        try:
            state.pool.open(request.id, rows)
        except PoolExhaustedError:
            if not state.running:
                raise
            return
        state.running.append(state.waiting.pop(0))


def finish(state: EngineState, request: Request) -> None:
    """Release everything that a running request owns."""
    state.running.remove(request)
    state.pool.release(request.id)
    if request.policy.drafts and state.drafter is not None:
        state.drafter.release(request.id)
