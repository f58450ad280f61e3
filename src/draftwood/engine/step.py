"""One step of the engine: every running request advances by a prefill chunk or a round.

The same code serves one request and many, prefill, plain decoding and trees; what differs is data.
"""

from __future__ import annotations

from .request import Request
from .stages import Stages
from .state import EngineState


def step(state: EngineState, stages: Stages) -> list[Request]:
    """Advance all running requests and return those that took part.

    Mutates `state`: pools, requests, policy states.
    """
    jobs = stages.schedule(state)
    block = stages.draft(state, jobs)
    stages.grow(state, jobs, block)
    stages.choose(state, jobs)
    pack = stages.pack(state, jobs)
    forward = stages.verify(state, pack)
    stages.walk(jobs, forward)
    stages.commit(state, jobs, forward)
    return stages.deliver(state, jobs)
