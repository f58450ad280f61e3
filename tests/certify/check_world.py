"""A tiny pair whose drafter knows the plain texts, and ways to break it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from draftwood.engine.jobs import Forward
from families import VOCAB, family, healthy
from stub_drafter import KnowingDrafter

from draftwood.engine import Engine, EngineConfig
from draftwood.engine.requests import Job
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

    def commit(self, request: int, taps: torch.Tensor) -> None:
        if request not in self.texts:
            self.know(request, self.by_length.get(len(taps), []), len(taps))
        super().commit(request, taps)

    def _check(self, request: object) -> None:
        """Sampled texts are other than the known ones, and their drafts may be wrong."""


def engine_for(prompts: tuple[Unit, ...], dtype: str = "float32", target: HFTarget | None = None) -> Engine:
    made = family("llama", dtype)
    texts = {len(unit.prompt_ids): [*unit.prompt_ids, *TEXTS[unit.prompt_ids]] for unit in prompts}
    return Engine(target or made.target, LengthDrafter(texts), config=EngineConfig(prefill_chunk=64))


def walking(engine: Engine, change: Callable[[list[Job]], None]) -> Engine:
    """The engine with `change(jobs)` behind its walk."""

    def changed(stages: Stages) -> Stages:
        def walk(jobs: list[Job], forward: Forward) -> None:
            stages.walk(jobs, forward)
            change(jobs)

        return replace(stages, walk=walk)

    engine._stages = changed(engine._stages)
    return engine


def accept_one_more(jobs: list[Job]) -> None:
    """A broken verifier: accepts the best child of the last node of the path although the target did not choose it."""
    for job in jobs:
        if job.is_round and job.tree is not None and job.new_tokens:
            children = np.flatnonzero(job.tree.parent == job.path[-1])
            if len(children):
                job.path = np.append(job.path, children[0])
                job.new_tokens = (*job.new_tokens[:-1], int(job.tree.token[children[0]]), job.new_tokens[-1])
