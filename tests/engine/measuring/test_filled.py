"""Trees filled up so that rounds of every size can be measured, whatever the drafter proposes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clocked import clocked_pair

from draftwood.core import DraftTree
from draftwood.draft.suffix import SuffixDrafter
from draftwood.engine import Engine, EngineConfig
from draftwood.engine.measuring.filled import filled
from draftwood.engine.measuring.stand import Cell, Stand
from draftwood.tree.grow import root_tree
from draftwood.tree.layout import check_integrity


def hand_made() -> DraftTree:
    """Root 9 with children 1 and 3; 1 has child 0."""
    return DraftTree(
        np.array([-1, 0, 1, 0], np.int32),
        np.array([9, 1, 0, 3]),
        np.array([0, 1, 2, 1], np.int32),
        np.array([0, 0, 0, 1], np.int32),
        np.array([0.0, -0.5, -0.75, -1.0]),
    )


@pytest.mark.parametrize("tree", [hand_made(), root_tree(9)])
def test_fillers_are_children_of_the_root_that_nobody_expects(tree: DraftTree) -> None:
    full = filled(tree, 12, 50)
    check_integrity(full)
    assert full.num_nodes == 12 and full.prefix(tree.num_nodes).token.tolist() == tree.token.tolist()
    assert full.gains[tree.num_nodes :].sum() < 1e-20 and (full.parent[tree.num_rows :] == 0).all()


def test_a_full_tree_stays_and_a_vocabulary_has_an_end() -> None:
    assert filled(hand_made(), 3, 50).num_nodes == 3
    assert filled(hand_made(), 2, 50).num_nodes == 3
    assert filled(hand_made(), 100, 5).num_nodes == 3 + 3  # tokens 0, 2 and 4 are free


def test_a_drafter_that_knows_nothing_is_measured_at_every_size(tmp_path: Path) -> None:
    pair = clocked_pair(tmp_path)
    engine = Engine(pair.target, SuffixDrafter(), config=EngineConfig(prefill_chunk=16))  # type: ignore[arg-type]
    stand = Stand(engine.state, max_nodes=40, clock=pair.clock)
    assert stand.widest_tree(30) == 40
    for rows in (1, 2, 9, 33, 41):
        stand.run(Cell(rows, 30))
        assert len(pair.target.batches[-1].token_ids) == rows
    stand.close()
    assert engine.state.pool.requests == ()
