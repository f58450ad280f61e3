"""A union of drafters: who is asked for what, what reaches whom, and what comes of errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.core import DraftTree, Forest
from draftwood.draft.base import Committed, DraftRequest
from draftwood.draft.suffix import SuffixDrafter
from draftwood.draft.union import UnionDrafter
from draftwood.errors import UnsupportedError, UsageError
from draftwood.tree.grow import root_tree
from draftwood.tree.layout import check_integrity


class ChainDrafter:
    """Proposes a chain of one token, a faulty root where `faulty` says so, and remembers its calls."""

    def __init__(self, token: int, block_size: int, taps: tuple[int, ...] = (), prob: float = 0.5) -> None:
        self.block_size, self.target_layer_ids, self.kv_row_bytes = block_size, taps, 100 * len(taps)
        self.token, self.prob = token, prob
        self.asked: list[DraftRequest] = []
        self.committed: list[Committed] = []
        self.opened: list[int] = []
        self.kv_rows = 0
        self.refuses: int | None = None

    def allocate(self, kv_rows: int, requests: int) -> None:
        self.kv_rows = kv_rows

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        if request == self.refuses:
            raise UsageError(f"request {request}: refused")
        self.opened.append(request)

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        assert wanted, "asked for nothing"
        self.asked = list(wanted)
        return Forest.of([self._chain(r.pending, min(r.max_depth, r.max_nodes)) for r in wanted])

    def _chain(self, pending: int, depth: int) -> DraftTree:
        index = np.arange(depth + 1)
        token = np.where(index == 0, pending, self.token)
        return DraftTree(
            index.astype(np.int32) - 1, token, index.astype(np.int32), 0 * index.astype(np.int32),
            index * np.log(self.prob),
        )  # fmt: skip

    def commit(self, committed: Committed) -> None:
        self.committed.append(committed)

    def close(self, request: int) -> None:
        if request in self.opened:
            self.opened.remove(request)


def wanted(request: int = 0, **changes: Any) -> DraftRequest:
    choice = {"pending": 1, "context_len": 4, "block_size": 9, "candidates": 2, "max_nodes": 20, "max_depth": 8}
    return DraftRequest(request, **{**choice, **changes})


def test_sizes() -> None:
    union = UnionDrafter([ChainDrafter(5, 4, (1, 2)), SuffixDrafter(), ChainDrafter(6, 9)])
    assert union.block_size == 33 and union.target_layer_ids == (1, 2) and union.kv_row_bytes == 200
    union.allocate(77, 3)
    assert [part.kv_rows for part in union.parts if isinstance(part, ChainDrafter)] == [77, 77]
    assert UnionDrafter([SuffixDrafter(), SuffixDrafter()]).target_layer_ids == ()


def test_refused_unions() -> None:
    with pytest.raises(UnsupportedError, match=r"layers \[1, 2\] and \[3\]"):
        UnionDrafter([ChainDrafter(5, 4, (1, 2)), ChainDrafter(5, 4, (3,))])
    with pytest.raises(UsageError, match="union of 1 drafters"):
        UnionDrafter([SuffixDrafter()])


def test_each_part_is_asked_within_its_own_block() -> None:
    short, long = ChainDrafter(5, 4), ChainDrafter(6, 9, prob=0.25)
    forest = UnionDrafter([short, long]).propose([wanted(), wanted(1, block_size=3, max_depth=2, pending=2)])
    assert [(r.block_size, r.max_depth) for r in short.asked] == [(4, 3), (3, 2)]
    assert [(r.block_size, r.max_depth) for r in long.asked] == [(9, 8), (3, 2)]
    for index in range(2):
        check_integrity(forest[index])
    assert forest[0].token.tolist() == [1, 5, 5, 6, 5, *[6] * 7]  # scores 1/2, 1/4, 1/4, 1/8, 1/16 and so on
    assert forest.num_rows.tolist() == [12, 5] and forest[1].token[0] == 2
    assert isinstance(forest.source, tuple) and [len(part) for part in forest.source] == [2, 2]


def test_nobody_is_asked_where_nothing_can_be_delivered() -> None:
    one, two = ChainDrafter(5, 9), ChainDrafter(6, 9)
    union = UnionDrafter([one, two])
    forest = union.propose([wanted(0, max_depth=0), wanted(1, pending=3), wanted(2, max_nodes=0)])
    # Request 2 verifies no node: its parts are asked all the same, for a recorder may look on.
    assert [r.request for r in one.asked] == [1, 2] and [r.request for r in two.asked] == [1, 2]
    assert forest.num_rows.tolist() == [1, 17, 1] and forest.token[forest.offsets[:-1]].tolist() == [1, 3, 1]
    assert union.propose([wanted(0, max_depth=0)]).num_rows.tolist() == [1]


def test_a_fault_of_one_part_leaves_the_other_its_draft() -> None:
    class Faulty(ChainDrafter):
        def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
            roots = Forest.of([root_tree(r.pending) for r in wanted])
            return Forest(
                roots.offsets, roots.parent, roots.token, roots.depth, roots.rank, roots.logp,
                dict.fromkeys(range(len(wanted)), "score nan"),
            )  # fmt: skip

    served = UnionDrafter([Faulty(5, 9), ChainDrafter(6, 9)]).propose([wanted(0, max_depth=0), wanted(1)])
    assert served.num_rows.tolist() == [1, 9] and not served.faulty
    alone = UnionDrafter([Faulty(5, 9), Faulty(6, 9)]).propose([wanted(0, max_depth=0), wanted(1)])
    assert alone.faulty == {1: "score nan; score nan"}


def test_taps_reach_the_part_that_wants_them() -> None:
    tapping, plain = ChainDrafter(5, 4, (1,)), ChainDrafter(6, 4)
    committed = Committed((3,), np.array([0, 2]), np.array([7, 8]), torch.zeros(2, 6))
    UnionDrafter([plain, tapping]).commit(committed)
    assert tapping.committed == [committed]
    assert plain.committed[0].taps is None and plain.committed[0].token_ids is committed.token_ids


def test_a_refused_request_is_open_nowhere() -> None:
    first, second, third = ChainDrafter(5, 4), ChainDrafter(6, 4), ChainDrafter(7, 4)
    union = UnionDrafter([first, second, third])
    union.open(1, np.zeros(1, np.int64), 5)
    second.refuses = 2
    with pytest.raises(UsageError, match="request 2: refused"):
        union.open(2, np.zeros(1, np.int64), 5)
    assert first.opened == second.opened == third.opened == [1]
    union.close(1)
    union.close(1)
    assert first.opened == second.opened == third.opened == []


def test_with_a_suffix_drafter() -> None:
    union = UnionDrafter([ChainDrafter(50, 4, (1,)), SuffixDrafter()])
    text = np.array([1, 2, 3, 1, 2, 3, 1], np.int64)
    union.open(0, text, 10)
    union.commit(Committed((0,), np.array([0, 7]), text, torch.zeros(7, 4)))
    forest = union.propose([wanted(pending=2, context_len=7)])
    check_integrity(forest[0])
    assert {3, 50} <= set(forest[0].token.tolist()) and forest[0].depth.max() == 8


class Network(ChainDrafter):
    """A part with a pool of its own, one that costs seconds; `calls` counts its passes."""

    def __init__(self, token: int) -> None:
        super().__init__(token, 9, (1,))
        self.calls = 0

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        self.calls += 1
        return super().propose(wanted)


def rounds_of(union: UnionDrafter, count: int, token: int, **changes: Any) -> list[bool]:
    """Rounds in which the target follows `token` four deep; whether the costly part was asked in each."""
    asked = []
    for _ in range(count):
        forest = union.propose([wanted(**changes)])
        asked.append(forest.costly)
        union.commit(Committed((0,), np.array([0, 5]), np.array([1, *[token] * 4]), torch.zeros(5, 4)))
    return asked


def test_a_network_is_left_out_where_it_adds_nothing() -> None:
    network, sure = Network(50), ChainDrafter(6, 9, prob=0.9)
    asked = rounds_of(union := UnionDrafter([network, sure]), 40, token=6, draft_share=0.3)
    assert np.flatnonzero(asked).tolist() == [16, 33] and network.calls == 2  # looked at again from time to time
    forest = union.propose([wanted(draft_share=0.3)])
    check_integrity(forest[0])
    assert not forest.costly and 50 not in forest[0].token
    assert isinstance(forest.source, tuple) and len(forest.source) == 1
    assert len(network.committed) == 40  # its context has no holes


def test_a_network_is_asked_while_it_helps_or_nobody_counts_seconds() -> None:
    useful = UnionDrafter([Network(50), ChainDrafter(6, 9, prob=0.9)])
    assert all(rounds_of(useful, 40, token=50, draft_share=0.3)[1:])
    blind = UnionDrafter([Network(50), ChainDrafter(6, 9, prob=0.9)])
    assert all(rounds_of(blind, 40, token=6))
    left_out = UnionDrafter([Network(50), ChainDrafter(6, 9, prob=0.9)])
    rounds_of(left_out, 20, token=6, draft_share=0.3)
    assert left_out.propose([wanted(draft_share=0.3), wanted(1)]).costly  # request 1 does not count seconds


def test_networks_alone_are_always_asked() -> None:
    plain = Network(50)
    plain.target_layer_ids = ()
    union = UnionDrafter([plain, Network(6)])
    assert all(rounds_of(union, 40, token=7, draft_share=0.5)) and plain.calls == 40
