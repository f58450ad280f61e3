"""The demo's measuring, on an engine that plays back made-up generations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from draftwood.bench.demo import DEMO_ROWS, WARM_UP_TOKENS, DemoPrompt, demo_prompts, run_demo
from draftwood.bench.plan import BenchRow
from draftwood.core import RoundRecord

ROWS = (BenchRow("ar", "ar"), BenchRow("chain", "chain"), BenchRow("ddtree 8", "ddtree", {"budget": 8}))
PROMPTS = [DemoPrompt("maths", "one"), DemoPrompt("code", "two")]


def record(rows: int, committed: int) -> RoundRecord:
    return RoundRecord(rows=rows, committed=committed, drafted=rows > 1, context=0, accepted=committed - 1)


@dataclass
class Made:
    token_ids: list[int]
    decode_s: float
    rounds: list[RoundRecord]


class Codec:
    def encode(self, prompt: str) -> list[int]:
        return [len(prompt)]


class Player:
    """Five tokens per prompt: `ar` one a round and 4 s, the others two a round of the given rows and seconds."""

    codec = Codec()
    dtype_name = "bfloat16"

    def __init__(self, gap: float = 1.0, changed: Sequence[str] = ()) -> None:
        self.gap = gap
        self.changed = changed
        self.calls: list[tuple[str, str, int]] = []

    def generate(self, prompts: Sequence[str], *, policy: str, max_tokens: int, **options: Any) -> list[Made]:
        self.calls.append((prompts[0], policy, max_tokens))
        ids = [1, 2, 3, 9 if policy == "ddtree" and prompts[0] in self.changed else 4, 5]
        if policy == "ar":
            return [Made(ids, 4.0, [record(1, 1)] * 4)]
        rows = 1 + options.get("budget", 7)
        return [Made(ids, 2.0 if policy == "chain" else 1.0, [record(rows, 2)] * 2)]

    def top_two_gap(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[float, float]:
        assert (list(prompt_ids), list(output_ids)) == ([3], [1, 2, 3])
        return self.gap, 1.0


def test_numbers_by_hand() -> None:
    ar, chain, tree = run_demo(Player(), ROWS, PROMPTS, 64)
    assert (ar.tokens_per_s, chain.tokens_per_s, tree.tokens_per_s) == (1.0, 2.0, 4.0)
    assert (ar.over_plain, chain.over_plain, tree.over_plain) == (1.0, 2.0, 4.0)
    assert (ar.over_chain, chain.over_chain, tree.over_chain) == (0.5, 1.0, 2.0)
    assert (ar.mean_committed, chain.mean_committed, tree.mean_committed) == (1.0, 2.0, 2.0)
    assert (ar.mean_rows, chain.mean_rows, tree.mean_rows) == (1.0, 8.0, 9.0)
    assert {line.same_output for line in (ar, chain, tree)} == {"identical"}
    assert tree.prompts == 2


def test_rows_take_turns_and_warm_up_is_not_counted() -> None:
    player = Player()
    advanced: list[None] = []
    run_demo(player, ROWS, PROMPTS, 64, lambda: advanced.append(None))
    assert player.calls == [
        ("one", "ar", WARM_UP_TOKENS), ("one", "chain", WARM_UP_TOKENS), ("one", "ddtree", WARM_UP_TOKENS),
        ("one", "ar", 64), ("one", "chain", 64), ("one", "ddtree", 64),
        ("two", "chain", 64), ("two", "ddtree", 64), ("two", "ar", 64),
    ]  # fmt: skip
    assert len(advanced) == 6


def test_near_tie_is_counted() -> None:
    tree = run_demo(Player(gap=0.001, changed=["one"]), ROWS, PROMPTS, 64)[2]
    assert (tree.same_output, tree.near_ties, tree.over_plain) == ("near-tie", 1, 4.0)


def test_no_speed_up_is_claimed_for_another_output() -> None:
    tree = run_demo(Player(gap=1.0, changed=["one"]), ROWS, PROMPTS, 64)[2]
    assert (tree.same_output, tree.over_plain, tree.over_chain) == ("different", None, None)
    assert tree.tokens_per_s == 4.0


def test_answers_of_one_token_divide_by_nothing() -> None:
    class Short(Player):
        def generate(self, prompts: Sequence[str], **_: Any) -> list[Made]:
            return [Made([7], 0.0, [])]

    for line in run_demo(Short(), ROWS, PROMPTS, 64):
        assert line.tokens_per_s is line.over_plain is line.mean_committed is line.mean_rows is None
        assert line.same_output == "identical"


def test_bundled_prompts_and_rows() -> None:
    assert Counter(prompt.category for prompt in demo_prompts()) == {"maths": 2, "code": 2, "chat": 2}
    assert all(prompt.prompt == prompt.prompt.strip() != "" for prompt in demo_prompts())
    assert [row.label for row in DEMO_ROWS] == [
        *("ar", "chain", "ddtree 8", "ddtree 16", "ddtree 32"),
        *("cast", "caddtree", "ratio", "auto"),
    ]


def test_engine_without_a_tokenizer() -> None:
    from draftwood.errors import UsageError

    class Bare(Player):
        codec = None  # type: ignore[assignment]

    with pytest.raises(UsageError, match="tokenizer"):
        run_demo(Bare(), ROWS, PROMPTS, 64)
