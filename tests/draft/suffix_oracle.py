"""Plain versions of the suffix automaton's answers and of the trees made from them: by scanning the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftwood.core import DraftTree
from draftwood.draft.continuations import HIT, LENGTH_STARTS, SUFFIXES, TRIAL, VARIETIES

KEEP = 0.999


class Follower(NamedTuple):
    """How often a token followed, and the index of it when it last did."""

    count: int
    latest: int


class Offer(NamedTuple):
    """What a suffix offers that no longer one does."""

    match: int
    followers: dict[int, Follower]


def ends(text: Sequence[int], part: Sequence[int]) -> list[int]:
    """Indices at which an occurrence of `part` in `text` ends."""
    size = len(part)
    return [end for end in range(size - 1, len(text)) if list(text[end - size + 1 : end + 1]) == list(part)]


def longest_earlier(text: Sequence[int]) -> int:
    """Length of the longest suffix of `text` that also ends before its end."""
    for size in range(len(text) - 1, 0, -1):
        if len(ends(text, text[len(text) - size :])) > 1:
            return size
    return 0


def followers(text: Sequence[int], part: Sequence[int]) -> dict[int, Follower]:
    """The tokens that followed `part` in `text`."""
    found: dict[int, Follower] = {}
    for end in ends(text, part):
        if end + 1 < len(text):
            token = text[end + 1]
            found[token] = Follower(found[token].count + 1 if token in found else 1, end + 1)
    return found


def offers(text: Sequence[int], context: Sequence[int]) -> list[Offer]:
    """The longest suffixes of `context` that add followers in `text`, at most SUFFIXES of them, longest first."""
    found: list[Offer] = []
    known: set[int] = set()
    for size in range(len(context), 0, -1):
        fresh = {t: f for t, f in followers(text, context[len(context) - size :]).items() if t not in known}
        if fresh and len(found) < SUFFIXES:
            found.append(Offer(size, fresh))
            known |= set(fresh)
    return found


def cell(suffix: int, offer: Offer) -> tuple[int, int, int]:
    """Where the counts of an offer are."""
    bucket = max(i for i, start in enumerate(LENGTH_STARTS) if start <= offer.match)
    return suffix, bucket, min(len(offer.followers), VARIETIES) - 1


def learn(text: Sequence[int], token: int, counts: np.ndarray) -> None:
    """Count whether `token` is offered behind `text`."""
    for suffix, offer in enumerate(offers(text, text)):
        entry = counts[cell(suffix, offer)]
        entry[TRIAL] = KEEP * entry[TRIAL] + 1.0
        entry[HIT] = KEEP * entry[HIT] + (token in offer.followers)
        if token in offer.followers:
            return


def continuations(
    text: Sequence[int], context: Sequence[int], reliability: np.ndarray, candidates: int, floor: float
) -> list[tuple[float, int]]:
    """(probability, token) of the best continuations of `context`."""
    found, left = [], 1.0
    for suffix, offer in enumerate(offers(text, context)):
        claim = left * float(reliability[cell(suffix, offer)])
        share = claim / sum(follower.count for follower in offer.followers.values())
        left -= claim
        for token, follower in offer.followers.items():
            found.append((share * follower.count, follower.latest, token))
    kept = sorted((entry for entry in found if entry[0] >= floor), reverse=True)[:candidates]
    return [(prob, token) for prob, _, token in kept]


def grow(
    text: Sequence[int], reliability: np.ndarray, *, candidates: int, max_nodes: int, max_depth: int, floor: float
) -> DraftTree:
    """The tree behind `text`, whose last token is pending: a list sorted anew for every node."""
    parent, token, depth, rank, logp = [-1], [text[-1]], [0], [0], [0.0]
    paths: list[tuple[int, ...]] = [()]
    waiting: list[tuple[float, int, int, int]] = []  # (-logp, arrival, parent, token)
    arrivals = 0
    while len(paths) <= max_nodes:
        node = len(paths) - 1
        if depth[node] < max_depth:
            context = [*text, *paths[node]]
            least = floor * math.exp(-logp[node])
            for prob, successor in continuations(text, context, reliability, candidates, least):
                waiting.append((-(logp[node] + math.log(prob)), arrivals, node, successor))
                arrivals += 1
        if not waiting:
            break
        waiting.sort()
        score, _, above, successor = waiting.pop(0)
        rank.append(parent.count(above))
        parent.append(above)
        token.append(successor)
        depth.append(depth[above] + 1)
        logp.append(-score)
        paths.append((*paths[above], successor))
    return DraftTree(
        np.array(parent, np.int32),
        np.array(token, np.int64),
        np.array(depth, np.int32),
        np.array(rank, np.int32),
        np.array(logp, np.float64),
    )
