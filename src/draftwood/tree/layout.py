"""How a draft tree lies in a pack: positions, visibility, child lookup."""

from __future__ import annotations

import numpy as np

from ..core import ROOT_NODE, DraftTree
from .kernel import compiled, first_call


@compiled
def _fill_visibility(parents: np.ndarray, visible: np.ndarray) -> None:
    for node in range(len(parents)):
        above = parents[node]
        if above >= 0:
            visible[node, : above + 1] = visible[above, : above + 1]
        visible[node, node] = True


def positions(tree: DraftTree, root_pos: int) -> np.ndarray:
    """Absolute positions of the rows, (M,) int64: `root_pos` + depth. Siblings share one."""
    pos: np.ndarray = tree.depth.astype(np.int64) + root_pos
    return pos


def visibility(tree: DraftTree) -> np.ndarray:
    """Which rows a row sees, (M, M) bool: [i, j] is true where j is i or an ancestor of i.

    A parent stands before its children, so a row is its parent's row plus itself.
    """
    visible = np.zeros((tree.num_rows, tree.num_rows), np.bool_)  # (M, M)
    _fill_visibility(np.require(tree.parent, np.int32, ("C", "W")), visible)
    return visible


def find_child(tree: DraftTree, node: int, token: int) -> int:
    """The child of `node` that carries `token`, or -1; O(M), vectorised."""
    first = node + 1  # children stand behind their parent
    hits = (tree.parent[first:] == node) & (tree.token[first:] == token)
    hit = int(hits.argmax()) if len(hits) else 0
    return first + hit if len(hits) and hits[hit] else -1


def descend(tree: DraftTree, choice: np.ndarray) -> np.ndarray:
    """The path (committed,) int64, root first, that follows `choice` (M,), the token chosen at every node.

    One vectorised comparison finds the nodes that carry the choice of their parent; only those are looked at.
    """
    path = [ROOT_NODE]
    agreeing = np.flatnonzero(choice[tree.parent[1:]] == tree.token[1:]) + 1
    for node in agreeing.tolist():  # ascending, so a parent is met before its children
        if tree.parent[node] == path[-1]:
            path.append(node)
    return np.array(path, np.int64)


def check_integrity(tree: DraftTree) -> None:
    """Assert what every reader of a tree relies on; AssertionError names what is broken."""
    parent, depth = tree.parent, tree.depth
    num_rows = tree.num_rows
    columns = (tree.token, depth, tree.rank, tree.logp)
    assert num_rows >= 1 and all(column.shape == (num_rows,) for column in columns), "columns differ in length"
    assert parent[0] == -1 and depth[0] == 0 and tree.rank[0] == 0 and tree.logp[0] == 0.0, "node 0 is not a root"
    nodes, above = np.arange(1, num_rows), parent[1:]
    assert np.all((above >= 0) & (above < nodes)), "a parent does not stand before its child"
    assert np.all(depth[1:] == depth[above] + 1), "a depth is not its parent's plus one"
    assert np.all(np.isfinite(tree.logp)), "a path score is not finite"
    assert np.all(np.diff(tree.logp) <= 0.0), "path scores increase"
    order = np.lexsort((nodes, above))  # siblings side by side, in node order
    same = np.diff(above[order]) == 0
    previous = np.where(np.concatenate(([False], same)), np.concatenate(([-1], tree.rank[1:][order][:-1])), -1)
    assert np.all(tree.rank[1:][order] == previous + 1), "sibling ranks are not 0, 1, 2, ... in node order"
    pairs = np.stack([above.astype(np.int64), tree.token[1:]], axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs), "two siblings carry one token"


def warm_up() -> None:
    """Compile the visibility kernel, so that loading pays for it and not the first round."""
    zeros = np.zeros(2, np.int32)
    tree = DraftTree(np.array([-1, 0], np.int32), zeros.astype(np.int64), zeros, zeros, zeros.astype(np.float64))
    first_call(lambda: visibility(tree))
