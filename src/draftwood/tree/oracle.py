"""Plain Python versions of growth and visibility, for tests: every prefix, sorted."""

from __future__ import annotations

import numpy as np

from ..core import DraftBlock, DraftTree


def all_prefixes(block: DraftBlock, index: int, *, candidates: int, max_depth: int) -> dict[tuple[int, ...], float]:
    """Path log-probability of every rank tuple up to the usable depth, -inf ones left out."""
    logp = block.logp[index]
    num_depths, rows, width = logp.shape
    limit = min(num_depths, int(block.depths[index]), max_depth)
    level: dict[tuple[int, ...], float] = {(): 0.0}
    found: dict[tuple[int, ...], float] = {}
    for at_depth in range(limit):
        below = {}
        for ranks, path_logp in level.items():
            row = ranks[-1] if ranks and rows > 1 else 0
            for k in range(min(candidates, width)):
                score = float(logp[at_depth, row, k])
                if score > -np.inf:
                    below[(*ranks, k)] = path_logp + score
        found.update(below)
        level = below
    return found


def grow_by_sorting(
    block: DraftBlock, index: int, *, pending: int, candidates: int, max_nodes: int, max_depth: int
) -> DraftTree:
    """The same tree as `grow`, by listing every prefix and sorting by (-logp, rank tuple). Exponential."""
    prefixes = all_prefixes(block, index, candidates=candidates, max_depth=max_depth)
    chosen = sorted(prefixes, key=lambda ranks: (-prefixes[ranks], ranks))[:max_nodes]
    node_of: dict[tuple[int, ...], int] = {(): 0}
    parent, token, depth, rank, logp = [-1], [pending], [0], [0], [0.0]
    for node, ranks in enumerate(chosen, start=1):
        node_of[ranks] = node
        row = ranks[-2] if len(ranks) > 1 and block.logp.shape[2] > 1 else 0
        parent.append(node_of[ranks[:-1]])
        token.append(int(block.ids[index, len(ranks) - 1, row, ranks[-1]]))
        depth.append(len(ranks))
        rank.append(ranks[-1])
        logp.append(prefixes[ranks])
    return DraftTree(
        np.array(parent, np.int32),
        np.array(token, np.int64),
        np.array(depth, np.int32),
        np.array(rank, np.int32),
        np.array(logp, np.float64),
    )


def visibility_by_walking(parents: np.ndarray) -> np.ndarray:
    """(M, M) bool, each row by walking from the node up to the root."""
    visible = np.zeros((len(parents), len(parents)), bool)
    for row in range(len(parents)):
        node = row
        while node >= 0:
            visible[row, node] = True
            node = int(parents[node])
    return visible
