"""A drafter without a network: it proposes what followed the end of the text where that occurred before.

Texts that repeat themselves or their prompt (code, edits, quotations, loops) are drafted for almost nothing. Each open
request has a suffix automaton of its own; the reliabilities that turn matches into scores are shared and learned while
decoding, so its path scores are probabilities that a policy can weigh, and that a union can compare.
Source: SuffixDecoding (arXiv 2411.04975); prompt look-up decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core import MAX_NODES, Forest
from ..errors import UsageError
from ..kernel import compiled, first_call
from . import automaton as automata
from .automaton import TOKENS, Automaton, append, build, with_room
from .base import Committed, DraftRequest
from .continuations import Limits, Nodes, grow_behind, learn, no_counts, reliabilities

_EQUAL = -1


@compiled
def _extend(
    automaton: Automaton, token_ids: np.ndarray, begin: int, end: int, first: int, learned: int, counts: np.ndarray
) -> int:
    """Append tokens [begin, end) of `token_ids`, which stand at positions `first`, ...; return _EQUAL.

    Those that the automaton has are compared instead: returns the index of the first that differs. Positions from
    `learned` on are output, from which reliabilities are learned.
    """
    known = automaton.sizes[TOKENS]
    for index in range(begin, end):
        position = first + index - begin
        token = token_ids[index]
        if position < known:
            if automaton.text[position] != token:
                return index
            continue
        if position >= learned:
            learn(automaton, token, counts)
        append(automaton, token)
    return _EQUAL


@dataclass(slots=True)
class _Text:
    """What is known of an open request."""

    automaton: Automaton
    """Of the text known at opening, all committed tokens and the pending token last seen."""
    prompt_len: int
    """Length of the text known at opening, from which nothing is learned: it was not written by the target, or has
    been learned from before the request was preempted (its pending token then counts twice, which is harmless)."""
    committed: int = 0


class SuffixDrafter:
    """Drafts from the request's own text; satisfies `Drafter`, needs no target, training or taps.

    A tree depends on the text of its request and on the reliabilities, which every output token of every request
    changes, drafted or not. The same calls give the same trees.
    """

    def __init__(self, block_size: int = 33, floor: float = 0.003) -> None:
        """Draft up to `block_size` - 1 tokens deep, and only paths of at least the probability `floor`.

        Raises UsageError for a block size below 2 or a floor outside (0, 1).
        """
        if block_size < 2:
            raise UsageError(f"block_size {block_size}: expected at least 2")
        if not 0.0 < floor < 1.0:
            raise UsageError(f"floor {floor}: expected a probability above 0 and below 1")
        self.block_size = block_size
        self.target_layer_ids: tuple[int, ...] = ()
        self.kv_row_bytes = 0
        self.counts = no_counts()
        """(SUFFIXES, lengths, VARIETIES, 2) float64, what reliabilities are made of."""
        self._floor = floor
        self._texts: dict[int, _Text] = {}

    def allocate(self, kv_rows: int, requests: int) -> None:
        """Do nothing: automata are plain memory that grows with the text."""

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """Index the known text `token_ids` (P,) of a request; `rows` is not needed. Time and memory linear in P.

        Raises UsageError for a request that is open.
        """
        if request in self._texts:
            raise UsageError(f"request {request}: is open already")
        self._texts[request] = _Text(build(token_ids), len(token_ids))

    def commit(self, committed: Committed) -> None:
        """Append committed tokens; those known since opening, or since they were pending, are compared.

        Raises UsageError for a request that is not open or a token that differs from the known one.
        """
        token_ids = np.require(committed.token_ids, np.int64, ("C", "W"))
        offsets = committed.offsets.tolist()
        for request, begin, end in zip(committed.requests, offsets[:-1], offsets[1:], strict=True):
            text = self._text(request)
            self._extend(request, text, token_ids, begin, end)
            text.committed += end - begin

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """Grow the tree of each request from what followed the longest suffix of its text that occurred before.

        A tree may be its root alone. Raises UsageError for limits out of range, for requests that are not open or
        not distinct, and for a pending token that does not stand right behind the committed ones. Where a request has
        `scored` candidates, `Forest.source` holds the trees with as many, and with all nodes that there are.
        """
        self._check(wanted)
        pending = np.array([request.pending for request in wanted], np.int64)
        for index, request in enumerate(wanted):
            # Kept for good: a later commit brings the same token, which is compared then and not appended again.
            self._extend(request.request, self._texts[request.request], pending, index, index + 1)
        forest = self._grown(wanted)
        if not any(request.scored for request in wanted):
            return forest
        widest = [replace(one, candidates=max(one.candidates, one.scored), max_nodes=MAX_NODES) for one in wanted]
        return replace(forest, source=(self._grown(widest),))

    def _grown(self, wanted: Sequence[DraftRequest]) -> Forest:
        """The trees behind pending tokens that every text has already."""
        reliability = reliabilities(self.counts)  # after all have taught: asked again, the trees are the same
        nodes = _new_nodes(sum(request.max_nodes + 1 for request in wanted))
        offsets = np.zeros(len(wanted) + 1, np.int64)
        end = 0
        for index, request in enumerate(wanted):
            depth = min(request.max_depth, request.block_size - 1)
            limits = Limits(request.candidates, request.max_nodes, depth, self._floor)
            end += grow_behind(self._texts[request.request].automaton, request.pending, reliability, limits, end, nodes)
            offsets[index + 1] = end
        return Forest(
            offsets, nodes.parent[:end], nodes.token[:end], nodes.depth[:end], nodes.rank[:end], nodes.logp[:end]
        )

    def close(self, request: int) -> None:
        """Forget the text of a request, keep what was learned from it; one that is not open is accepted."""
        self._texts.pop(request, None)

    def _text(self, request: int) -> _Text:
        if request not in self._texts:
            raise UsageError(f"request {request}: expected one that is open")
        return self._texts[request]

    def _extend(self, request: int, text: _Text, token_ids: np.ndarray, begin: int, end: int) -> None:
        """Append tokens [begin, end) of `token_ids` behind the committed ones, or compare them with known ones."""
        text.automaton = with_room(text.automaton, end - begin)
        first, learned = text.committed, text.prompt_len
        differs = _extend(text.automaton, token_ids, begin, end, first, learned, self.counts)
        if differs != _EQUAL:
            position = first + differs - begin
            raise UsageError(
                f"request {request}: token {token_ids[differs]} at position {position}: expected "
                f"{text.automaton.text[position]}, which is known to stand there"
            )

    def _check(self, wanted: Sequence[DraftRequest]) -> None:
        """Refuse what would be computed wrongly: a hole in the text only shows as lost acceptance."""
        if len({request.request for request in wanted}) != len(wanted):
            raise UsageError(f"requests {[request.request for request in wanted]}: expected distinct ones")
        for request in wanted:
            name, text = request.request, self._text(request.request)
            if not 2 <= request.block_size <= self.block_size:
                raise UsageError(f"request {name}: block size {request.block_size}: expected 2 to {self.block_size}")
            if request.candidates < 1 or not 0 <= request.max_nodes <= MAX_NODES:
                raise UsageError(
                    f"request {name}: {request.candidates} candidates, max_nodes {request.max_nodes}: expected at "
                    f"least 1 and 0 to {MAX_NODES}"
                )
            if request.context_len != text.committed:
                raise UsageError(
                    f"request {name}: block at {request.context_len}: expected {text.committed}, its context"
                )
            if text.automaton.sizes[TOKENS] > text.committed + 1:
                raise UsageError(
                    f"request {name}: block at {request.context_len}: expected it behind the known text, which has "
                    f"{text.automaton.sizes[TOKENS]} tokens"
                )


def _new_nodes(rows: int) -> Nodes:
    return Nodes(
        parent=np.empty(rows, np.int32),
        token=np.empty(rows, np.int64),
        depth=np.empty(rows, np.int32),
        rank=np.empty(rows, np.int32),
        logp=np.empty(rows, np.float64),
    )


def warm_up() -> None:
    """Compile the kernels, so that loading pays for them and not the first round."""
    automata.warm_up()

    def all_kernels() -> None:
        drafter = SuffixDrafter()
        drafter.open(0, np.zeros(2, np.int64), 0)
        drafter.commit(Committed((0,), np.array([0, 3]), np.zeros(3, np.int64), None))
        drafter.propose([DraftRequest(0, 0, 3, 2, candidates=1, max_nodes=1, max_depth=1)])

    first_call(all_kernels)
