"""The trees of a trace's rounds, each grown once, and how far the realised text follows every prefix of them.

Best-first order puts a parent before its children, so the accepted length of the best n-node tree is the number of
its first n nodes that lie on the realised continuation: once that count is known per node, every budget is a look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..core import DraftBlock, DraftTree, Forest
from ..errors import DraftwoodError, TraceError
from ..tree.follow import follow
from ..tree.grow import grow
from ..tree.layout import narrowed
from ..tree.merge import merge
from .format import Trace


@dataclass(frozen=True, slots=True, eq=False)
class GrownRound:
    """One round's largest tree and what the text makes of it."""

    tree: DraftTree
    gains: np.ndarray
    """(N,) float64, non-increasing."""
    accepted: np.ndarray
    """(N + 1,) int32: entry n is the accepted length of the best n-node tree."""
    path: np.ndarray
    """(accepted + 1,) int64 nodes on the realised text, the root first; the best n-node tree accepts those <= n."""


class GrownTrees:
    """Grows rounds on demand and keeps them; `candidates` and `max_nodes` as in `tree.grow`."""

    def __init__(self, trace: Trace, *, candidates: int, max_nodes: int) -> None:
        self._trace = trace
        self.candidates = candidates
        self.max_nodes = max_nodes
        self.max_depth = trace.max_depth()
        rounds = trace.rounds
        self._block = DraftBlock(rounds.logp[:, :, None, :], rounds.ids[:, :, None, :], rounds.depth.astype(np.int64))
        self._grown: dict[int, GrownRound] = {}

    def __getitem__(self, round_index: int) -> GrownRound:
        """The round's tree; raises `TraceError` if its scores break the drafter's contract."""
        found = self._grown.get(round_index)
        if found is not None:
            return found
        limits = {
            "candidates": self.candidates,
            "max_nodes": self.max_nodes,
            "max_depth": int(self.max_depth[round_index]),
        }
        pending = int(self._trace.rounds.pending[round_index])
        try:
            tree = grow(self._block, round_index, pending=pending, **limits)
        except DraftwoodError as error:
            raise TraceError(f"round {round_index}: {error}") from error
        stored = stored_tree(self._trace, round_index)
        if stored.num_nodes:
            parts = [Forest.of([part]) for part in (tree, narrowed(stored, **limits))]
            tree = merge(parts, np.array([self.max_nodes]))[0]
        followed = follow(tree, self._trace.realised(round_index))
        grown = self._grown[round_index] = GrownRound(tree, tree.gains, followed.accepted, followed.path)
        return grown


def stored_tree(trace: Trace, round_index: int) -> DraftTree:
    """What a drafter that scores paths proposed in a round, as wide as it had it; the root alone where none did."""
    table = trace.trees
    rows = slice(int(table.offsets[round_index]), int(table.offsets[round_index + 1]))
    parent = np.concatenate([[-1], table.parent[rows]]).astype(np.int32)
    depth = np.zeros(len(parent), np.int32)
    for node in range(1, len(parent)):
        depth[node] = depth[parent[node]] + 1
    return DraftTree(
        parent=parent,
        token=np.concatenate([[trace.rounds.pending[round_index]], table.token[rows]]).astype(np.int64),
        depth=depth,
        rank=np.concatenate([[0], table.rank[rows]]).astype(np.int32),
        logp=np.concatenate([[0.0], table.logp[rows]]),
    )


class Nursery:
    """Where the trees of one trace grow, by (candidates, max_nodes): shared by the policies replayed on it."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._by_limits: dict[tuple[int, int], GrownTrees] = {}

    def get(self, candidates: int, max_nodes: int) -> GrownTrees:
        """Trees with those limits; larger ones that are already there serve a smaller `max_nodes`."""
        bound = self.bound(candidates, max_nodes)
        for (known, size), trees in self._by_limits.items():
            if known == candidates and size >= bound:
                return trees
        trees = GrownTrees(self.trace, candidates=candidates, max_nodes=bound)
        self._by_limits[candidates, bound] = trees
        return trees

    @cached_property
    def cheap(self) -> Nursery:
        """Where only the trees of the cheap part grow, the one that scores paths."""
        return Nursery(self.trace.part("trees"))

    def bound(self, candidates: int, max_nodes: int) -> int:
        """`max_nodes`, or the number of nodes that a full tree of K candidates over all depths has, if less.

        A stored tree counts as one path: it has no more depths than nodes.
        """
        stored = int(np.diff(self.trace.trees.offsets).max(initial=0))
        nodes, level = 0, 1
        for _ in range(max(self.trace.rounds.logp.shape[1], stored)):
            level *= candidates
            nodes += level
            if nodes >= max_nodes:
                return max_nodes
        return nodes
