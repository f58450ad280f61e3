"""Positions, ancestors, child lookup and the way down against plain walks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwood.core import DraftTree, Forest
from draftwood.tree.grow import root_tree
from draftwood.tree.layout import (
    ancestor_words,
    check_integrity,
    children,
    descend,
    find_child,
    narrowed,
    positions,
)
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


def visibility(tree: DraftTree) -> np.ndarray:
    """(M, M) bool, read bit by bit from the ancestor words."""
    words = ancestor_words(Forest.of([tree]))
    seen = [[int(word[j // 64]) >> (j % 64) & 1 for j in range(tree.num_rows)] for word in words]
    return np.array(seen, bool)


def path_of(tree: DraftTree, choice: np.ndarray) -> list[int]:
    return descend(Forest.of([tree]), choice).tolist()


def test_by_hand() -> None:
    tree = hand_made()
    check_integrity(tree)
    assert positions(Forest.of([tree]), np.array([100])).tolist() == [100, 101, 102, 101, 102, 102]
    expected = ["1.....", "11....", "111...", "1..1..", "11..1.", "1..1.1"]
    assert visibility(tree).tolist() == [[cell == "1" for cell in row] for row in expected]
    assert [find_child(tree, 0, 3), find_child(tree, 0, 4), find_child(tree, 0, 5)] == [1, 3, -1]
    assert [find_child(tree, 1, 4), find_child(tree, 3, 4), find_child(tree, 5, 4)] == [2, 5, -1]
    assert path_of(tree, np.array([4, 9, 9, 4, 9, 9])) == [0, 3, 5]
    assert path_of(tree, np.array([3, 3, 9, 4, 9, 9])) == [0, 1]
    assert path_of(tree, np.array([7, 4, 9, 4, 9, 9])) == [0]


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
        assert path_of(tree, choice) == along


def test_a_forest_is_its_trees_side_by_side() -> None:
    """Trees of 1 to 200 rows: every answer of the forest is that of the tree alone, shifted to its rows."""
    rng = np.random.default_rng(2)
    trees = [random_tree(rng, size, vocabulary=300) for size in (0, 3, 64, 1, 199, 70)]
    forest = Forest.of(trees)
    words, starts = ancestor_words(forest), forest.offsets[:-1]
    assert words.shape == (sum(tree.num_rows for tree in trees), 4)
    choice = rng.integers(0, 300, len(words))
    for tree, start in zip(trees, starts.tolist(), strict=True):  # so that some paths are long
        for node in range(1, min(9, tree.num_rows)):
            choice[start + tree.parent[node]] = tree.token[node]
    path = descend(forest, choice).tolist()
    roots = rng.integers(0, 1000, len(trees))
    pos = positions(forest, roots)
    wanted = np.array([int(tree.token[-1]) for tree in trees])
    found = children(forest, starts, np.arange(len(trees)), wanted)
    expected = []
    for index, (tree, start) in enumerate(zip(trees, starts.tolist(), strict=True)):
        rows = slice(start, start + tree.num_rows)
        alone = ancestor_words(Forest.of([tree]))
        np.testing.assert_array_equal(words[rows, : alone.shape[1]], alone)
        assert not words[rows, alone.shape[1] :].any()
        expected += [start + node for node in path_of(tree, choice[rows])]
        assert pos[rows].tolist() == [int(roots[index] + depth) for depth in tree.depth]
        child = find_child(tree, 0, int(wanted[index]))
        assert found[index] == (start + child if child > 0 else -1)
        assert forest[index].token.tolist() == tree.token.tolist()
    assert path == expected and len(path) > len(trees)


def test_a_prefix_of_a_forest_is_a_prefix_of_every_tree() -> None:
    rng = np.random.default_rng(3)
    trees = [random_tree(rng, size) for size in (0, 7, 30, 2)]
    forest = Forest.of(trees)
    assert forest.prefix(np.array([0, 7, 30, 5])) is forest
    cut = forest.prefix(np.array([4, 0, 12, 1]))
    assert cut.num_rows.tolist() == [1, 1, 13, 2]
    for index, tree in enumerate(trees):
        for name in ("parent", "token", "depth", "rank", "logp"):
            column = getattr(tree.prefix(int(cut.num_rows[index]) - 1), name)
            np.testing.assert_array_equal(getattr(cut[index], name), column)


def test_narrower_limits_keep_what_they_allow() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        tree = random_tree(rng, 60)
        small = narrowed(tree, candidates=2, max_nodes=15, max_depth=3)
        check_integrity(small)
        allowed = [0]
        for node in range(1, tree.num_rows):
            inside = tree.rank[node] < 2 and tree.depth[node] <= 3 and tree.parent[node] in allowed
            allowed += [node] if inside else []
        kept = allowed[:16]
        assert small.token.tolist() == tree.token[kept].tolist()
        assert [kept[at] for at in small.parent[1:]] == tree.parent[kept[1:]].tolist()


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
    assert visibility(tree).tolist() == [[True]] and path_of(tree, np.array([4])) == [0]
