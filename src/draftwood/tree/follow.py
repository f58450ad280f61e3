"""How far a text follows a draft tree, for every number of its nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core import DraftTree
from ..kernel import compiled, first_call


class Followed(NamedTuple):
    """How far a text follows a tree."""

    accepted: np.ndarray
    """(M,) int32: entry n is the accepted length of the first n nodes."""
    path: np.ndarray
    """(accepted + 1,) int64 nodes on the text, the root first."""


@compiled
def _follow(
    parent: np.ndarray,
    token: np.ndarray,
    depth: np.ndarray,
    realised: np.ndarray,
    accepted: np.ndarray,
    path: np.ndarray,
) -> int:
    """Fill `accepted` (M,) and the front of `path` (M,), the nodes that lie on `realised`; return their number.

    A text runs through one node per depth, and its node of a depth stands behind those of the depths above.
    """
    length = 1
    path[0] = 0
    accepted[0] = 0
    for node in range(1, len(parent)):
        at = depth[node] - 1
        if at == length - 1 and at < len(realised) and parent[node] == path[at] and token[node] == realised[at]:
            path[length] = node
            length += 1
        accepted[node] = length - 1
    return length


def follow(tree: DraftTree, realised: np.ndarray) -> Followed:
    """Which nodes lie on the text `realised` (integers, pending token excluded), for every number of nodes.

    Any order with parents before children will do.
    """
    accepted = np.empty(tree.num_rows, np.int32)
    path = np.empty(tree.num_rows, np.int64)
    text = np.require(realised, np.int32, ("C", "W"))
    length = _follow(tree.parent, tree.token, tree.depth, text, accepted, path)
    return Followed(accepted, path[:length])


def warm_up() -> None:
    """Compile the kernel, so that loading pays for it and not the first round."""
    zeros = np.zeros(1, np.int32)
    root = DraftTree(zeros - 1, zeros.astype(np.int64), zeros, zeros, np.zeros(1))
    first_call(lambda: follow(root, zeros))
