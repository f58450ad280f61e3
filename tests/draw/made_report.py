"""Rounds for the report's tests."""

from __future__ import annotations

import numpy as np

from draftwood.draw.views import RoundView, TreeView

WORDS = ("the", " cat", " sat", "\n", " on", " <b>", " a", " mat", " &", " é")


def tree(token: str = " cat", nodes: int = 5, seed: int = 0) -> TreeView:
    """A random tree whose accepted path follows best children for two steps at most."""
    rng = np.random.default_rng(seed)
    parent = [-1, *(int(rng.integers(0, node)) for node in range(1, nodes + 1))]
    path = [0]
    while len(path) < 3 and path[-1] in parent:
        path.append(parent.index(path[-1]))
    probs = tuple(float(p) for p in rng.random(nodes + 1))
    return TreeView((token,) * (nodes + 1), tuple(parent), probs, probs, tuple(range(nodes + 1)), tuple(path), token)


def rounds(seed: int = 0) -> list[RoundView]:
    """Eight rounds, the fourth without a draft."""
    rng = np.random.default_rng(seed)
    found = []
    context = 7
    for index in range(8):
        committed = int(rng.integers(1, 5))
        text = "".join(WORDS[int(i)] for i in rng.integers(0, len(WORDS), committed))
        drafted = index != 3
        view = tree(seed=seed + index) if drafted else None
        rows = 6 if drafted else 1
        found.append(RoundView(index, text, rows, committed, drafted, context, 0.01 + 0.001 * index, view))
        context += committed
    return found
