"""Trees for the tests of `draftwood.tree`, `draftwood.verify` and the pool."""

from __future__ import annotations

import numpy as np

from draftwood.core import DraftTree, Forest


def random_tree(rng: np.random.Generator, num_nodes: int, vocabulary: int = 50, reach: int | None = None) -> DraftTree:
    """A random tree in topological order whose siblings differ; ranks count siblings.

    A parent is one of the last `reach` nodes, so that small values make deep trees.
    """
    parent, token, depth, rank = [-1], [int(rng.integers(vocabulary))], [0], [0]
    for node in range(1, num_nodes + 1):
        above = int(rng.integers(max(0, node - reach) if reach else 0, node))
        siblings = [i for i in range(1, node) if parent[i] == above]
        free = [t for t in range(vocabulary) if t not in {token[i] for i in siblings}]
        parent.append(above)
        token.append(int(rng.choice(free)))
        depth.append(depth[above] + 1)
        rank.append(len(siblings))
    logp = np.concatenate([[0.0], -np.sort(rng.exponential(3.0, num_nodes))])
    return DraftTree(
        np.array(parent, np.int32), np.array(token), np.array(depth, np.int32), np.array(rank, np.int32), logp
    )


def hand_made() -> DraftTree:
    """Root 7 with children 3 and 4; 3 has children 4 and 5, 4 has child 4."""
    return DraftTree(
        np.array([-1, 0, 1, 0, 1, 3], np.int32),
        np.array([7, 3, 4, 4, 5, 4]),
        np.array([0, 1, 2, 1, 2, 2], np.int32),
        np.array([0, 0, 0, 1, 1, 0], np.int32),
        np.array([0.0, -0.5, -0.75, -1.0, -1.5, -2.0]),
    )


def random_forest(rng: np.random.Generator, sizes: list[int], vocabulary: int = 50, reach: int | None = None) -> Forest:
    """Random trees of these many nodes."""
    return Forest.of([random_tree(rng, size, vocabulary, reach) for size in sizes])
