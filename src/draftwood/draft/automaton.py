"""A suffix automaton over one text: every substring with its number of occurrences, extended one token at a time.

A state stands for the substrings that end at the same positions of the text; its longest one has `LENGTH` tokens. Its
suffix link leads to the longest suffix that ends at more positions. Hence the link of the state of the whole text is
the longest suffix of the text that occurred earlier, and the edges of that state are the tokens that followed it.
A text of n tokens has at most 2n states and 3n edges, so everything is an array of known size.
Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernel import compiled, first_call

ROOT_STATE = 0
NONE = -1
LENGTH, LINK, COUNT, LATEST, EDGE, DEGREE = range(6)
"""Columns of a state: tokens of its longest substring, suffix link, occurrences, index of the last token of the latest
occurrence, first edge, number of edges."""
STATE, TOKEN, TARGET, NEXT = range(4)
"""Columns of an edge: the state that it leaves, its token, the state that it enters, next edge of the same state."""
TOKENS, STATES, EDGES, LAST = range(4)
"""Entries of `Automaton.sizes`: tokens, states and edges in use, state of the whole text."""
_SPARE_TOKENS = 64


class Automaton(NamedTuple):
    """Arrays of one automaton with room for C tokens, C a power of two; token ids are below 2**31."""

    sizes: np.ndarray
    """(4,) int64: TOKENS, STATES, EDGES, LAST."""
    text: np.ndarray
    """(C,) int32."""
    states: np.ndarray
    """(2C, 6) int32; the root has no link and no occurrences of its own are counted."""
    edges: np.ndarray
    """(3C, 4) int32; those of one state are a list from its EDGE on, newest first."""
    slots: np.ndarray
    """(8C,) int32 open-addressing table of edges by (state, token), at most 3/8 full; -1 where empty."""


@compiled
def _slot_of(automaton: Automaton, state: int, token: int) -> int:
    """The slot that holds the edge of (state, token), or the empty one where it belongs."""
    mask = len(automaton.slots) - 1
    mixed = (np.uint64(state) * np.uint64(0x9E3779B1) + np.uint64(token)) * np.uint64(0x9E3779B97F4A7C15)
    slot = int(mixed >> np.uint64(32)) & mask
    while True:
        edge = automaton.slots[slot]
        if edge == NONE:
            return slot
        if automaton.edges[edge, STATE] == state and automaton.edges[edge, TOKEN] == token:
            return slot
        slot = (slot + 1) & mask


@compiled
def follow(automaton: Automaton, state: int, token: int) -> int:
    """The state behind the edge of `state` that carries `token`, or NONE."""
    edge = automaton.slots[_slot_of(automaton, state, token)]
    return NONE if edge == NONE else int(automaton.edges[edge, TARGET])


@compiled
def _add_edge(automaton: Automaton, state: int, token: int, target: int) -> None:
    edge = automaton.sizes[EDGES]
    automaton.sizes[EDGES] = edge + 1
    automaton.edges[edge, STATE] = state
    automaton.edges[edge, TOKEN] = token
    automaton.edges[edge, TARGET] = target
    automaton.edges[edge, NEXT] = automaton.states[state, EDGE]
    automaton.states[state, EDGE] = edge
    automaton.states[state, DEGREE] += 1
    automaton.slots[_slot_of(automaton, state, token)] = edge


@compiled
def _add_state(automaton: Automaton, length: int, count: int, latest: int) -> int:
    state = int(automaton.sizes[STATES])
    automaton.sizes[STATES] = state + 1
    automaton.states[state, LENGTH] = length
    automaton.states[state, LINK] = ROOT_STATE
    automaton.states[state, COUNT] = count
    automaton.states[state, LATEST] = latest
    automaton.states[state, EDGE] = NONE
    automaton.states[state, DEGREE] = 0
    return state


@compiled
def _split(automaton: Automaton, above: int, token: int, whole: int) -> int:
    """Part the substrings of `whole` that end in `above` + `token` from the longer ones; return their state.

    Edges are copied but never dropped, so all copies together are bounded by the 3n edges of the text.
    """
    states, edges = automaton.states, automaton.edges
    part = _add_state(automaton, states[above, LENGTH] + 1, states[whole, COUNT], states[whole, LATEST])
    states[part, LINK] = states[whole, LINK]
    states[whole, LINK] = part
    edge = states[whole, EDGE]
    while edge != NONE:
        _add_edge(automaton, part, edges[edge, TOKEN], edges[edge, TARGET])
        edge = edges[edge, NEXT]
    while above != NONE:
        edge = automaton.slots[_slot_of(automaton, above, token)]
        if edges[edge, TARGET] != whole:
            break
        edges[edge, TARGET] = part
        above = states[above, LINK]
    return part


@compiled
def _append(automaton: Automaton, token: int) -> int:
    """Append one token without counting its occurrences; return the state of the whole text."""
    sizes, states = automaton.sizes, automaton.states
    index = sizes[TOKENS]
    automaton.text[index] = token
    sizes[TOKENS] = index + 1
    whole = _add_state(automaton, index + 1, 1, index)
    above = sizes[LAST]
    sizes[LAST] = whole
    while above != NONE:
        slot = _slot_of(automaton, above, token)
        if automaton.slots[slot] != NONE:
            break
        _add_edge(automaton, above, token, whole)
        above = states[above, LINK]
    if above != NONE:
        behind = automaton.edges[automaton.slots[slot], TARGET]
        if states[behind, LENGTH] != states[above, LENGTH] + 1:
            behind = _split(automaton, above, token, behind)
        states[whole, LINK] = behind
    return whole


@compiled
def append(automaton: Automaton, token: int) -> None:
    """Append one token: all its suffixes occurred once more, the latest time here.

    Amortised constant but for the walk over those suffixes that occurred earlier, one step a state: a handful, or one
    for every repetition of a text that repeats itself. Needs room for it.
    """
    states = automaton.states
    whole = _append(automaton, token)
    state, latest = states[whole, LINK], states[whole, LATEST]
    while state != ROOT_STATE:
        states[state, COUNT] += 1
        states[state, LATEST] = latest
        state = states[state, LINK]


@compiled
def _count_all(automaton: Automaton) -> None:
    """Count the occurrences of every state in linear time: pass them on to links, the longest states first."""
    num_states, states = automaton.sizes[STATES], automaton.states
    starts = np.zeros(automaton.sizes[TOKENS] + 2, np.int64)
    for state in range(num_states):
        starts[states[state, LENGTH] + 1] += 1
    for length in range(1, len(starts)):
        starts[length] += starts[length - 1]
    by_length = np.empty(num_states, np.int32)
    for state in range(num_states):
        by_length[starts[states[state, LENGTH]]] = state
        starts[states[state, LENGTH]] += 1
    for place in range(num_states - 1, 0, -1):
        state = by_length[place]
        link = states[state, LINK]
        if link != ROOT_STATE:
            states[link, COUNT] += states[state, COUNT]
            states[link, LATEST] = max(states[link, LATEST], states[state, LATEST])


@compiled
def _build(automaton: Automaton, token_ids: np.ndarray) -> None:
    """Append many tokens to an empty automaton, in linear time whatever they are."""
    states = automaton.states
    for token in token_ids:
        first = automaton.sizes[STATES]
        _append(automaton, token)
        for part in range(first + 1, automaton.sizes[STATES]):
            states[part, COUNT] = 0  # it owns no prefix of the text
    _count_all(automaton)


@compiled
def _rehash(automaton: Automaton) -> None:
    for edge in range(automaton.sizes[EDGES]):
        state, token = automaton.edges[edge, STATE], automaton.edges[edge, TOKEN]
        automaton.slots[_slot_of(automaton, state, token)] = edge


def build(token_ids: np.ndarray) -> Automaton:
    """The automaton of `token_ids` (P,) int64, in linear time, with some room to spare."""
    automaton = _empty(_capacity(len(token_ids) + _SPARE_TOKENS))
    automaton.states[ROOT_STATE] = (0, NONE, 0, NONE, NONE, 0)
    automaton.sizes[STATES] = 1
    _build(automaton, np.require(token_ids, np.int64, ("C", "W")))
    return automaton


def with_room(automaton: Automaton, num_tokens: int) -> Automaton:
    """`automaton` if `num_tokens` more fit, else a copy of at least twice the size."""
    needed = int(automaton.sizes[TOKENS]) + num_tokens
    if needed <= len(automaton.text):
        return automaton
    larger = _empty(_capacity(needed))
    for old, new in zip(automaton[:-1], larger[:-1], strict=True):
        new[: len(old)] = old
    _rehash(larger)
    return larger


def _capacity(num_tokens: int) -> int:
    return 1 << (num_tokens - 1).bit_length()


def _empty(capacity: int) -> Automaton:
    """Arrays for `capacity` tokens, a power of two; only `sizes` and `slots` are filled."""
    return Automaton(
        sizes=np.zeros(4, np.int64),
        text=np.empty(capacity, np.int32),
        states=np.empty((2 * capacity, 6), np.int32),
        edges=np.empty((3 * capacity, 4), np.int32),
        slots=np.full(8 * capacity, NONE, np.int32),
    )


def warm_up() -> None:
    """Compile the kernels, so that loading pays for it and not the first request."""

    def all_kernels() -> None:
        automaton = build(np.zeros(1, np.int64))
        append(automaton, 0)
        follow(automaton, ROOT_STATE, 0)
        with_room(automaton, len(automaton.text))

    first_call(all_kernels)
