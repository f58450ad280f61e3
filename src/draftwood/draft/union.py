"""Several drafters as one: each proposes, and the engine verifies the union of their trees.

It pays where drafters are right about different tokens: a block drafter about new text, a suffix drafter about text
that repeats. Their scores are compared as they are, so each part's should be probabilities. A part with a network of
its own is left out of rounds in which the others make it not worth its seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..core import DraftTree, Forest
from ..errors import UnsupportedError, UsageError
from ..tree.follow import follow
from ..tree.grow import root_tree
from ..tree.merge import merge
from .base import Committed, Drafter, DraftRequest
from .gate import Gate


class UnionDrafter:
    """Asks two or more drafters and merges their trees; satisfies `Drafter`."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        """Join `parts`, in the order in which equally likely nodes are kept.

        Raises UsageError for fewer than two, UnsupportedError when more than one taps the target.
        """
        if len(parts) < 2:
            raise UsageError(f"union of {len(parts)} drafters: expected at least 2")
        tapping = [part.target_layer_ids for part in parts if part.target_layer_ids]
        if len(tapping) > 1:
            raise UnsupportedError(
                f"union of drafters that tap layers {' and '.join(str(list(ids)) for ids in tapping)}: expected at "
                "most one that taps the target"
            )
        self.parts = tuple(parts)
        self._gate = Gate()
        self._promises: dict[int, _Promise] = {}
        self.block_size = max(part.block_size for part in parts)
        self.target_layer_ids = tapping[0] if tapping else ()

    @property
    def kv_row_bytes(self) -> int:
        """Bytes that one committed token keeps in the pools of all parts."""
        return sum(part.kv_row_bytes for part in self.parts)

    def allocate(self, kv_rows: int, requests: int) -> None:
        """Make room for `kv_rows` committed tokens in every part."""
        for part in self.parts:
            part.allocate(kv_rows, requests)

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """Admit a request to every part, or, where one raises, to none."""
        with ExitStack() as undo:
            for part in self.parts:
                part.open(request, token_ids, rows)
                undo.callback(part.close, request)
            undo.pop_all()

    def commit(self, committed: Committed) -> None:
        """Append committed tokens to every part, taps to the one that wants them."""
        untapped = replace(committed, taps=None)
        for part in self.parts:
            part.commit(committed if part.target_layer_ids else untapped)
        offsets = committed.offsets.tolist()
        for request, begin, end in zip(committed.requests, offsets[:-1], offsets[1:], strict=True):
            promise = self._promises.pop(request, None)
            if promise is not None and end > begin:
                cheap = int(follow(promise.tree, committed.token_ids[begin + 1 : end]).accepted[-1])
                self._gate.learn(promise.drafts, cheap, end - begin - 1 - cheap if promise.costly else None)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """Merge the trees of all parts, each cut to `max_nodes`; `source` holds what each proposed.

        A part is asked for no more depth than it has, and not at all where nothing can be delivered. One with a
        network is asked only if it is worth its share of the round (see `Gate`): `costly` tells.
        """
        max_nodes = np.array([request.max_nodes for request in wanted], np.int64)
        cheap = [None if part.kv_row_bytes else _ask(part, wanted) for part in self.parts]
        promised = [forest for forest in cheap if forest is not None]
        costly = self._pays(wanted, merge(promised, max_nodes)) if 0 < len(promised) < len(cheap) else True
        forests = [
            _ask(part, wanted) if forest is None else forest
            for part, forest in zip(self.parts, cheap, strict=True)
            if costly or forest is not None
        ]
        return replace(merge(forests, max_nodes), costly=costly)

    def _pays(self, wanted: Sequence[DraftRequest], cheap: Forest) -> bool:
        """Whether the costly parts are asked beside the trees `cheap` of the others, which are kept to learn from."""
        trees = [cheap[index] for index in range(len(cheap))]
        drafts = [float(tree.gains.sum()) for tree in trees]
        costly = self._gate.asks(drafts, min(request.draft_share for request in wanted))
        for request, tree, promised in zip(wanted, trees, drafts, strict=True):
            self._promises[request.request] = _Promise(promised, tree, costly)
        return costly

    def close(self, request: int) -> None:
        """Forget a request in every part, even where another part raises."""
        self._promises.pop(request, None)
        with ExitStack() as closing:
            for part in reversed(self.parts):
                closing.callback(part.close, request)


class _Promise(NamedTuple):
    """What the cheap parts proposed for a request in the round that is under way."""

    drafts: float
    """Expected accepted ones."""
    tree: DraftTree
    costly: bool
    """Whether the costly part proposed too."""


def _ask(part: Drafter, wanted: Sequence[DraftRequest]) -> Forest:
    """What `part` proposes for each of `wanted`, within its own block size."""
    cut = [_cut(request, part.block_size) for request in wanted]
    asked = [index for index, request in enumerate(cut) if request.max_depth > 0]
    if len(asked) == len(wanted):
        return part.propose(cut)
    trees = [root_tree(request.pending) for request in wanted]
    faulty = {}
    if asked:
        forest = part.propose([cut[index] for index in asked])
        faulty = {asked[place]: what for place, what in forest.faulty.items()}
        for place, index in enumerate(asked):
            trees[index] = forest[place]
    return replace(Forest.of(trees), faulty=faulty)  # scores count requests otherwise: no source


def _cut(request: DraftRequest, block_size: int) -> DraftRequest:
    size = min(request.block_size, block_size)
    return replace(request, block_size=size, max_depth=min(request.max_depth, size - 1))
