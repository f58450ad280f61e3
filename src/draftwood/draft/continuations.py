"""What follows a text: the likeliest next tokens by its own suffixes, scored, and trees of them.

The score of a token blends the suffixes of the context that occurred before, as prediction by partial matching does:
the longest one claims a share of the probability, its *reliability*, for the tokens that followed it, in proportion to
how often they did; a part of what is left goes to the further tokens that followed the next shorter suffix. More than
two suffixes were measured to add nothing, one alone loses 3 to 5 % of the accepted tokens of a tree of 32 nodes.
Reliabilities are counted, not derived: how often was the next token among those that such a suffix could offer?
Source: SuffixDecoding (arXiv 2411.04975) for the use; Cleary and Witten, PPM (1984), for the blend.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..kernel import compiled
from .automaton import (
    COUNT,
    DEGREE,
    EDGE,
    LAST,
    LATEST,
    LENGTH,
    LINK,
    NEXT,
    NONE,
    ROOT_STATE,
    TARGET,
    TOKEN,
    Automaton,
    follow,
)

SUFFIXES = 2
"""Suffixes that are blended."""
LENGTH_STARTS = (1, 2, 3, 4, 5, 7, 10, 16, 32)
"""Shortest match of each bucket of lengths."""
VARIETIES = 3
"""Kinds of suffixes by how many tokens they offer: 1, 2, more."""
HIT, TRIAL = range(2)

_KEEP = 0.999
"""What remains of a count at the next trial of its cell: reliabilities follow the last thousand or so."""
_PRIOR_WEIGHT = 8.0
_PRIOR = ((0.35, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9), (0.25,) * 9)
"""By length, for the longest suffix and for the shorter one where the longest failed."""


def no_counts() -> np.ndarray:
    """Counts (SUFFIXES, lengths, VARIETIES, 2) float64 of HIT and TRIAL, before anything was learned."""
    return np.zeros((SUFFIXES, len(LENGTH_STARTS), VARIETIES, 2))


def reliabilities(counts: np.ndarray) -> np.ndarray:
    """Means (SUFFIXES, lengths, VARIETIES) of Beta distributions with a prior of eight trials; inside (0, 1)."""
    prior = np.array(_PRIOR)[:, :, None]
    means: np.ndarray = (_PRIOR_WEIGHT * prior + counts[..., HIT]) / (_PRIOR_WEIGHT + counts[..., TRIAL])
    return means


class Nodes(NamedTuple):
    """The columns of a Forest under construction."""

    parent: np.ndarray
    token: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    logp: np.ndarray


class Limits(NamedTuple):
    """Bounds of one tree."""

    candidates: int
    max_nodes: int
    max_depth: int
    floor: float
    """Least probability of a path."""


class _Choices(NamedTuple):
    """The best K continuations of a context, the likeliest first."""

    prob: np.ndarray
    token: np.ndarray
    state: np.ndarray
    """The state behind the token."""
    match: np.ndarray
    """Length of the match behind the token."""


class _Heap(NamedTuple):
    """Nodes that may come next. `slots` is a binary heap of entries; the other columns are in order of arrival."""

    slots: np.ndarray
    logp: np.ndarray
    parent: np.ndarray
    token: np.ndarray
    state: np.ndarray
    match: np.ndarray


@compiled
def _bucket(match: int) -> int:
    bucket = 0
    while bucket + 1 < len(LENGTH_STARTS) and LENGTH_STARTS[bucket + 1] <= match:
        bucket += 1
    return bucket


@compiled
def learn(automaton: Automaton, token: int, counts: np.ndarray) -> None:
    """Count whether `token`, about to be appended, is among what the suffixes of the text offer."""
    states = automaton.states
    state = states[automaton.sizes[LAST], LINK]
    known, suffix = 0, 0
    while state > ROOT_STATE and suffix < SUFFIXES:
        fresh = states[state, DEGREE] - known
        if fresh > 0:  # a longer suffix offers nothing that a shorter one does not
            cell = counts[suffix, _bucket(states[state, LENGTH]), min(fresh, VARIETIES) - 1]
            hit = follow(automaton, state, token) != NONE
            cell[TRIAL] = _KEEP * cell[TRIAL] + 1.0
            cell[HIT] = _KEEP * cell[HIT] + hit
            if hit:
                return
            known, suffix = states[state, DEGREE], suffix + 1
        state = states[state, LINK]


@compiled
def _likelier(prob: float, latest: int, place: int, choices: _Choices, states: np.ndarray) -> bool:
    """Whether a token comes before that in `place`: likelier, or as likely and seen later. No two are seen at once."""
    if prob != choices.prob[place]:
        return bool(prob > choices.prob[place])
    return bool(latest > states[choices.state[place], LATEST])


@compiled
def _insert(prob: float, token: int, state: int, match: int, size: int, choices: _Choices, states: np.ndarray) -> int:
    """Put a continuation in its place if it is among the best K; return how many there are."""
    latest = states[state, LATEST]
    place = size
    if size == len(choices.prob):
        place = size - 1
        if not _likelier(prob, latest, place, choices, states):
            return size
    while place > 0 and _likelier(prob, latest, place - 1, choices, states):
        for column in (choices.token, choices.state, choices.match):
            column[place] = column[place - 1]
        choices.prob[place] = choices.prob[place - 1]
        place -= 1
    choices.prob[place] = prob
    choices.token[place], choices.state[place], choices.match[place] = token, state, match
    return min(size + 1, len(choices.prob))


@compiled
def _fresh_total(automaton: Automaton, state: int, longer: int) -> int:
    """Occurrences of `state` that were followed by tokens which the state `longer` (or NONE) does not offer."""
    states, edges = automaton.states, automaton.edges
    total = 0
    edge = states[state, EDGE]
    while edge != NONE:
        if longer == NONE or follow(automaton, longer, edges[edge, TOKEN]) == NONE:
            total += states[edges[edge, TARGET], COUNT]
        edge = edges[edge, NEXT]
    return total


@compiled
def _offer(
    automaton: Automaton, state: int, longer: int, match: int, claim: float, floor: float, size: int, choices: _Choices
) -> int:
    """Share `claim` among the tokens that follow `state` but not `longer`; return how many choices there are."""
    states, edges = automaton.states, automaton.edges
    share = claim / _fresh_total(automaton, state, longer)
    edge = states[state, EDGE]
    while edge != NONE:
        target = edges[edge, TARGET]
        prob = share * states[target, COUNT]
        if prob >= floor and (longer == NONE or follow(automaton, longer, edges[edge, TOKEN]) == NONE):
            size = _insert(prob, edges[edge, TOKEN], target, match + 1, size, choices, states)
        edge = edges[edge, NEXT]
    return size


@compiled
def _continuations(
    automaton: Automaton, state: int, match: int, reliability: np.ndarray, floor: float, choices: _Choices
) -> int:
    """Fill `choices` with what follows the last `match` tokens that led to `state`; return how many there are.

    `state` may be that of the whole text, which nothing follows: then shorter suffixes speak alone, and a text that
    repeats itself is continued beyond its end.
    """
    states = automaton.states
    size, left, longer, known, suffix = 0, 1.0, NONE, 0, 0
    while state > ROOT_STATE and suffix < SUFFIXES and left >= floor:
        fresh = states[state, DEGREE] - known
        if fresh > 0:
            claim = left * reliability[suffix, _bucket(match), min(fresh, VARIETIES) - 1]
            if claim >= floor:
                size = _offer(automaton, state, longer, match, claim, floor, size, choices)
            left -= claim
            longer, known, suffix = state, states[state, DEGREE], suffix + 1
        state = states[state, LINK]
        match = states[state, LENGTH]
    return size


@compiled
def _before(a: int, b: int, heap: _Heap) -> bool:
    """Whether entry `a` comes before entry `b`: higher path score, then earlier arrival."""
    if heap.logp[a] != heap.logp[b]:
        return bool(heap.logp[a] > heap.logp[b])
    return a < b


@compiled
def _push(entry: int, size: int, heap: _Heap) -> None:
    slot = size
    while slot > 0:
        above = (slot - 1) // 2
        if not _before(entry, heap.slots[above], heap):
            break
        heap.slots[slot] = heap.slots[above]
        slot = above
    heap.slots[slot] = entry


@compiled
def _pop(size: int, heap: _Heap) -> int:
    """Take out the entry that comes first, of `size`."""
    first, entry = heap.slots[0], heap.slots[size - 1]
    size -= 1
    slot = 0
    while 2 * slot + 1 < size:
        below = 2 * slot + 1
        if below + 1 < size and _before(heap.slots[below + 1], heap.slots[below], heap):
            below += 1
        if not _before(heap.slots[below], entry, heap):
            break
        heap.slots[slot] = heap.slots[below]
        slot = below
    heap.slots[slot] = entry
    return int(first)


@compiled
def _new_heap(room: int) -> _Heap:
    return _Heap(
        np.empty(room, np.int32),
        np.empty(room, np.float64),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )


@compiled
def _new_choices(width: int) -> _Choices:
    return _Choices(
        np.empty(width, np.float64), np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int32)
    )


@compiled
def _add_node(row: int, start: int, entry: int, heap: _Heap, widths: np.ndarray, nodes: Nodes) -> None:
    """Write a heap entry to `row` of a tree that begins at row `start`; siblings come out in rank order."""
    above = heap.parent[entry]
    nodes.parent[row] = above
    nodes.token[row] = heap.token[entry]
    nodes.depth[row] = nodes.depth[start + above] + 1
    nodes.rank[row] = widths[above]
    nodes.logp[row] = heap.logp[entry]
    widths[above] += 1


@compiled
def _add_root(row: int, pending: int, nodes: Nodes) -> None:
    nodes.parent[row] = NONE
    nodes.token[row] = pending
    nodes.depth[row] = 0
    nodes.rank[row] = 0
    nodes.logp[row] = 0.0


@compiled
def grow_behind(
    automaton: Automaton, pending: int, reliability: np.ndarray, limits: Limits, start: int, nodes: Nodes
) -> int:
    """Write the tree behind the text, which ends in `pending`, to rows `start`, ... of `nodes`; return their number.

    A child's score is its parent's plus the logarithm of a probability below 1, so it enters the heap behind its
    parent and below it: nodes come out best first, parents before children.
    """
    _add_root(start, pending, nodes)
    room = limits.max_nodes * limits.candidates + limits.candidates
    heap, choices = _new_heap(room), _new_choices(limits.candidates)
    widths = np.zeros(limits.max_nodes + 1, np.int32)
    state = max(automaton.states[automaton.sizes[LAST], LINK], ROOT_STATE)
    match = automaton.states[state, LENGTH]
    node, size, entries = 0, 0, 0
    while node < limits.max_nodes:
        row = start + node
        if nodes.depth[row] < limits.max_depth:
            floor = limits.floor * np.exp(-nodes.logp[row])
            found = _continuations(automaton, state, match, reliability, floor, choices)
            for place in range(found):
                heap.logp[entries] = nodes.logp[row] + np.log(choices.prob[place])
                heap.parent[entries] = node
                heap.token[entries] = choices.token[place]
                heap.state[entries], heap.match[entries] = choices.state[place], choices.match[place]
                _push(entries, size, heap)
                size, entries = size + 1, entries + 1
        if size == 0:
            break
        entry = _pop(size, heap)
        size -= 1
        node += 1
        _add_node(start + node, start, entry, heap, widths, nodes)
        state, match = heap.state[entry], heap.match[entry]
    return node + 1
