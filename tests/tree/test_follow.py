"""How far a text follows a tree."""

from __future__ import annotations

import numpy as np

from draftwood.core import DraftTree
from draftwood.tree.follow import follow


def test_follow_by_hand() -> None:
    #        root - 1(a) - 3(c)
    #             - 2(b) - 4(c) - 5(d)
    tree = DraftTree(
        np.array([-1, 0, 0, 1, 2, 4], np.int32), np.array([9, 1, 2, 3, 3, 4]), np.array([0, 1, 1, 2, 2, 3], np.int32),
        np.zeros(6, np.int32), np.zeros(6),
    )  # fmt: skip
    for text, accepted, path in (
        ([2, 3, 4, 5], [0, 0, 1, 1, 2, 3], [0, 2, 4, 5]),
        ([1, 3, 4], [0, 1, 1, 2, 2, 2], [0, 1, 3]),
        ([2], [0, 0, 1, 1, 1, 1], [0, 2]),
        ([], [0] * 6, [0]),
    ):
        found = follow(tree, np.array(text, np.int32))
        assert found.accepted.tolist() == accepted
        assert found.path.tolist() == path
