"""A drafter whose trees always have as many nodes as they may: rounds of every size can be measured with it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...core import DraftBlock, DraftTree, Forest
from ...draft.base import Committed, Drafter, DraftRequest

FILLER_LOGP = -60.0
"""Path score of a filler: a gain that no sum notices."""


class FilledDrafter:
    """Another drafter, its trees filled up with children of the root that nobody expects to be right.

    A drafter that scores paths, such as `suffix`, proposes little behind the random texts that costs are measured on;
    what a tree of n nodes costs depends on n, hardly on its shape. Trees of a block drafter, which are as wide behind
    any text, and trees that are full stay as they are.
    """

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self._inner, self._vocab_size = inner, vocab_size
        self.block_size = inner.block_size
        self.target_layer_ids = inner.target_layer_ids
        self.kv_row_bytes = inner.kv_row_bytes

    def allocate(self, kv_rows: int, requests: int) -> None:
        """See `Drafter.allocate`."""
        self._inner.allocate(kv_rows, requests)

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """See `Drafter.open`."""
        self._inner.open(request, token_ids, rows)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """See `Drafter.propose`."""
        forest = self._inner.propose(wanted)
        sizes = [request.max_nodes for request in wanted]
        if isinstance(forest.source, DraftBlock) or (forest.num_rows > sizes).all():
            return forest
        return Forest.of([filled(forest[at], size, self._vocab_size) for at, size in enumerate(sizes)])

    def commit(self, committed: Committed) -> None:
        """See `Drafter.commit`."""
        self._inner.commit(committed)

    def close(self, request: int) -> None:
        """See `Drafter.close`."""
        self._inner.close(request)


def filled(tree: DraftTree, num_nodes: int, vocab_size: int) -> DraftTree:
    """The tree with at least `num_nodes` nodes, as far as the vocabulary has tokens for them."""
    below = tree.token[1:][tree.parent[1:] == 0]
    tokens = np.setdiff1d(np.arange(min(vocab_size, num_nodes + len(below))), below)
    tokens = tokens[: max(0, num_nodes - tree.num_nodes)]
    more = len(tokens)
    return DraftTree(
        parent=np.append(tree.parent, np.zeros(more, np.int32)),
        token=np.append(tree.token, tokens),
        depth=np.append(tree.depth, np.ones(more, np.int32)),
        rank=np.append(tree.rank, np.arange(len(below), len(below) + more, dtype=np.int32)),
        logp=np.append(tree.logp, np.full(more, min(FILLER_LOGP, float(tree.logp[-1])))),
    )
