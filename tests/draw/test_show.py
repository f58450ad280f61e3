"""Views of a generation, round by round."""

from __future__ import annotations

import itertools

import pytest
from summing import SummingDrafter, SummingTarget, text_of

from draftwood.draw.show import watch_generation
from draftwood.engine import Engine, SamplingParams
from draftwood.errors import NonFiniteLogitsError
from draftwood.policy import make_policy

PROMPT = [5, 6, 7]
OPTIONS = SamplingParams(40, end_ids=frozenset())
POLICY = make_policy("ddtree", budget=6)


def spoiling(*numbers: int) -> SummingTarget:
    """Its forwards of these numbers, counted from 1, give NaN at the root."""
    calls = itertools.count(1)
    return SummingTarget(fault=lambda rows: [0] if next(calls) in numbers else [])


@pytest.mark.parametrize("spoilt", [(), (2,), (3, 6), (2, 4, 6, 8)])
def test_a_view_for_every_round_that_was_recorded(spoilt: tuple[int, ...]) -> None:
    target = spoiling(*spoilt)
    with Engine(target, SummingDrafter()) as engine:
        shown = watch_generation(engine, PROMPT, POLICY, OPTIONS)
    text, rounds = text_of(PROMPT, 40), shown.generation.rounds
    assert shown.generation.token_ids == text and target.forwards == 1 + len(rounds) + len(spoilt)
    assert [(view.index, view.rows, view.committed, view.drafted, view.context) for view in shown.rounds] == [
        (index, record.rows, record.committed, record.drafted, record.context) for index, record in enumerate(rounds)
    ]
    assert [view.rows for view in shown.rounds].count(1) >= len(spoilt), "a round that was set back is made plain"
    written = "".join([shown.first_text, *(view.text for view in shown.rounds)])
    assert written == "".join(f"<{token}>" for token in text)
    for view, record in zip(shown.rounds, rounds, strict=True):
        assert view.tree is not None and view.tree.num_rows == view.rows
        assert len(view.tree.accepted) == record.accepted + 1
        assert view.seconds == pytest.approx(sum(record.seconds.values())) and view.seconds > 0


def test_a_request_that_fails_raises_its_error() -> None:
    """Spoilt in a round of the root alone: the text itself is at fault."""
    with Engine(spoiling(2, 3), SummingDrafter()) as engine:
        with pytest.raises(NonFiniteLogitsError, match="logits that decide position 4 contain nan"):
            watch_generation(engine, PROMPT, POLICY, OPTIONS)
        assert watch_generation(engine, PROMPT, POLICY, OPTIONS).generation.token_ids == text_of(PROMPT, 40)
