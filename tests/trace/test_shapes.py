from __future__ import annotations

import numpy as np
import pytest

from draftwood.errors import UsageError
from draftwood.trace.shapes import binary, chain, from_branching, medusa, named_shape


def test_medusa_schedule_at_47_nodes() -> None:
    shape = medusa(47, 15)
    assert np.bincount(shape.depth).tolist() == [1, 8, 32, 7]
    assert shape.candidates == 8
    assert np.bincount(medusa(300, 15).depth).tolist() == [1, 8, 32, 64, 128, 68]


def test_binary_at_47_nodes_is_level_by_level() -> None:
    shape = binary(47, 15)
    assert np.bincount(shape.depth).tolist() == [1, 2, 4, 8, 16, 17]
    assert binary(47, 3).num_nodes == 14


def test_chain() -> None:
    shape = chain(47, 15)
    assert shape.parent.tolist() == list(range(-1, 15))
    assert shape.rank.tolist() == [0] * 16
    assert chain(3, 15).num_nodes == 3


def test_small_schedule_by_hand() -> None:
    shape = from_branching("mine", [2, 2], 5)
    # depth 1: ranks 0, 1; depth 2 by rank sum: (0,0), then (0,1), (1,0)
    assert shape.parent.tolist() == [-1, 0, 0, 1, 1, 2]
    assert shape.rank.tolist() == [0, 0, 1, 0, 1, 0]
    assert shape.depth.tolist() == [0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("name", ["medusa", "binary", "chain"])
@pytest.mark.parametrize("num_nodes", [1, 2, 7, 63, 200])
def test_parents_stand_before_their_children(name: str, num_nodes: int) -> None:
    shape = named_shape(name, num_nodes, 15)
    nodes = np.arange(1, shape.num_nodes + 1)
    assert np.all(shape.parent[1:] < nodes)
    assert np.all(shape.depth[1:] == shape.depth[shape.parent[1:]] + 1)
    pairs = set(zip(shape.parent[1:].tolist(), shape.rank[1:].tolist(), strict=True))
    assert len(pairs) == shape.num_nodes <= num_nodes


def test_filled_tree_by_hand() -> None:
    logp = np.log(np.array([[0.5, 0.25], [0.75, 0.125]], dtype=np.float32))
    ids = np.array([[10, 11], [20, 21]])
    tree = binary(6, 2).tree(logp, ids, pending=9, max_depth=2)
    assert tree.token.tolist() == [9, 10, 11, 20, 21, 20, 21]
    np.testing.assert_allclose(np.exp(tree.logp), [1, 0.5, 0.25, 0.375, 0.0625, 0.1875, 0.03125])
    assert binary(6, 2).tree(logp, ids, pending=9, max_depth=1).num_nodes == 2
    assert binary(6, 2).tree(logp, ids, pending=9, max_depth=0).num_nodes == 0


def test_unknown_name_and_bad_sizes() -> None:
    with pytest.raises(UsageError, match="'tree': expected one of medusa, binary, chain"):
        named_shape("tree", 4, 4)
    with pytest.raises(UsageError, match="nodes 0"):
        named_shape("binary", 0, 4)
    with pytest.raises(UsageError, match="branching"):
        from_branching("x", [], 4)
