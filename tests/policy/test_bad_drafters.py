"""Drafters that are no good: `auto` must cost next to nothing, and must come back when they turn good again."""

from __future__ import annotations

import numpy as np
import pytest
from round_world import SHAPES, Driver, MadeTree, Played, made_costs, make_text, make_tree
from test_auto_simulation import profile_of

from draftwood.policy import make_policy

GOOD_UNTIL, LIMIT = 200, 2_000
TEXT = make_text(seed=5, num_tokens=LIMIT, stretch=20, pool=60)


def uniform_tree() -> MadeTree:
    """A drafter that knows nothing: every token of a vocabulary of 49,152 alike."""
    return make_tree(np.full((15, 8), 1 / 49152))


def confident_tree() -> MadeTree:
    """A drafter that is sure of a chain."""
    return make_tree(np.column_stack([np.full(15, 0.95), np.full((15, 7), 0.005)]))


def decode(bad: MadeTree, bad_from: int, bad_until: int, shape: str, draft_s: float, **options: object) -> list[Played]:
    """Play LIMIT tokens; between the two positions the bad drafter's tree is offered and nothing of it is right."""
    costs = made_costs(shape, draft_s)
    driver = Driver(make_policy("auto", profile=profile_of(costs, TEXT), **options), seed=1)
    played: list[Played] = []
    tokens = 0
    while tokens < LIMIT:
        is_bad = bad_from <= tokens < bad_until
        offered = bad if is_bad else TEXT.pool[TEXT.tree_at[tokens]]
        played.append(driver.play(offered, costs, path=[0] if is_bad else None))
        tokens += played[-1].committed
    return played


def rounds_from(played: list[Played], position: int) -> list[Played]:
    """The rounds that start at or behind a token position."""
    starts = np.cumsum([0] + [item.committed for item in played[:-1]])
    return [item for item, start in zip(played, starts, strict=True) if start >= position]


CASES = [("uniform", 0), ("confident", 0), ("confident", GOOD_UNTIL)]
TREES = {"uniform": uniform_tree(), "confident": confident_tree()}


@pytest.mark.parametrize("draft_s", [0.001, 0.003, 0.01])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "bad_from"), CASES)
def test_within_five_percent_of_plain(kind: str, bad_from: int, shape: str, draft_s: float) -> None:
    played = rounds_from(decode(TREES[kind], bad_from, LIMIT, shape, draft_s), bad_from)[40:240]
    assert len(played) == 200
    plain_s = made_costs(shape, draft_s).plain_s
    per_token_s = sum(item.seconds for item in played) / sum(item.committed for item in played)
    assert per_token_s <= 1.05 * plain_s
    assert any(item.drafted for item in played), "it keeps probing"


def test_without_skipping_a_confident_drafter_is_a_disaster() -> None:
    """The negative control of the test above."""
    played = decode(TREES["confident"], 0, LIMIT, "smooth", 0.003, skipping=False)[40:240]
    assert sum(item.seconds for item in played) > 1.3 * len(played) * made_costs("smooth").plain_s


@pytest.mark.parametrize("shape", SHAPES)
def test_a_drafter_that_turns_good_again_is_used_again(shape: str) -> None:
    played = decode(TREES["confident"], 200, 500, shape, 0.003)
    while_bad = rounds_from(played, 300)[:150]
    assert np.mean([item.drafted for item in while_bad]) < 0.1
    after = rounds_from(played, 700)
    assert np.mean([item.drafted for item in after]) > 0.9
    per_token_s = sum(item.seconds for item in after) / sum(item.committed for item in after)
    assert per_token_s < 0.75 * made_costs(shape).plain_s


def test_calibration_shrinks_the_trees_of_a_confident_drafter() -> None:
    plain, calibrated = (
        [
            item.num_nodes
            for item in decode(TREES["confident"], 0, LIMIT, "smooth", 0.003, skipping=False, calibration=on)
        ]
        for on in (False, True)
    )
    assert min(plain) >= 15
    assert max(calibrated) <= plain[0], "it never makes matters worse on the way"
    assert max(calibrated[100:]) <= 2
