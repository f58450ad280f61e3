"""Best-first growth of a draft tree over the scores of one drafter pass (DDTree, Algorithm 1; CAST, Theorem 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..core import MAX_NODES, DraftBlock, DraftTree, Forest
from ..errors import DraftwoodError, UsageError
from ..kernel import compiled, first_call


class _Nodes(NamedTuple):
    """The columns of a DraftTree under construction; entry 0 is the root."""

    parent: np.ndarray
    token: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    logp: np.ndarray


class _Scores(NamedTuple):
    """What growth reads: (D, P, K) scores and ids, and how far each row has been checked, (D, P)."""

    logp: np.ndarray
    ids: np.ndarray
    checked: np.ndarray


class _Heap(NamedTuple):
    """Candidates that may come next, as a binary heap: path score, parent node, rank below that parent."""

    logp: np.ndarray
    parent: np.ndarray
    rank: np.ndarray


@compiled
def _tuple_before(a: int, b: int, heap: _Heap, nodes: _Nodes) -> bool:
    """Lexicographic order of the rank tuples of two slots, by walking up parents; tuples are never stored.

    Lift the deeper one to the level of the other, then both until they hang on one parent: there they differ first.
    They do differ: a slot is no ancestor of another, since a child enters the heap after its parent has left it.
    """
    node_a, rank_a = heap.parent[a], heap.rank[a]
    node_b, rank_b = heap.parent[b], heap.rank[b]
    while nodes.depth[node_a] > nodes.depth[node_b]:
        node_a, rank_a = nodes.parent[node_a], nodes.rank[node_a]
    while nodes.depth[node_b] > nodes.depth[node_a]:
        node_b, rank_b = nodes.parent[node_b], nodes.rank[node_b]
    while node_a != node_b:
        node_a, rank_a = nodes.parent[node_a], nodes.rank[node_a]
        node_b, rank_b = nodes.parent[node_b], nodes.rank[node_b]
    return bool(rank_a < rank_b)


@compiled
def _before(a: int, b: int, heap: _Heap, nodes: _Nodes) -> bool:
    """Whether slot `a` comes before slot `b`: higher path score, then smaller rank tuple."""
    if heap.logp[a] != heap.logp[b]:
        return bool(heap.logp[a] > heap.logp[b])
    return _tuple_before(a, b, heap, nodes)


@compiled
def _swap(a: int, b: int, heap: _Heap) -> None:
    heap.logp[a], heap.logp[b] = heap.logp[b], heap.logp[a]
    heap.parent[a], heap.parent[b] = heap.parent[b], heap.parent[a]
    heap.rank[a], heap.rank[b] = heap.rank[b], heap.rank[a]


@compiled
def _sift_up(slot: int, heap: _Heap, nodes: _Nodes) -> None:
    while slot > 0:
        above = (slot - 1) // 2
        if not _before(slot, above, heap, nodes):
            return
        _swap(slot, above, heap)
        slot = above


@compiled
def _sift_down(size: int, heap: _Heap, nodes: _Nodes) -> None:
    slot = 0
    while True:
        below = 2 * slot + 1
        if below >= size:
            return
        if below + 1 < size and _before(below + 1, below, heap, nodes):
            below += 1
        if not _before(below, slot, heap, nodes):
            return
        _swap(slot, below, heap)
        slot = below


@compiled
def _valid(scores: _Scores, at_depth: int, row: int, k: int) -> bool:
    """Whether entry k of a row of candidates may be used; every entry is checked once, and only if growth reads it.

    It must not be NaN or positive, must not exceed its left neighbour, and its token must not stand to its left.
    """
    if k < scores.checked[at_depth, row]:
        return True
    score = scores.logp[at_depth, row, k]
    if not score <= 0.0:
        return False
    if k > 0 and score > scores.logp[at_depth, row, k - 1]:
        return False
    if score > -np.inf:  # filler behind the last real candidate may repeat a token
        for left in range(k):
            if scores.ids[at_depth, row, left] == scores.ids[at_depth, row, k]:
                return False
    scores.checked[at_depth, row] = k + 1
    return True


@compiled
def _put(slot: int, above: int, k: int, scores: _Scores, heap: _Heap, nodes: _Nodes) -> int:
    """Write candidate k below node `above` into `slot`; return 1 when written, 0 when there is none, -1 when faulty."""
    at_depth = nodes.depth[above]
    row = nodes.rank[above] if scores.logp.shape[1] > 1 else 0
    if not _valid(scores, at_depth, row, k):
        return -1
    score = scores.logp[at_depth, row, k]
    if score == -np.inf:
        return 0
    heap.logp[slot] = nodes.logp[above] + np.float64(score)
    heap.parent[slot] = above
    heap.rank[slot] = k
    return 1


@compiled
def _grow(scores: _Scores, candidates: int, max_depth: int, nodes: _Nodes) -> tuple[int, int, int]:
    """Fill `nodes` behind the root; return (nodes, -1, -1), or (nodes, parent, rank) of a faulty score.

    At most two pushes follow a pop: the next sibling takes the popped slot, the first child is appended. Both stand
    strictly behind the popped entry in (-logp, rank tuple), hence pops come out in that order exactly.
    """
    max_nodes = len(nodes.parent) - 1
    heap = _Heap(
        np.empty(max_nodes + 2, np.float64), np.empty(max_nodes + 2, np.int32), np.empty(max_nodes + 2, np.int32)
    )
    node = 0  # also the count: nodes are numbered as they come out
    size = 0
    while True:
        if nodes.depth[node] < max_depth:
            put = _put(size, node, 0, scores, heap, nodes)
            if put < 0:
                return node, node, 0
            if put:
                _sift_up(size, heap, nodes)
                size += 1
        if size == 0:
            return node, -1, -1
        node += 1
        above, k = heap.parent[0], heap.rank[0]
        nodes.parent[node] = above
        nodes.depth[node] = nodes.depth[above] + 1
        nodes.rank[node] = k
        nodes.logp[node] = heap.logp[0]
        nodes.token[node] = scores.ids[nodes.depth[above], nodes.rank[above] if scores.ids.shape[1] > 1 else 0, k]
        if node == max_nodes:
            return node, -1, -1
        put = _put(0, above, k + 1, scores, heap, nodes) if k + 1 < candidates else 0
        if put < 0:
            return node, above, k + 1
        if not put:
            size -= 1
            heap.logp[0], heap.parent[0], heap.rank[0] = heap.logp[size], heap.parent[size], heap.rank[size]
        _sift_down(size, heap, nodes)


@compiled
def _grow_all(
    logp: np.ndarray,
    ids: np.ndarray,
    checked: np.ndarray,
    limits: np.ndarray,
    depths: np.ndarray,
    offsets: np.ndarray,
    nodes: _Nodes,
) -> tuple[int, int, int]:
    """Grow tree after tree into `nodes` and fill `offsets` (R + 1,).

    Return (-1, -1, -1), or (tree, parent, rank) of the first faulty score.
    """
    _, num_depths, _, width = logp.shape
    for tree in range(len(depths)):
        start = offsets[tree]
        nodes.parent[start], nodes.token[start] = -1, limits[tree, 0]
        nodes.depth[start], nodes.rank[start], nodes.logp[start] = 0, 0, 0.0
        offsets[tree + 1] = start + 1
        candidates, max_nodes = min(limits[tree, 1], width), limits[tree, 2]
        max_depth = min(limits[tree, 3], depths[tree], num_depths if width else 0)
        if candidates == 1:
            max_nodes = min(max_nodes, max_depth)
        if max_nodes < 1 or max_depth < 1:
            continue
        own = slice(start, start + max_nodes + 1)
        columns = _Nodes(nodes.parent[own], nodes.token[own], nodes.depth[own], nodes.rank[own], nodes.logp[own])
        scores = _Scores(logp[tree], ids[tree], checked[tree])
        count, above, k = _grow(scores, candidates, max_depth, columns)
        if above >= 0:
            return tree, above, k
        offsets[tree + 1] += count
    return -1, -1, -1


class GrowLimits(NamedTuple):
    """What one tree may become."""

    pending: int
    """The root's token."""
    candidates: int
    """K, cut to what the block carries, on both axes where scores depend on the parent's rank."""
    max_nodes: int
    max_depth: int
    """Bounds the depth beside the block's own."""


def grow_forest(block: DraftBlock, limits: Sequence[GrowLimits], faulty: Mapping[int, str] | None = None) -> Forest:
    """Grow the tree of every request of a block: its `max_nodes` likeliest prefixes, or all that exist.

    Path scores are float64 sums of the float32 scores, parent first; equal ones are ordered by rank tuple. Candidates
    at -inf never become nodes. `faulty` is handed on to the forest.

    Raises UsageError for `max_nodes` outside 0..1024 or `candidates` below 1, DraftwoodError for scores that break
    the contract of DraftBlock (NaN, positive, unsorted, a token twice in one row).
    Source: DDTree (arXiv 2604.12989), Algorithm 1; CAST, section 3 and appendix C.
    """
    for limit in limits:
        if not 0 <= limit.max_nodes <= MAX_NODES:
            raise UsageError(f"max_nodes {limit.max_nodes}: expected 0 to {MAX_NODES}")
        if limit.candidates < 1:
            raise UsageError(f"candidates {limit.candidates}: expected at least 1")
    scores, ids = _plain(block.logp, np.float32), _plain(block.ids, np.int64)  # (R, D, P, K)
    num_trees, num_depths, rows, width = scores.shape
    if rows not in (1, width):
        raise DraftwoodError(f"draft scores with {rows} parent ranks: expected 1 or the {width} candidates")
    asked = np.array(limits, np.int64).reshape(num_trees, 4)
    offsets = np.zeros(num_trees + 1, np.int64)
    nodes = _room(num_trees + sum(limit.max_nodes for limit in limits))
    checked = np.zeros((num_trees, num_depths, rows), np.int32)
    tree, above, k = _grow_all(scores, ids, checked, asked, block.depths, offsets, nodes)
    if tree >= 0:
        node = int(offsets[tree]) + above
        at_depth, row = int(nodes.depth[node]), int(nodes.rank[node]) if rows > 1 else 0
        raise DraftwoodError(
            f"draft score {scores[tree, at_depth, row, k]} of token {ids[tree, at_depth, row, k]} (depth "
            f"{at_depth + 1}, parent rank {row}, rank {k}): expected scores <= 0 in descending order, each token once"
        )
    parent, token, depth, rank, logp = (column[: offsets[-1]] for column in nodes)
    return Forest(offsets, parent, token, depth, rank, logp, faulty or {}, block)


def grow(block: DraftBlock, index: int, *, pending: int, candidates: int, max_nodes: int, max_depth: int) -> DraftTree:
    """Grow the tree of request `index` alone; see `grow_forest`."""
    one = slice(index, index + 1)
    own = DraftBlock(block.logp[one], block.ids[one], block.depths[one])
    return grow_forest(own, [GrowLimits(pending, candidates, max_nodes, max_depth)])[0]


def root_forest(pending: Sequence[int] | np.ndarray) -> Forest:
    """The trees of rounds that draft nothing: the pending tokens (R,) alone."""
    nodes = _room(len(pending))
    nodes.parent[:], nodes.token[:] = -1, pending
    nodes.depth[:], nodes.rank[:], nodes.logp[:] = 0, 0, 0.0
    return Forest(np.arange(len(pending) + 1), *nodes)


def root_tree(pending: int) -> DraftTree:
    """The tree of a round that drafts nothing: the pending token alone."""
    return root_forest([pending])[0]


def _plain(array: np.ndarray, dtype: type) -> np.ndarray:
    """As the kernel was compiled for: contiguous and writable. numpy's own check takes longer than a tree."""
    return array if array.dtype == dtype and array.flags.carray else np.require(array, dtype, ("C", "W"))


def _room(size: int) -> _Nodes:
    """Columns of `size` nodes, not filled in."""
    return _Nodes(
        parent=np.empty(size, np.int32),
        token=np.empty(size, np.int64),
        depth=np.empty(size, np.int32),
        rank=np.empty(size, np.int32),
        logp=np.empty(size, np.float64),
    )


def warm_up() -> None:
    """Compile the growth kernel, so that loading pays for it and not the first round."""
    block = DraftBlock(
        logp=np.zeros((1, 1, 1, 1), np.float32), ids=np.zeros((1, 1, 1, 1), np.int64), depths=np.ones(1, np.int64)
    )
    first_call(lambda: grow(block, 0, pending=0, candidates=1, max_nodes=1, max_depth=1))
