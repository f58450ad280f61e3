"""A tiny pair whose drafter knows the plain texts, and ways to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from families import VOCAB, family, healthy
from stub_drafter import KnowingDrafter

from draftwood.core import Forest, Verdicts
from draftwood.engine import Engine, EngineConfig
from draftwood.engine.round import Forward
from draftwood.engine.schedule import Job
from draftwood.engine.step import Stages
from draftwood.models.hf import HFTarget
from draftwood.prompts.units import Unit

TOKENS = 24


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
        self.know(request, self.by_length.get(len(token_ids), token_ids.tolist()), len(token_ids))
        self.texts[request][: len(token_ids)] = token_ids.tolist()
        super().open(request, token_ids, rows)

    def _check_text(self, request: int, tokens: list[int]) -> None:
        """Sampled texts are other than the known ones."""

    def _check(self, request: object) -> None:
        """Sampled texts are other than the known ones, and their drafts may be wrong."""


def engine_for(prompts: tuple[Unit, ...], dtype: str = "float32", target: HFTarget | None = None) -> Engine:
    made = family("llama", dtype)
    texts = {len(unit.prompt_ids): [*unit.prompt_ids, *TEXTS[unit.prompt_ids]] for unit in prompts}
    return Engine(target or made.target, LengthDrafter(texts), config=EngineConfig(prefill_chunk=64))


def walking(engine: Engine, change: Callable[[list[Job], Forest, Verdicts], Verdicts]) -> Engine:
    """The engine with `change(jobs, forest, verdicts)` behind its walk."""

    def changed(stages: Stages) -> Stages:
        def walk(jobs: list[Job], forest: Forest, forward: Forward) -> Verdicts:
            return change(jobs, forest, stages.walk(jobs, forest, forward))

        return replace(stages, walk=walk)

    engine.loop._stages = changed(engine.loop._stages)
    return engine


def accept_one_more(jobs: list[Job], forest: Forest, verdicts: Verdicts) -> Verdicts:
    """A broken verifier: accepts the best child of the last node of a path although the target did not choose it."""
    rows = [verdicts.path(tree, forest) + forest.offsets[tree] for tree in range(len(forest))]
    for tree in range(len(forest)):
        if len(rows[tree]):
            last = int(rows[tree][-1] - forest.offsets[tree])
            below = np.flatnonzero(forest[tree].parent == last)
            rows[tree] = np.append(rows[tree], below[:1] + forest.offsets[tree])
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in rows])])
    return replace(verdicts, rows=np.concatenate(rows).astype(np.int64), offsets=offsets)
