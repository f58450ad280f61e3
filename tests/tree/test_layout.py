"""Positions, visibility and child lookup against plain walks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.tree.grow import root_tree
from draftwood.tree.layout import check_integrity, descend, find_child, positions, visibility
from draftwood.tree.oracle import visibility_by_walking


def random_tree(rng: np.random.Generator, num_nodes: int, vocabulary: int = 50) -> DraftTree:
    """A random tree in topological order whose siblings differ; ranks count siblings."""
    parent, token, depth, rank = [-1], [int(rng.integers(vocabulary))], [0], [0]
    for node in range(1, num_nodes + 1):
        above = int(rng.integers(node))
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


def test_by_hand() -> None:
    tree = hand_made()
    check_integrity(tree)
    assert positions(tree, 100).tolist() == [100, 101, 102, 101, 102, 102]
    expected = ["1.....", "11....", "111...", "1..1..", "11..1.", "1..1.1"]
    assert visibility(tree).tolist() == [[cell == "1" for cell in row] for row in expected]
    assert [find_child(tree, 0, 3), find_child(tree, 0, 4), find_child(tree, 0, 5)] == [1, 3, -1]
    assert [find_child(tree, 1, 4), find_child(tree, 3, 4), find_child(tree, 5, 4)] == [2, 5, -1]
    assert descend(tree, np.array([4, 9, 9, 4, 9, 9])).tolist() == [0, 3, 5]
    assert descend(tree, np.array([3, 3, 9, 4, 9, 9])).tolist() == [0, 1]
    assert descend(tree, np.array([7, 4, 9, 4, 9, 9])).tolist() == [0]


@pytest.mark.parametrize("num_nodes", [0, 1, 5, 40, 300])
def test_random_trees(num_nodes: int) -> None:
    rng = np.random.default_rng(num_nodes)
    for _ in range(5):
        tree = random_tree(rng, num_nodes, vocabulary=400)
        check_integrity(tree)
        visible = visibility(tree)
        np.testing.assert_array_equal(visible, visibility_by_walking(tree.parent))
        np.testing.assert_array_equal(visible.sum(1) - 1, tree.depth)
        for node in range(1, tree.num_rows):
            assert find_child(tree, int(tree.parent[node]), int(tree.token[node])) == node
            assert find_child(tree, node, -5) == -1
        choice = rng.integers(0, 400, tree.num_rows)
        along = [0]
        for node in range(1, tree.num_rows):  # plant a path, then follow it by hand
            if tree.parent[node] == along[-1]:
                choice[along[-1]] = tree.token[node]
                along.append(node)
        while (child := find_child(tree, along[-1], int(choice[along[-1]]))) > 0:
            along.append(child)
        assert descend(tree, choice).tolist() == along


def test_read_only_parents() -> None:
    tree = hand_made()
    tree.parent.flags.writeable = False
    np.testing.assert_array_equal(visibility(tree), visibility_by_walking(tree.parent))


@pytest.mark.parametrize(
    ("field", "node", "value", "named"),
    [
        ("parent", 0, 0, "root"),
        ("parent", 2, 4, "before its child"),
        ("parent", 5, -1, "before its child"),
        ("depth", 4, 3, "plus one"),
        ("logp", 3, -9.0, "increase"),
        ("logp", 5, -np.inf, "not finite"),
        ("rank", 3, 2, "ranks"),
        ("rank", 1, 1, "ranks"),
        ("token", 4, 4, "one token"),
    ],
)
def test_integrity_names_what_is_broken(field: str, node: int, value: float, named: str) -> None:
    tree = hand_made()
    column = getattr(tree, field).copy()
    column[node] = value
    with pytest.raises(AssertionError, match=named):
        check_integrity(replace(tree, **{field: column}))


def test_integrity_wants_equal_lengths() -> None:
    with pytest.raises(AssertionError, match="length"):
        check_integrity(replace(hand_made(), depth=np.zeros(3, np.int32)))


def test_root_alone() -> None:
    tree = root_tree(4)
    check_integrity(tree)
    assert tree.num_nodes == 0 and find_child(tree, 0, 4) == -1
    assert visibility(tree).tolist() == [[True]] and descend(tree, np.array([4])).tolist() == [0]
