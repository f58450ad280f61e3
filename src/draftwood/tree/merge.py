"""The union of draft trees: several drafters' proposals for one request as one tree, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..core import TREE_COLUMNS, Forest
from ..errors import UsageError
from ..kernel import compiled, first_call

_NONE = -1


class _Columns(NamedTuple):
    """Columns of the trees of all parts, part after part."""

    parent: np.ndarray
    token: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    logp: np.ndarray


class _Paths(NamedTuple):
    """The distinct paths of one request in order of arrival; children of a path are a list, newest first."""

    parent: np.ndarray
    token: np.ndarray
    logp: np.ndarray
    child: np.ndarray
    sibling: np.ndarray


@compiled
def _new_paths(room: int) -> _Paths:
    paths = _Paths(
        np.empty(room, np.int32),
        np.empty(room, np.int64),
        np.empty(room, np.float64),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )
    paths.parent[0], paths.child[0], paths.sibling[0] = _NONE, _NONE, _NONE
    paths.logp[0] = 0.0
    return paths


@compiled
def _add_tree(parts: _Columns, begin: int, end: int, paths: _Paths, size: int) -> int:
    """Add the tree in rows [begin, end) to the `size` paths; return their new number."""
    path_of = np.zeros(end - begin, np.int32)
    for row in range(begin + 1, end):
        above = path_of[parts.parent[row]]
        path = paths.child[above]
        while path != _NONE and paths.token[path] != parts.token[row]:
            path = paths.sibling[path]
        if path == _NONE:
            path = size
            size += 1
            paths.parent[path] = above
            paths.token[path] = parts.token[row]
            paths.logp[path] = parts.logp[row]
            paths.child[path] = _NONE
            paths.sibling[path] = paths.child[above]
            paths.child[above] = path
        else:
            paths.logp[path] = max(paths.logp[path], parts.logp[row])
        path_of[row - begin] = path
    return size


@compiled
def _write_tree(paths: _Paths, size: int, max_nodes: int, pending: int, start: int, union: _Columns) -> int:
    """Write the best `max_nodes` paths behind a root to rows `start`, ... of `union`; return the rows written.

    A path's score is its best score in any part. The part that gave it holds its parent too, at least as likely; so
    the parent's best is no smaller than the child's. The parent also arrived before the child. Hence a stable sort by
    score alone puts parents before children, ties included.
    """
    order = np.argsort(-paths.logp[1:size], kind="mergesort") + 1
    num_rows = min(max_nodes, size - 1) + 1
    node_of = np.zeros(size, np.int32)
    widths = np.zeros(num_rows, np.int32)
    union.parent[start], union.token[start], union.logp[start] = _NONE, pending, 0.0
    union.depth[start], union.rank[start] = 0, 0
    for node in range(1, num_rows):
        path = order[node - 1]
        above = node_of[paths.parent[path]]
        union.parent[start + node] = above
        union.token[start + node] = paths.token[path]
        union.depth[start + node] = union.depth[start + above] + 1
        union.rank[start + node] = widths[above]
        union.logp[start + node] = paths.logp[path]
        widths[above] += 1
        node_of[path] = node
    return num_rows


@compiled
def _merge(parts: _Columns, offsets: np.ndarray, max_nodes: np.ndarray, union: _Columns) -> np.ndarray:
    """Fill `union`, request after request; return the offsets (R + 1,) of its trees.

    `offsets` (parts, R + 1) are rows of `parts`.
    """
    num_parts, num_requests = offsets.shape[0], offsets.shape[1] - 1
    union_offsets = np.zeros(num_requests + 1, np.int64)
    for request in range(num_requests):
        room = 1
        for part in range(num_parts):
            room += offsets[part, request + 1] - offsets[part, request]
        paths, size = _new_paths(room), 1
        for part in range(num_parts):
            size = _add_tree(parts, offsets[part, request], offsets[part, request + 1], paths, size)
        start = union_offsets[request]
        pending = parts.token[offsets[0, request]]
        rows = _write_tree(paths, size, max_nodes[request], pending, start, union)
        union_offsets[request + 1] = start + rows
    return union_offsets


def merge(forests: Sequence[Forest], max_nodes: np.ndarray) -> Forest:
    """The union of trees i of all `forests`, for every i, each cut to its best `max_nodes` (R,) nodes.

    The same tokens from the root on are one node, whose score is the largest that a part gives it. Nodes are in
    best-first order by score; equal ones in order of arrival: forest after forest, each in its own order. `source` of
    the result is the tuple of forests. A tree is `faulty` if a part's is and the union has nothing but the root, so
    that the fault cost the round its draft; where another part's tree serves, the fault shows in `faults` only.

    Raises UsageError for no forests, or for forests of different requests.
    """
    bounds = np.asarray(max_nodes, np.int64)
    _check(forests, bounds)
    starts = np.cumsum([0, *(forest.offsets[-1] for forest in forests)])[:-1]
    offsets = np.stack([forest.offsets + start for forest, start in zip(forests, starts, strict=True)])
    parts = _Columns(*(np.concatenate([getattr(forest, name) for forest in forests]) for name in TREE_COLUMNS))
    union = _Columns(*(np.empty_like(column) for column in parts))
    union_offsets = _merge(parts, offsets, bounds, union)
    kept = _Columns(*(column[: union_offsets[-1]] for column in union))
    merged = Forest(union_offsets, kept.parent, kept.token, kept.depth, kept.rank, kept.logp, source=tuple(forests))
    costly = {index: what for index, what in faults(merged).items() if merged.num_rows[index] == 1}
    return replace(merged, faulty=costly)


def faults(forest: Forest) -> Mapping[int, str]:
    """What was wrong with the scores of tree i, in the forest itself or in any of the forests that it was made from."""
    found: dict[int, list[str]] = {}
    for part in forest.source if isinstance(forest.source, tuple) else ():
        for index, what in faults(part).items():
            found.setdefault(index, []).append(what)
    for index, what in forest.faulty.items():
        found.setdefault(index, [what])
    return {index: "; ".join(found[index]) for index in sorted(found)}


def _check(forests: Sequence[Forest], max_nodes: np.ndarray) -> None:
    if not forests:
        raise UsageError("0 forests to merge: expected at least 1")
    first = forests[0]
    for forest in forests:
        if len(forest) != len(first) or len(forest) != len(max_nodes):
            raise UsageError(f"forest of {len(forest)} trees: expected {len(first)}, with {len(max_nodes)} bounds")
        if (forest.token[forest.offsets[:-1]] != first.token[first.offsets[:-1]]).any():
            raise UsageError("forests with different roots: expected the pending tokens of the same requests")
    if (max_nodes < 0).any():
        raise UsageError(f"max_nodes {max_nodes.min()}: expected at least 0")


def warm_up() -> None:
    """Compile the kernel, so that loading pays for it and not the first round."""
    zeros = np.zeros(2, np.int32)
    parent = np.array([_NONE, 0], np.int32)
    forest = Forest(np.array([0, 2]), parent, zeros.astype(np.int64), np.array([0, 1], np.int32), zeros, np.zeros(2))
    first_call(lambda: merge([forest, forest], np.ones(1, np.int64)))
