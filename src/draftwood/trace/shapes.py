"""Fixed tree shapes: which ranks are verified is decided before there are scores.

A shape is what a tree looks like without adaptation. Its nodes stand level by level, within a level by the sum of
their ranks and then by the rank tuple, and the first n of them are verified: at n = 47 the schedule 8, 4, 2, 2, 1, ...
is 8 nodes at depth 1, 32 at depth 2 and the 7 likeliest by rank at depth 3 (CAST, appendix G, compares such trees).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core import MAX_NODES, DraftTree
from ..errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A static tree: node 0 is the root, parents stand before their children."""

    name: str
    parent: np.ndarray
    """(n + 1,) int32, -1 for the root."""
    depth: np.ndarray
    """(n + 1,) int32, 0 for the root."""
    rank: np.ndarray
    """(n + 1,) int32 rank among the candidates of the node's depth, 0 for the root."""

    @property
    def num_nodes(self) -> int:
        """Nodes, the root excluded."""
        return len(self.parent) - 1

    @property
    def candidates(self) -> int:
        """Candidates per depth that the shape reads."""
        return int(self.rank.max()) + 1

    def tree(self, logp: np.ndarray, ids: np.ndarray, pending: int, max_depth: int) -> DraftTree:
        """The shape filled with one round's scores.

        `logp` and `ids` (D, K), K at least `candidates`; levels below `max_depth` are left out. Nodes keep the shape's
        order, so `logp` of the tree need not fall from node to node: this tree is no prefix of anything.
        """
        kept = int(np.searchsorted(self.depth, max_depth, side="right"))
        parent, depth, rank = self.parent[:kept], self.depth[:kept], self.rank[:kept]
        token = np.full(kept, pending, dtype=np.int64)
        token[1:] = ids[depth[1:] - 1, rank[1:]]
        total = np.zeros(kept, dtype=np.float64)
        own = logp[depth[1:] - 1, rank[1:]].astype(np.float64)
        for node in range(1, kept):
            total[node] = total[parent[node]] + own[node - 1]
        return DraftTree(parent, token, depth, rank, total)


def from_branching(name: str, branching: list[int], num_nodes: int) -> Shape:
    """The first `num_nodes` nodes of the tree whose every node at depth d has `branching[d]` children.

    Raises `UsageError` for a width below 1 or a node count outside 1..1024.
    """
    if not 1 <= num_nodes <= MAX_NODES:
        raise UsageError(f"nodes {num_nodes}: expected 1 to {MAX_NODES}")
    if not branching or min(branching) < 1:
        raise UsageError(f"branching {branching}: expected widths of at least 1")
    level: list[tuple[int, ...]] = [()]
    paths: list[tuple[int, ...]] = [()]
    for width in branching:
        # A level is cut to what still fits: the best by rank sum keep their best parents, so nothing kept is orphaned.
        grown = [(*path, rank) for path in level for rank in range(width)]
        level = sorted(grown, key=lambda path: (sum(path), path))[: num_nodes + 1 - len(paths)]
        paths += level
        if len(paths) > num_nodes:
            break
    index = {path: node for node, path in enumerate(paths)}
    parent = [-1] + [index[path[:-1]] for path in paths[1:]]
    depth = [len(path) for path in paths]
    rank = [0] + [path[-1] for path in paths[1:]]
    return Shape(name, *(np.array(column, dtype=np.int32) for column in (parent, depth, rank)))


def chain(num_nodes: int, depth: int) -> Shape:
    """The best candidate of every depth, at most `num_nodes` of them."""
    return from_branching("chain", [1] * min(depth, num_nodes), num_nodes)


def binary(num_nodes: int, depth: int) -> Shape:
    """Two children everywhere."""
    return from_branching("binary", [2] * depth, num_nodes)


def medusa(num_nodes: int, depth: int) -> Shape:
    """The Medusa-like schedule 8, 4, 2, 2, then one child each."""
    return from_branching("medusa", ([8, 4, 2, 2] + [1] * depth)[:depth], num_nodes)


SHAPES: dict[str, Callable[[int, int], Shape]] = {"medusa": medusa, "binary": binary, "chain": chain}


def named_shape(name: str, num_nodes: int, depth: int) -> Shape:
    """The shape called `name` with `num_nodes` nodes over at most `depth` levels; `UsageError` if there is none."""
    if name not in SHAPES:
        raise UsageError(f"shape {name!r}: expected one of {', '.join(SHAPES)}")
    return SHAPES[name](num_nodes, depth)
