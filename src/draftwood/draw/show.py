"""One generation, looked at round by round: the trees as they were verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..engine import Engine, RequestOutput, SamplingParams
from ..engine.watch import SeenRound, watch_rounds
from ..errors import UsageError
from ..models.text import TextCodec
from ..policy import Policy
from .views import RoundView, tree_view


@dataclass(frozen=True, slots=True)
class ShownGeneration:
    """A generation with a view of every round."""

    generation: RequestOutput
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
    engine: Engine, prompt_ids: Sequence[int], policy: Policy, options: SamplingParams
) -> ShownGeneration:
    """Decode one prompt and keep every tree. Raises the engine's error of a request that fails."""
    seen: list[SeenRound] = []
    with engine.loop.watching(watch_rounds(seen.append), timing=True):
        (request,) = engine.run([engine.make_request(prompt_ids, policy, options)])
    generation, text_of = engine.output(request), token_text(engine.codec)
    push = engine.codec.stream().push if engine.codec is not None else lambda ids: "".join(map(text_of, ids))
    first_text = push(generation.token_ids[:1])
    rounds, start = [], 1
    for index, item in enumerate(seen):
        record = item.record
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
                tree=tree_view(item.tree, item.path, text_of, item.pending),
            )
        )
    return ShownGeneration(generation, first_text, rounds)


def token_text(codec: TextCodec | None) -> Callable[[int], str]:
    """How one token id is shown: its text, special tokens too, or its number where it has none."""

    def text_of(token_id: int) -> str:
        text: str = codec.tokenizer.decode([token_id]) if codec is not None else ""
        return text or f"<{token_id}>"

    return text_of
