"""How draft trees lie in a batch: positions, ancestors, children, the way down."""

from __future__ import annotations

import numpy as np

from ..core import DraftTree, Forest
from ..kernel import compiled, first_call

WORD_BITS = 64


@compiled
def _fill_words(offsets: np.ndarray, parent: np.ndarray, words: np.ndarray) -> None:
    for tree in range(len(offsets) - 1):
        start = offsets[tree]
        for row in range(start, offsets[tree + 1]):
            if parent[row] >= 0:
                words[row, :] = words[start + parent[row], :]
            node = row - start
            words[row, node // 64] |= np.int64(1) << np.int64(node % 64)


@compiled
def _descend(
    offsets: np.ndarray, parent: np.ndarray, token: np.ndarray, choice: np.ndarray, accepted: np.ndarray
) -> None:
    """Fill `accepted` (T,): a parent stands before its children and siblings differ, so one pass in order is enough."""
    for tree in range(len(offsets) - 1):
        start = offsets[tree]
        accepted[start] = True
        for row in range(start + 1, offsets[tree + 1]):
            above = start + parent[row]
            accepted[row] = accepted[above] and choice[above] == token[row]


@compiled
def _children(
    offsets: np.ndarray,
    parent: np.ndarray,
    token: np.ndarray,
    rows: np.ndarray,
    trees: np.ndarray,
    wanted: np.ndarray,
    found: np.ndarray,
) -> None:
    for at in range(len(rows)):
        start = offsets[trees[at]]
        found[at] = -1
        for row in range(rows[at] + 1, offsets[trees[at] + 1]):
            if parent[row] == rows[at] - start and token[row] == wanted[at]:
                found[at] = row
                break


@compiled
def _keep(
    parent: np.ndarray, depth: np.ndarray, rank: np.ndarray, candidates: int, max_depth: int, node_of: np.ndarray
) -> int:
    """Fill `node_of` (M,) with each node's new number, -1 where it goes; return how many stay."""
    node_of[0] = 0
    count = 1
    for node in range(1, len(parent)):
        node_of[node] = -1
        if rank[node] < candidates and depth[node] <= max_depth and node_of[parent[node]] >= 0:
            node_of[node] = count
            count += 1
    return count


def narrowed(tree: DraftTree, *, candidates: int, max_nodes: int, max_depth: int) -> DraftTree:
    """The tree that tighter limits would have given: at most `candidates` children a node, the likeliest ones.

    Holds for best-first trees whose siblings are ranked by score: what is left keeps its order.
    """
    node_of = np.empty(tree.num_rows, np.int32)
    _keep(tree.parent, tree.depth, tree.rank, candidates, max_depth, node_of)
    kept = np.flatnonzero(node_of >= 0)[: max_nodes + 1]
    parent = np.where(kept > 0, node_of[tree.parent[kept]], -1).astype(np.int32)
    return DraftTree(parent, tree.token[kept], tree.depth[kept], tree.rank[kept], tree.logp[kept])


def positions(forest: Forest, root_pos: np.ndarray) -> np.ndarray:
    """Absolute positions of the rows, (T,) int64: the root's, `root_pos` (R,), + depth. Siblings share one."""
    pos: np.ndarray = forest.depth + np.repeat(root_pos, forest.num_rows)
    return pos


def ancestor_words(forest: Forest) -> np.ndarray:
    """Which rows of its tree a row sees, (T, W) int64: bit b of word w stands for node 64 w + b, itself included.

    W is what the largest tree needs. A parent stands before its children, so a row is its parent's row plus itself.
    """
    words = np.zeros((len(forest.parent), -(-int(forest.num_rows.max()) // WORD_BITS)), np.int64)
    _fill_words(forest.offsets, forest.parent, words)
    return words


def descend(forest: Forest, choice: np.ndarray) -> np.ndarray:
    """Rows (n,) int64, increasing, of the paths that follow `choice` (T,), the token chosen at every row."""
    accepted = np.empty(len(choice), np.bool_)
    _descend(forest.offsets, forest.parent, forest.token, choice, accepted)
    return np.flatnonzero(accepted)


def children(forest: Forest, rows: np.ndarray, trees: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The child of each of `rows` (n,), one of tree `trees` (n,), that carries `tokens` (n,); -1 for none."""
    found = np.empty(len(rows), np.int64)
    _children(forest.offsets, forest.parent, forest.token, rows, trees, tokens, found)
    return found


def find_child(tree: DraftTree, node: int, token: int) -> int:
    """The child of `node` that carries `token`, or -1; O(M), vectorised."""
    first = node + 1  # children stand behind their parent
    hits = (tree.parent[first:] == node) & (tree.token[first:] == token)
    hit = int(hits.argmax()) if len(hits) else 0
    return first + hit if len(hits) and hits[hit] else -1


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
    """Compile the kernels, so that loading pays for it and not the first round."""
    two = np.zeros(2, np.int32)
    tree = DraftTree(np.array([-1, 0], np.int32), two.astype(np.int64), two, two, two.astype(np.float64))
    forest, zero = Forest.of([tree]), np.zeros(1, np.int64)
    first_call(lambda: (ancestor_words(forest), descend(forest, forest.token), children(forest, zero, zero, zero)))
    first_call(lambda: narrowed(tree, candidates=1, max_nodes=1, max_depth=1))
