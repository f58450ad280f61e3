"""One step of the engine: every running request advances by a prefill chunk or a round.

The same code serves one request and many, prefill, plain decoding and trees; what differs is data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any

from . import outcome, round, schedule
from .requests import Request
from .state import EngineState


@dataclass(frozen=True, slots=True)
class Stages:
    """The stage functions that `step` calls; `timed` and recorders wrap them."""

    schedule: Callable[..., Any] = schedule.schedule
    wish: Callable[..., Any] = round.wish
    draft: Callable[..., Any] = round.draft
    choose: Callable[..., Any] = round.choose
    pack: Callable[..., Any] = round.pack
    verify: Callable[..., Any] = round.verify
    walk: Callable[..., Any] = outcome.walk
    commit: Callable[..., Any] = outcome.commit
    deliver: Callable[..., Any] = outcome.deliver


STAGE_NAMES = tuple(item.name for item in fields(Stages))


def step(state: EngineState, stages: Stages) -> list[Request]:
    """Advance all running requests and return those that took part.

    Mutates `state`: pools, requests, policy states.
    """
    jobs = stages.schedule(state)
    if not jobs:
        return []
    drafting = stages.wish(state, jobs)
    forest = stages.draft(state, drafting)
    forest = stages.choose(state, jobs, drafting, forest)
    batch = stages.pack(state, jobs, forest)
    forward = stages.verify(state, batch)
    verdicts = stages.walk(jobs, forest, forward)
    stages.commit(state, jobs, batch, forward, verdicts)
    advanced: list[Request] = stages.deliver(state, jobs, forest, batch, verdicts)
    return advanced


def timed(
    stages: Stages,
    seconds: dict[str, float],
    names: Sequence[str] = STAGE_NAMES,
    clock: Callable[[], float] = perf_counter,
    wait: Callable[[], None] = lambda: None,
) -> Stages:
    """The same stages, those of `names` adding their seconds to `seconds[name]`.

    `wait` is called at the end of each, to let a device finish.
    """

    def clocked(name: str) -> Any:
        stage = getattr(stages, name)

        def run(*args: Any) -> Any:
            start_s = clock()
            result = stage(*args)
            wait()
            seconds[name] = seconds.get(name, 0.0) + clock() - start_s
            return result

        return run

    return replace(stages, **{name: clocked(name) for name in names})
