"""The suffix automaton against scanning the text, and its two ways of counting against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracle import ends, followers, longest_earlier

from draftwood.draft.automaton import (
    COUNT,
    DEGREE,
    EDGE,
    EDGES,
    LAST,
    LATEST,
    LENGTH,
    LINK,
    NEXT,
    NONE,
    ROOT_STATE,
    STATES,
    TARGET,
    TOKEN,
    TOKENS,
    Automaton,
    append,
    build,
    follow,
    with_room,
)  # fmt: skip

TEXTS = st.integers(1, 4).flatmap(lambda letters: st.lists(st.integers(0, letters - 1), max_size=40))


def edges_of(automaton: Automaton, state: int) -> dict[int, int]:
    """The state behind each token that leaves `state`, by walking its list."""
    found = {}
    edge = automaton.states[state, EDGE]
    while edge != NONE:
        found[int(automaton.edges[edge, TOKEN])] = int(automaton.edges[edge, TARGET])
        edge = automaton.edges[edge, NEXT]
    return found


def check(automaton: Automaton, text: list[int]) -> None:
    """Compare the longest suffix that occurred earlier, and all its own suffixes, with the scanned text."""
    assert automaton.sizes[TOKENS] == len(text)
    state = automaton.states[automaton.sizes[LAST], LINK] if text else NONE
    assert max(state, 0) == ROOT_STATE or automaton.states[state, LENGTH] == longest_earlier(text)
    while state > ROOT_STATE:
        part = text[len(text) - automaton.states[state, LENGTH] :]
        found = ends(text, part)
        assert automaton.states[state, COUNT] == len(found) and automaton.states[state, LATEST] == found[-1]
        expected, edges = followers(text, part), edges_of(automaton, state)
        assert edges.keys() == expected.keys() and automaton.states[state, DEGREE] == len(edges)
        for token, target in edges.items():
            assert follow(automaton, state, token) == target
            assert tuple(automaton.states[target, [COUNT, LATEST]]) == expected[token]
        state = automaton.states[state, LINK]


@settings(deadline=None, max_examples=60)
@given(text=TEXTS, known=st.integers(0, 40))
def test_equals_scanning_after_every_append(text: list[int], known: int) -> None:
    automaton = build(np.array(text[:known], np.int64))
    check(automaton, text[:known])
    for end in range(known, len(text)):
        append(automaton, text[end])
        check(automaton, text[: end + 1])


def test_by_hand() -> None:
    """`abcabx` then `ab`: the suffix `ab` occurred at 1 and 4 before, followed by `c` and by `x`."""
    automaton = build(np.array([ord(letter) for letter in "abcabxab"]))
    state = automaton.states[automaton.sizes[LAST], LINK]
    assert automaton.states[state].tolist()[:4] == [2, ROOT_STATE, 3, 7]
    assert {chr(token) for token in edges_of(automaton, state)} == {"c", "x"}
    assert follow(automaton, state, ord("a")) == NONE


def pathological() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "equal": np.zeros(5000, np.int64),
        "period 2": np.arange(5000) % 2,
        "all new": np.arange(5000),
        "binary": rng.integers(0, 2, 5000),
        "random": rng.integers(0, 2**31 - 1, 5000),
        "one stranger": np.where(np.arange(5000) == 2500, 1, 0),
    }


@pytest.mark.parametrize("name", pathological())
def test_building_equals_appending(name: str) -> None:
    text = pathological()[name]
    built, appended = build(text), build(text[:1])
    for token in text[1:].tolist():
        appended = with_room(appended, 1)
        append(appended, token)
    states, edges = int(built.sizes[STATES]), int(built.sizes[EDGES])
    np.testing.assert_array_equal(appended.sizes, built.sizes)
    np.testing.assert_array_equal(appended.states[:states], built.states[:states])
    np.testing.assert_array_equal(appended.edges[:edges], built.edges[:edges])
    np.testing.assert_array_equal(appended.text[:5000], text)
    assert states <= 2 * len(text) and edges <= 3 * len(text)


def test_a_larger_copy_keeps_everything() -> None:
    text = np.random.default_rng(1).integers(0, 5, 64).tolist()
    small = build(np.array(text))
    assert with_room(small, 0) is small
    larger = with_room(small, 1000)
    assert len(larger.text) == 2048 and len(larger.text) > len(small.text)
    check(larger, text)
    append(larger, 3)
    check(larger, [*text, 3])
    check(small, text)
