"""Which requests run: admission in order of arrival, and retirement."""

from __future__ import annotations

from ..errors import PoolExhaustedError
from .request import Request
from .state import EngineState


def admit(state: EngineState) -> None:
    """Move waiting requests to the running ones while there is room, first come first served."""
    while state.waiting and len(state.running) < state.config.max_requests:
        request = state.waiting[0]
        try:
            state.pool.open(request.id, most_rows(state, request))
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


def most_rows(state: EngineState, request: Request) -> int:
    """Pool rows that the request can ever need, so that an admitted one never waits for more."""
    tokens = len(request.prompt_ids) + request.limits.max_tokens
    depth = request.block_size - 1
    nodes = depth if request.policy.candidates == 1 else request.policy.max_nodes
    return min(tokens, state.target.spec.context_limit) + min(nodes, request.policy.max_nodes) + 1
