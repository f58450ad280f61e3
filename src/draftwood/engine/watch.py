"""Looking inside steps without disturbing them: what recorders and pages see of every round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..batch import Batch
from ..core import DraftTree, Forest, RoundRecord, Verdicts
from .requests import Request
from .schedule import Job
from .state import EngineState
from .step import Stages


class SeenRound(NamedTuple):
    """A round that decided something."""

    request: Request
    position: int
    """Index of the pending token in the request's output, before the round."""
    context: int
    """L before the round."""
    tree: DraftTree
    """What was verified."""
    path: np.ndarray
    """(committed,) int64 nodes of the accepted path, the root first."""
    pending: int
    """The token that the target decided behind the path."""
    number: int
    """Index of its record in the request's rounds."""
    draft: tuple[Forest, int] | None
    """What the drafter proposed, before it was cut, and which of its trees is this request's; None without a draft."""

    @property
    def record(self) -> RoundRecord:
        """Its record; measured seconds are there once the step has ended."""
        return self.request.rounds[self.number]


def watch_rounds(keep: Callable[[SeenRound], None]) -> Callable[[Stages], Stages]:
    """A change of stages for `Loop.watching`: every recorded round goes to `keep`; one that was set back does not."""

    def change(stages: Stages) -> Stages:
        drafts: dict[int, tuple[Forest, int]] = {}

        def draft(state: EngineState, drafting: list[Job]) -> Any:
            forest = stages.draft(state, drafting)
            drafts.clear()
            drafts.update({id(job): (forest, at) for at, job in enumerate(drafting) if job.asked is not None})
            return forest

        def deliver(
            state: EngineState, jobs: list[Job], forest: Forest, batch: Batch, verdicts: Verdicts
        ) -> list[Request]:
            judged = [job for job in jobs if job.judged]
            before = [(len(job.request.token_ids) - 1, len(job.request.rounds)) for job in judged]
            requests: list[Request] = stages.deliver(state, jobs, forest, batch, verdicts)
            for tree, (job, (position, number)) in enumerate(zip(judged, before, strict=True)):
                if len(job.request.rounds) > number:
                    path, pending = verdicts.path(tree, forest), int(verdicts.pending[tree])
                    draft, context = drafts.get(id(job)), int(job.pos[0])
                    keep(SeenRound(job.request, position, context, forest[tree], path, pending, number, draft))
            return requests

        return replace(stages, draft=draft, deliver=deliver)

    return change
