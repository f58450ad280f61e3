"""Positions, visibility and child lookup against plain walks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from trees import hand_made, random_forest, random_tree

from draftwood.core import DraftTree, Forest
from draftwood.tree.grow import root_forest, root_tree
from draftwood.tree.layout import ancestor_words, check_integrity, children, descend, find_child, narrowed, positions
from draftwood.tree.oracle import visibility_by_walking


def bits_of(words: np.ndarray, rows: int) -> np.ndarray:
    """(n, rows) bool: bit b of word w as column 64 w + b, one Python integer at a time."""
    return np.array([[bool(int(row[at // 64]) >> (at % 64) & 1) for at in range(rows)] for row in words])


def alone(tree: DraftTree) -> Forest:
    return Forest.of([tree])


def test_by_hand() -> None:
    tree, forest = hand_made(), alone(hand_made())
    check_integrity(tree)
    assert positions(forest, np.array([100])).tolist() == [100, 101, 102, 101, 102, 102]
    expected = ["1.....", "11....", "111...", "1..1..", "11..1.", "1..1.1"]
    assert ancestor_words(forest).tolist() == [[int(row[::-1].replace(".", "0"), 2)] for row in expected]
    assert visibility_by_walking(tree.parent).tolist() == [[cell == "1" for cell in row] for row in expected]
    assert [find_child(tree, 0, 3), find_child(tree, 0, 4), find_child(tree, 0, 5)] == [1, 3, -1]
    assert [find_child(tree, 1, 4), find_child(tree, 3, 4), find_child(tree, 5, 4)] == [2, 5, -1]
    assert descend(forest, np.array([4, 9, 9, 4, 9, 9])).tolist() == [0, 3, 5]
    assert descend(forest, np.array([3, 3, 9, 4, 9, 9])).tolist() == [0, 1]
    assert descend(forest, np.array([7, 4, 9, 4, 9, 9])).tolist() == [0]


@pytest.mark.parametrize("num_nodes", [0, 1, 5, 40, 300])
def test_random_trees(num_nodes: int) -> None:
    rng = np.random.default_rng(num_nodes)
    for _ in range(5):
        tree = random_tree(rng, num_nodes, vocabulary=400)
        check_integrity(tree)
        visible = bits_of(ancestor_words(alone(tree)), tree.num_rows)
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
        assert descend(alone(tree), choice).tolist() == along


@pytest.mark.parametrize("sizes", [[0], [5, 0, 3], [0, 0, 0, 0], [63, 64, 65, 1], [200, 7, 130, 0, 64]])
def test_a_forest_is_its_trees_side_by_side(sizes: list[int]) -> None:
    """Every operation on all trees at once, against the plain one on each."""
    rng = np.random.default_rng(sum(sizes))
    forest = random_forest(rng, sizes, vocabulary=6 if max(sizes) < 6 else 300, reach=4)
    root_pos = rng.integers(0, 1000, len(sizes))
    choice = rng.integers(0, 300, len(forest.parent))
    pos, words = positions(forest, root_pos), ancestor_words(forest)
    assert words.shape == (sum(sizes) + len(sizes), -(-(max(sizes) + 1) // 64))
    accepted = []
    for index, start in enumerate(forest.offsets[:-1].tolist()):
        tree = forest[index]
        rows = slice(start, start + tree.num_rows)
        assert pos[rows].tolist() == [int(root_pos[index]) + int(depth) for depth in tree.depth]
        visible = np.zeros((tree.num_rows, 64 * words.shape[1]), bool)
        visible[:, : tree.num_rows] = visibility_by_walking(tree.parent)
        np.testing.assert_array_equal(bits_of(words[rows], 64 * words.shape[1]), visible)
        node = 0
        while True:  # plant half of the way down, then let the random choices end it
            accepted.append(start + node)
            below = np.flatnonzero(tree.parent == node)
            if len(below) and rng.random() < 0.8:
                choice[start + node] = tree.token[rng.choice(below)]
            child = find_child(tree, node, int(choice[start + node]))
            if child < 0:
                break
            node = child
    assert descend(forest, choice).tolist() == accepted
    trees = np.repeat(np.arange(len(sizes)), forest.num_rows)
    rows = np.arange(len(trees))
    expected = [
        -1 if (child := find_child(forest[tree], row - int(forest.offsets[tree]), token)) < 0
        else child + int(forest.offsets[tree])
        for row, tree, token in zip(rows.tolist(), trees.tolist(), choice.tolist(), strict=True)
    ]  # fmt: skip
    assert children(forest, rows, trees, choice).tolist() == expected
    some = rng.permutation(rows)[: len(rows) // 2]
    assert children(forest, some, trees[some], choice[some]).tolist() == [expected[row] for row in some]


def test_a_child_is_looked_for_in_its_own_tree_only() -> None:
    """A root has no child of another tree, though that one's nodes stand behind it and count parents alike."""
    forest = Forest.of([root_tree(1), hand_made(), root_tree(2)])
    assert descend(forest, np.full(8, 4)).tolist() == [0, 1, 4, 6, 7]
    roots = np.array([0, 1, 7])
    assert children(forest, roots, np.arange(3), np.full(3, 4)).tolist() == [-1, 4, -1]
    assert children(forest, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []


def test_prefixes_of_a_forest_are_those_of_its_trees() -> None:
    forest = random_forest(np.random.default_rng(5), [7, 0, 70, 3])
    assert forest.prefix(np.array([7, 5, 70, 1000])) is forest
    cut = forest.prefix(np.array([3, 0, 70, 0]))
    assert len(cut) == 4 and cut.num_rows.tolist() == [4, 1, 71, 1]
    for index, nodes in enumerate([3, 0, 70, 0]):
        check_integrity(cut[index])
        for name in ("parent", "token", "depth", "rank", "logp"):
            np.testing.assert_array_equal(getattr(cut[index], name), getattr(forest[index].prefix(nodes), name))


def test_read_only_parents() -> None:
    forest = alone(hand_made())
    forest.parent.flags.writeable = False
    visible = bits_of(ancestor_words(forest), 6)
    np.testing.assert_array_equal(visible, visibility_by_walking(forest[0].parent))


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
    assert ancestor_words(alone(tree)).tolist() == [[1]] and descend(alone(tree), np.array([4])).tolist() == [0]
    assert root_forest([4, 9]).token.tolist() == [4, 9] and root_forest([4, 9]).num_rows.tolist() == [1, 1]
    assert len(root_forest([])) == 0 and descend(root_forest([]), np.empty(0, np.int64)).tolist() == []


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
