"""The demo: a few bundled prompts under several policies, compared with plain decoding in the same engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Protocol

from ..certify.verdict import Same, compare_output, summarise
from ..core import RoundRecord
from ..errors import UsageError
from ..policy import POLICIES
from .plan import CHAIN, PLAIN, BenchRow, fixed_row
from .stats import ratio

COST_AWARE = tuple(name for name, policy in POLICIES.items() if policy.needs_costs)
WARM_UP_TOKENS = 8


class DemoResult(Protocol):
    """What the demo reads of a generation."""

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def decode_s(self) -> float: ...
    @property
    def rounds(self) -> Sequence[RoundRecord]: ...


class DemoCodec(Protocol):
    """What the demo needs of the text layer."""

    def encode(self, prompt: str) -> list[int]: ...


class DemoEngine(Protocol):
    """What the demo needs of an engine."""

    @property
    def codec(self) -> DemoCodec | None: ...
    @property
    def dtype_name(self) -> str: ...
    def generate(self, prompts: Sequence[str], **options: Any) -> Sequence[DemoResult]: ...
    def top_two_gap(self, prompt_ids: Sequence[int], output_ids: Sequence[int], /) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A bundled prompt."""

    category: str
    """maths, code or chat."""
    prompt: str


DEMO_ROWS = (
    BenchRow(PLAIN, PLAIN),
    BenchRow(CHAIN, CHAIN),
    *(fixed_row(budget) for budget in (8, 16, 32)),
    *(BenchRow(name, name) for name in COST_AWARE),
)


@dataclass(frozen=True, slots=True)
class DemoLine:
    """Measured results of one row over all prompts. None where nothing was measured or where it would mislead."""

    label: str
    tokens_per_s: float | None
    """(output tokens - 1) over decode seconds, both summed over the prompts; prefill is outside."""
    over_plain: float | None
    """Speed-up over `ar`; None when the outputs differ beyond near-ties."""
    over_chain: float | None
    """Speed-up over `chain`; None when the outputs differ beyond near-ties."""
    mean_committed: float | None
    mean_rows: float | None
    same_output: str
    near_ties: int
    """Prompts whose output leaves the plain one at a near-tie."""
    prompts: int


def demo_prompts() -> list[DemoPrompt]:
    """The bundled prompts: two each of maths, code and chat."""
    lines = files("draftwood").joinpath("data", "demo_prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [DemoPrompt(**json.loads(line)) for line in lines]


def run_demo(
    engine: DemoEngine,
    rows: Sequence[BenchRow],
    prompts: Sequence[DemoPrompt],
    max_tokens: int,
    advance: Callable[[], None] = lambda: None,
) -> list[DemoLine]:
    """Decode every prompt greedily under every row and compare; one of the rows is `ar`.

    The rows take turns on each prompt, starting with another row each time, so that a machine that slows down slows
    all of them; a short warm-up of every row is not counted. `advance` is called after each counted generation.
    """
    codec = engine.codec
    if codec is None:
        raise UsageError("the demo needs an engine with a tokenizer")
    for row in rows:
        engine.generate([prompts[0].prompt], policy=row.policy, max_tokens=WARM_UP_TOKENS, **row.options)
    results: dict[str, list[DemoResult]] = {row.label: [] for row in rows}
    for number, prompt in enumerate(prompts):
        start = number % len(rows)
        for row in [*rows[start:], *rows[:start]]:
            generations = engine.generate([prompt.prompt], policy=row.policy, max_tokens=max_tokens, **row.options)
            results[row.label].append(generations[0])
            advance()
    plain = results[PLAIN]
    prompt_ids = [codec.encode(prompt.prompt) for prompt in prompts]
    verdicts = {
        label: [
            compare_output(result.token_ids, reference.token_ids, ids, engine.dtype_name, engine.top_two_gap)
            for result, reference, ids in zip(generations, plain, prompt_ids, strict=True)
        ]
        for label, generations in results.items()
    }
    return [demo_line(label, results, verdicts[label], engine.dtype_name) for label in results]


def demo_line(
    label: str, results: Mapping[str, Sequence[DemoResult]], verdicts: Sequence[Same], dtype_name: str
) -> DemoLine:
    """Reduce the generations of one row to its line of the table."""
    own = results[label]
    rounds = [record for result in own for record in result.rounds]
    verdict = summarise(verdicts, dtype_name)
    speed = tokens_per_s(own)
    comparable = verdict is not Same.DIFFERENT
    return DemoLine(
        label=label,
        tokens_per_s=speed,
        over_plain=ratio(speed, tokens_per_s(results[PLAIN])) if comparable else None,
        over_chain=ratio(speed, tokens_per_s(results.get(CHAIN, ()))) if comparable else None,
        mean_committed=ratio(sum(record.committed for record in rounds), len(rounds)),
        mean_rows=ratio(sum(record.rows for record in rounds), len(rounds)),
        same_output=verdict.value,
        near_ties=list(verdicts).count(Same.NEAR_TIE),
        prompts=len(own),
    )


def tokens_per_s(results: Sequence[DemoResult]) -> float | None:
    """Decoded tokens per second: the token that prefill yields is outside on both sides; None without rounds."""
    tokens = sum(len(result.token_ids) - 1 for result in results)
    return ratio(tokens, sum(result.decode_s for result in results)) if tokens else None
