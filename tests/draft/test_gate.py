"""When the costly part of a union is asked: by arithmetic, and on a made text with two kinds of passages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftwood.draft.gate import Gate

SHARE = 0.3


def taught(promised: float, cheap: int, extra: int, rounds: int) -> Gate:
    gate = Gate()
    for _ in range(rounds):
        gate.learn(promised, cheap, extra)
    return gate


def expected_after(value: float, prior: float, rounds: int) -> float:
    """A mean in which a round counts 0.97 of the one behind it, and two rounds brought `prior`."""
    weights = [0.97**age for age in range(rounds)]
    return (value * sum(weights) + 2.0 * prior) / (sum(weights) + 2.0)


@pytest.mark.parametrize(("promised", "cheap", "extra"), [(9.0, 8, 1), (3.0, 2, 2), (0.1, 0, 1)])
def test_asked_while_its_tokens_are_worth_its_seconds(promised: float, cheap: int, extra: int) -> None:
    rounds = 12
    with_cheap = expected_after(1.0 + cheap, 1.0 + promised, rounds)
    more = expected_after(extra, 2.0, rounds)
    # As many tokens per second with the pass as without it: (T + D) / 1 = T / (1 - share).
    even = more / (with_cheap + more)
    assert taught(promised, cheap, extra, rounds).asks([promised], even - 1e-6)
    assert not taught(promised, cheap, extra, rounds).asks([promised], even + 1e-6)


def test_always_asked_where_its_share_is_not_known() -> None:
    gate = taught(9.0, 9, 0, 50)
    assert all(gate.asks([9.0], 0.0) for _ in range(40))


def test_a_class_says_nothing_about_another() -> None:
    gate = taught(9.0, 9, 0, 50)
    assert not gate.asks([9.0], 0.3)
    assert gate.asks([0.0], 0.3) and gate.asks([1.5], 0.3)


def test_one_pass_serves_all_requests_of_a_round() -> None:
    gate = taught(9.0, 9, 0, 50)
    for _ in range(50):
        gate.learn(0.0, 0, 3)
    # About 10 + 1 tokens without the pass and 3 more with it: worth it below 3 / 14.
    assert gate.asks([9.0, 0.0], 0.19) and not gate.asks([9.0, 0.0], 0.25)


def test_looked_at_again() -> None:
    gate = taught(9.0, 9, 0, 50)
    asked = []
    for _ in range(51):
        asked.append(gate.asks([9.0], 0.3))
        gate.learn(9.0, 9, 0 if asked[-1] else None)
    assert np.flatnonzero(asked).tolist() == [16, 33, 50]
    for _ in range(40):  # the text has changed: now the pass brings much
        gate.learn(9.0, 2, 5)
    assert gate.asks([9.0], 0.3)


def seconds_of(asks: Callable[[float], bool], learn: Callable[[float, int, int | None], None]) -> float:
    """Forty passages of sixty tokens, which the cheap part knows, or where only the costly one helps."""
    rng, seconds = np.random.default_rng(3), 0.0
    for passage in range(40):
        sure, tokens = passage % 2 == 0, 0
        promised = 6.0 if sure else 0.1
        while tokens < 60:
            cheap, extra = (rng.integers(5, 9), rng.integers(0, 2)) if sure else (0, rng.integers(0, 4))
            asked = asks(promised)
            learn(promised, int(cheap), int(extra) if asked else None)
            tokens += int(1 + cheap + (extra if asked else 0))
            seconds += 1.0 if asked else 1.0 - SHARE
    return seconds


def test_faster_than_always_and_than_never() -> None:
    gate = Gate()
    fixed = [seconds_of(lambda promised, asked=asked: asked, lambda *_: None) for asked in (True, False)]
    assert seconds_of(lambda promised: gate.asks([promised], SHARE), gate.learn) < 0.95 * min(fixed)
