"""Merging against listing all paths of all parts, by hand, and against its contract."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftwood.core import DraftBlock, DraftTree, Forest
from draftwood.errors import UsageError
from draftwood.tree.grow import grow, root_tree
from draftwood.tree.layout import check_integrity
from draftwood.tree.merge import faults, merge


def random_tree(rng: np.random.Generator, pending: int, *, quantised: bool) -> DraftTree:
    """A tree over few tokens, so that two of them share paths."""
    depth, width = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    logp = -rng.exponential(1.0, (1, depth, 1, width))
    logp = -np.sort(-(np.round(logp * 2) / 2 if quantised else logp), axis=-1)
    ids = np.argsort(rng.random((1, depth, 1, 4)), axis=-1)[..., :width]
    block = DraftBlock(logp.astype(np.float32), ids, np.array([depth]))
    nodes = int(rng.integers(0, 12))
    return grow(block, 0, pending=pending, candidates=width, max_nodes=nodes, max_depth=depth)


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.num_rows):
        paths.append((*paths[tree.parent[node]], int(tree.token[node])))
    return paths


def merge_by_sorting(trees: list[DraftTree], max_nodes: int) -> list[tuple[tuple[int, ...], float]]:
    """Paths and scores of the union in order, the root left out."""
    best: dict[tuple[int, ...], float] = {}  # in order of arrival
    for tree in trees:
        for path, score in zip(paths_of(tree)[1:], tree.logp[1:].tolist(), strict=True):
            best[path] = max(score, best.get(path, -np.inf))
    return sorted(best.items(), key=lambda item: -item[1])[:max_nodes]


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_equals_sorting_all_paths(quantised: bool, num_parts: int) -> None:
    rng = np.random.default_rng(num_parts)
    shared = 0
    for _ in range(60):
        num_requests = int(rng.integers(1, 5))
        parts = [[random_tree(rng, i, quantised=quantised) for i in range(num_requests)] for _ in range(num_parts)]
        bounds = rng.integers(0, 20, num_requests)
        forests = [Forest.of(trees) for trees in parts]
        union = merge(forests, bounds)
        assert union.source == tuple(forests) and not union.faulty
        for index in range(num_requests):
            tree, trees = union[index], [part[index] for part in parts]
            check_integrity(tree)
            expected = merge_by_sorting(trees, int(bounds[index]))
            assert list(zip(paths_of(tree)[1:], tree.logp[1:].tolist(), strict=True)) == expected
            assert tree.token[0] == index
            shared += sum(part.num_nodes for part in trees) - len(merge_by_sorting(trees, 99))
    assert num_parts == 1 or shared > 50


def tree_of(*rows: tuple[int, int, float], pending: int = 9) -> DraftTree:
    """A tree from (parent, token, probability of the path) of its nodes."""
    parent = np.array([-1, *(row[0] for row in rows)], np.int32)
    depth = np.zeros(len(parent), np.int32)
    rank = np.zeros(len(parent), np.int32)
    for node in range(1, len(parent)):
        depth[node] = depth[parent[node]] + 1
        rank[node] = (parent[1:node] == parent[node]).sum()
    token = np.array([pending, *(row[1] for row in rows)], np.int64)
    return DraftTree(parent, token, depth, rank, np.log([1.0, *(row[2] for row in rows)]))


def test_by_hand() -> None:
    one = tree_of((0, 5, 0.5), (1, 6, 0.5), (0, 7, 0.25))
    two = tree_of((0, 7, 0.5), (0, 5, 0.25), (2, 8, 0.125))
    tree = merge([Forest.of([one]), Forest.of([two])], np.array([10]))[0]
    assert tree.token.tolist() == [9, 5, 6, 7, 8]  # equal scores: in order of arrival
    assert tree.parent.tolist() == [-1, 0, 1, 0, 1]
    assert tree.rank.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_allclose(np.exp(tree.logp), [1, 0.5, 0.5, 0.5, 0.125])


def test_a_path_keeps_its_best_score_in_whatever_part() -> None:
    one, two = tree_of((0, 5, 0.25), (1, 6, 0.25)), tree_of((0, 5, 0.75), (1, 6, 0.125))
    tree = merge([Forest.of([one]), Forest.of([two])], np.array([10]))[0]
    np.testing.assert_allclose(np.exp(tree.logp[1:]), [0.75, 0.25])


def test_one_forest_is_cut_only() -> None:
    rng = np.random.default_rng(5)
    forest = Forest.of([random_tree(rng, 3, quantised=True) for _ in range(6)])
    union, expected = merge([forest], np.full(6, 4)), forest.prefix(np.full(6, 4))
    for name in ("offsets", "parent", "token", "depth", "rank", "logp"):
        np.testing.assert_array_equal(getattr(union, name), getattr(expected, name))
        assert getattr(union, name).dtype == getattr(expected, name).dtype


def test_a_fault_counts_where_it_cost_the_draft() -> None:
    grown, root = tree_of((0, 5, 0.5)), root_tree(9)
    faulty = replace(Forest.of([root, root, grown, root]), faulty={0: "score nan", 1: "score inf", 3: "score nan"})
    other = replace(Forest.of([grown, root, grown, root]), faulty={3: "score -nan"})
    union = merge([faulty, other], np.full(4, 8))
    assert union.num_rows.tolist() == [2, 1, 2, 1]
    assert union.faulty == {1: "score inf", 3: "score nan; score -nan"}
    assert faults(union) == {0: "score nan", 1: "score inf", 3: "score nan; score -nan"}
    assert faults(merge([union, other], np.full(4, 8)))[0] == "score nan"


def test_no_requests() -> None:
    nothing = Forest.of([root_tree(0)]).prefix(np.zeros(1))
    empty = Forest(
        np.zeros(1, np.int64), nothing.parent[:0], nothing.token[:0], nothing.depth[:0], nothing.rank[:0],
        nothing.logp[:0],
    )  # fmt: skip
    assert len(merge([empty, empty], np.zeros(0))) == 0


def test_wrong_arguments() -> None:
    one, two = Forest.of([root_tree(1)]), Forest.of([root_tree(1), root_tree(2)])
    with pytest.raises(UsageError, match="0 forests"):
        merge([], np.zeros(0))
    with pytest.raises(UsageError, match="forest of 2 trees: expected 1"):
        merge([one, two], np.zeros(1))
    with pytest.raises(UsageError, match="with 2 bounds"):
        merge([one], np.zeros(2))
    with pytest.raises(UsageError, match="different roots"):
        merge([one, Forest.of([root_tree(2)])], np.zeros(1))
    with pytest.raises(UsageError, match="max_nodes -1"):
        merge([one], np.array([-1]))
