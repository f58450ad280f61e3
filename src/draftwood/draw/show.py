"""One generation, looked at round by round: the trees as they were verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..core import DraftBlock
from ..engine import Engine, Generation, RequestOptions
from ..engine.request import Job
from ..engine.stages import Stages
from ..engine.state import EngineState
from ..errors import UsageError
from ..models.text import TextCodec
from ..policy import Policy
from .views import RoundView, tree_view


class _Round(NamedTuple):
    job: Job
    context: int


@dataclass(frozen=True, slots=True)
class ShownGeneration:
    """A generation with a view of every round."""

    generation: Generation
    first_text: str
    """What the token of prefill added."""
    rounds: list[RoundView]

    def round(self, index: int) -> RoundView:
        """Round `index`, counted from 0; raises UsageError, naming the rounds there are."""
        if not self.rounds:
            raise UsageError("the whole output came with the prefill: there is no round to show")
        if not 0 <= index < len(self.rounds):
            raise UsageError(f"round {index}: expected 0 to {len(self.rounds) - 1}")
        return self.rounds[index]


def watch_generation(
    engine: Engine, prompt_ids: Sequence[int], policy: Policy, options: RequestOptions
) -> ShownGeneration:
    """Decode one prompt and keep every tree. Raises the engine's error of a request that fails."""
    seen: list[_Round] = []

    def change(stages: Stages) -> Stages:
        def grow(state: EngineState, jobs: list[Job], block: DraftBlock | None) -> None:
            stages.grow(state, jobs, block)
            seen.extend(_Round(job, job.request.context_len) for job in jobs if job.is_round)

        return replace(stages, grow=grow)

    with engine.replacing_stages(change):
        request = engine.submit(prompt_ids, policy, options)
        try:
            while not request.finished:
                engine.step(timing=True)
        finally:
            engine.abort(request)
    if request.error is not None:
        raise request.error
    return _views(engine.result(request), seen, engine.codec)


def _views(generation: Generation, seen: list[_Round], codec: TextCodec | None) -> ShownGeneration:
    text_of = token_text(codec)
    push = codec.stream().push if codec is not None else lambda ids: "".join(text_of(token) for token in ids)
    first_text = push(generation.token_ids[:1])
    rounds, start = [], 1
    for index, (item, record) in enumerate(zip(seen, generation.rounds, strict=True)):
        tree, job = item.job.tree, item.job
        assert tree is not None
        ids = generation.token_ids[start : start + record.committed]
        start += record.committed
        rounds.append(
            RoundView(
                index=index,
                text=push(ids),
                rows=record.rows,
                committed=record.committed,
                drafted=record.drafted,
                context=item.context,
                seconds=sum(record.seconds.values()) or None,
                tree=tree_view(tree, job.path, text_of, job.new_tokens[-1]),
            )
        )
    return ShownGeneration(generation, first_text, rounds)


def token_text(codec: TextCodec | None) -> Callable[[int], str]:
    """How one token id is shown: its text, special tokens too, or its number where it has none."""

    def text_of(token_id: int) -> str:
        text: str = codec.tokenizer.decode([token_id]) if codec is not None else ""
        return text or f"<{token_id}>"

    return text_of
