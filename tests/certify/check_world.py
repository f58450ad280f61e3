"""A tiny pair whose drafter knows the plain texts, and ways to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from families import VOCAB, family, healthy
from stub_drafter import KnowingDrafter

from draftwood.core import Forest, Verdicts
from draftwood.draft.base import Committed
from draftwood.engine import Engine, EngineConfig
from draftwood.engine.round import Forward
from draftwood.engine.schedule import Job
from draftwood.engine.step import Stages
from draftwood.models.hf import HFTarget
from draftwood.prompts.units import Unit

TOKENS = 24
Change = Callable[[list[Job], Forest, Verdicts], Verdicts]

TEXTS: dict[tuple[int, ...], list[int]] = {}
"""Plain texts of the prompts that `units` has made."""


@cache
def units(count: int = 4, tokens: int = TOKENS) -> tuple[Unit, ...]:
    made = []
    for index in range(count):
        prompt, text = healthy("llama", "float32", 5 + index, tokens)
        TEXTS[prompt] = text
        made.append(Unit("toy", f"p{index}", prompt))
    return tuple(made)


class LengthDrafter(KnowingDrafter):
    """Knows the plain text of a request by the length of its prompt; guesses on other prompts."""

    def __init__(self, texts: dict[int, list[int]]) -> None:
        super().__init__(VOCAB)
        self.by_length = texts

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        self.know(request, self.by_length.get(len(token_ids), []), len(token_ids))
        self.taps[request], self.tokens[request] = [], []

    def commit(self, committed: Committed) -> None:
        assert committed.taps is not None
        offsets = committed.offsets.tolist()
        for request, start, stop in zip(committed.requests, offsets, offsets[1:], strict=False):
            self.taps[request].append(committed.taps[start:stop].clone())

    def _check(self, request: object) -> None:
        """Sampled texts are other than the known ones, and their drafts may be wrong."""


def engine_for(prompts: tuple[Unit, ...], dtype: str = "float32", target: HFTarget | None = None) -> Engine:
    made = family("llama", dtype)
    texts = {len(unit.prompt_ids): [*unit.prompt_ids, *TEXTS[unit.prompt_ids]] for unit in prompts}
    return Engine(target or made.target, LengthDrafter(texts), config=EngineConfig(prefill_chunk=64))


def walking(engine: Engine, change: Change) -> Engine:
    """The engine with `change(jobs, forest, verdicts)` behind its walk; `jobs` are those that were judged."""

    def changed(stages: Stages) -> Stages:
        def walk(jobs: list[Job], forest: Forest, forward: Forward) -> Verdicts:
            return change([job for job in jobs if job.judged], forest, stages.walk(jobs, forest, forward))

        return replace(stages, walk=walk)

    engine.loop._stages = changed(engine.loop._stages)
    return engine


def accept_one_more(jobs: list[Job], forest: Forest, verdicts: Verdicts) -> Verdicts:
    """A broken verifier: accepts the best child of the last node of the path although the target did not choose it."""
    paths = [verdicts.path(index, forest) for index in range(len(forest))]
    for index, job in enumerate(jobs):
        below = np.flatnonzero(forest[index].parent == paths[index][-1])
        if job.is_round and len(below):
            paths[index] = np.append(paths[index], below[0])
    offsets = np.cumsum([0, *(len(path) for path in paths)])
    rows = np.concatenate([path + start for path, start in zip(paths, forest.offsets, strict=False)])
    return replace(verdicts, offsets=offsets, rows=rows)
