"""DFlash over many requests at once: forests against solo runs, faults, one copy, lifetimes of requests and pools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import drafter_pair as pair
import numpy as np
import pytest
import torch
from host_copies import HostCopies
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.core import DraftTree, Forest
from draftwood.draft import DraftRequest
from draftwood.errors import PoolExhaustedError
from draftwood.tree.layout import check_integrity
from draftwood.tree.oracle import grow_by_sorting

pytestmark = pytest.mark.portable

DOUBLE = torch.float64
BLOCK = 5
NOTHING = np.empty(0, np.int64)


def drafter_of(folder: Path, target: pair.ToyTarget | None = None) -> pair.DFlashDrafter:
    return pair.tiny_drafter(folder, dtype=DOUBLE, target=target or pair.ToyTarget(DOUBLE), block_size=BLOCK)


def taps(request: int, rows: int) -> torch.Tensor:
    return pair.taps_of(rows, 500 + request, DOUBLE)


def ragged(rng: np.random.Generator, count: int) -> list[DraftRequest]:
    """Requests of contexts over none to three pages, with blocks, widths and budgets of their own."""
    return [
        pair.ask(
            request,
            int(rng.integers(64)),
            int(rng.choice([0, 1, 15, 16, 17, 31, 33, 47])),
            int(rng.integers(2, BLOCK + 1)),
            candidates=int(rng.integers(1, 9)),
            max_nodes=int(rng.choice([0, 1, 7, 40])),
            max_depth=int(rng.integers(0, BLOCK)),
        )
        for request in rng.permutation(9)[:count].tolist()
    ]


def begin(drafter: pair.DFlashDrafter, wanted: Sequence[DraftRequest]) -> None:
    for one in wanted:
        pair.start(drafter, one.request, taps(one.request, one.context_len))


def assert_same(tree: DraftTree, other: DraftTree) -> None:
    for name in ("parent", "token", "depth", "rank"):
        np.testing.assert_array_equal(getattr(tree, name), getattr(other, name), err_msg=name)
    np.testing.assert_allclose(tree.logp, other.logp, atol=1e-5)


def solo(folder: Path, one: DraftRequest, target: pair.ToyTarget | None = None) -> DraftTree:
    """The tree of a request alone with a drafter of its own."""
    drafter = drafter_of(folder, target)
    begin(drafter, [one])
    return drafter.propose([one])[0]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_ragged_requests_equal_each_alone(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(3):
        wanted = ragged(rng, count)
        drafter = drafter_of(tmp_path)
        begin(drafter, wanted)
        forest = drafter.propose(wanted)
        assert len(forest) == count and not forest.faulty
        for index, one in enumerate(wanted):
            check_integrity(forest[index])
            assert_same(forest[index], solo(tmp_path, one))
            limits = {"pending": one.pending, "candidates": one.candidates}
            by_sorting = grow_by_sorting(
                forest.source, index, **limits, max_nodes=one.max_nodes, max_depth=one.max_depth
            )
            assert_same(forest[index], by_sorting)
        drafter.pool.check_integrity()


def test_a_recorder_gets_more_scores_than_the_tree_uses(tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path)
    wanted = [pair.ask(0, 5, 7, 4, candidates=2, max_nodes=40), pair.ask(1, 6, 3, 4, candidates=5, scored=20)]
    begin(drafter, wanted)
    forest = drafter.propose(wanted)
    assert forest.source.ids.shape == (2, 3, 1, 20)
    assert forest[0].rank.max() == 1 and forest[0].num_nodes == 2 + 4 + 8
    np.testing.assert_array_equal(forest.source.ids[0], pair.scores(drafter, wanted[:1], 20).ids[0])


def test_one_copy_brings_the_scores_to_the_host(tmp_path: Path) -> None:
    """Whatever waits in the queue, and however many products the head is cut into."""
    wanted = ragged(np.random.default_rng(7), 5)
    drafter = drafter_of(tmp_path)
    for turn in range(3):
        if turn < 2:
            for one in wanted:
                drafter.close(one.request)
            begin(drafter, wanted)
        with HostCopies() as copies, pytest.MonkeyPatch.context() as patch:
            if turn == 1:
                patch.setattr("draftwood.draft.dflash._MAX_LOGITS", 130)
            forest = drafter.propose(wanted)
        assert copies.counts == {"cpu": 1} and len(forest) == 5


def test_commits_copy_nothing_to_the_host(tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path)
    drafter.open(0, NOTHING, 900)
    with HostCopies() as copies:
        for _ in range(3):
            pair.feed(drafter, 0, taps(0, 300))
    assert not copies.counts and drafter.pool.prefix_len(0) == 600


class Spoilt(pair.ToyTarget):
    """A target whose head gives `bad` for the rows of one request's states."""

    def __init__(self, states: torch.Tensor, bad: float) -> None:
        super().__init__(DOUBLE)
        self.states, self.bad = states, bad

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = super().head(hidden)
        hit = torch.cdist(hidden, self.states).amin(dim=1) < 1e-9
        logits[hit.nonzero()[:, 0], 3] = self.bad
        return logits


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("faulty", [0, 2, 4])
def test_a_draft_that_is_not_finite_is_its_requests_alone(tmp_path: Path, bad: float, faulty: int) -> None:
    wanted = [pair.ask(r, 5 + r, 4 * r + 1, 2 + r % 4, candidates=3, max_nodes=20) for r in range(5)]
    good = drafter_of(tmp_path)
    begin(good, wanted)
    starts = np.cumsum([0, *(one.block_size for one in wanted)])
    states = good.block_states(wanted)
    last = int(starts[faulty + 1]) - 1  # the last row of its block
    drafter = drafter_of(tmp_path, Spoilt(states[last : last + 1], bad))
    begin(drafter, wanted)
    forest = drafter.propose(wanted)
    pos = wanted[faulty].context_len + wanted[faulty].block_size - 1
    assert forest.faulty == {faulty: f"draft scores of position {pos} are not finite"}
    for index, one in enumerate(wanted):
        if index == faulty:
            assert forest[index].token.tolist() == [one.pending] and forest[index].num_nodes == 0
        else:
            assert forest[index].num_nodes > 0
            assert_same(forest[index], solo(tmp_path, one))
    assert (forest.source.logp[faulty] == -np.inf).all()


def test_a_faulty_draft_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next draft of that request is what it would have been."""
    one = pair.ask(0, 5, 9, 4, max_nodes=20)
    target = pair.ToyTarget(DOUBLE)
    drafter = drafter_of(tmp_path, target)
    begin(drafter, [one])
    good = drafter.propose([one])[0]
    target.matrix[3] = torch.nan
    assert drafter.propose([one]).faulty == {0: "draft scores of position 10 are not finite"}
    target.matrix[3] = pair.ToyTarget(DOUBLE).matrix[3]
    assert_same(drafter.propose([one])[0], good)


def test_close_drops_what_is_queued(tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path)
    for request in range(3):
        pair.start(drafter, request, taps(request, 20))
    drafter.close(1)
    drafter.close(1)
    assert drafter.context_len(1) == 0 and drafter.pool.requests == (0, 2)
    drafter.flush()
    assert [drafter.pool.prefix_len(request) for request in (0, 2)] == [20, 20]
    pair.start(drafter, 1, taps(1, 6))  # the same number, another request
    wanted = [pair.ask(1, 5, 6, 4), pair.ask(0, 7, 20, 4)]
    forest = drafter.propose(wanted)
    for index, one in enumerate(wanted):
        assert_same(forest[index], solo(tmp_path, one))
    drafter.pool.check_integrity()


def test_a_preempted_request_drafts_as_before(tmp_path: Path) -> None:
    """Closed with rows in the pool and in the queue, opened again, its text committed again in other pieces."""
    drafter = drafter_of(tmp_path)
    one, other = pair.ask(3, 5, 40, BLOCK, max_nodes=30), pair.ask(4, 8, 25, BLOCK, max_nodes=30)
    begin(drafter, [one, other])
    before = drafter.propose([one, other])
    pair.feed(drafter, 3, taps(3, 10))  # queued, never projected
    drafter.close(3)
    pair.feed(drafter, 4, taps(9, 3))
    drafter.open(3, NOTHING, 40)
    whole = taps(3, 40)
    for start, stop in ((0, 1), (1, 17), (17, 18), (18, 40)):
        pair.feed(drafter, 3, whole[start:stop])
        drafter.propose([pair.ask(3, 1, stop, 3)])
    after = drafter.propose([one])
    assert_same(after[0], before[0])
    np.testing.assert_array_equal(after.source.ids[0], before.source.ids[0])
    np.testing.assert_allclose(after.source.logp[0], before.source.logp[0], atol=1e-6)
    drafter.pool.check_integrity()


def test_contexts_grow_over_many_pages(tmp_path: Path) -> None:
    """Three requests in turns, a few tokens a round, each draft against the one of the whole text at once."""
    drafter = drafter_of(tmp_path)
    rng = np.random.default_rng(1)
    lengths = dict.fromkeys(range(3), 0)
    for request in lengths:
        drafter.open(request, NOTHING, 20)
    for turn in range(30):
        grown = {request: int(rng.integers(0, BLOCK + 1)) for request in lengths}
        pair.feed_all(
            drafter,
            {
                request: taps(request, 200)[lengths[request] : lengths[request] + rows]
                for request, rows in grown.items()
            },
        )
        lengths = {request: lengths[request] + rows for request, rows in grown.items()}
        wanted = [pair.ask(request, turn, length, BLOCK, max_nodes=9) for request, length in lengths.items()]
        forest = drafter.propose(wanted)
        if turn % 7 == 2:
            for index, one in enumerate(wanted):
                assert drafter.context_len(one.request) == one.context_len
                alone = drafter_of(tmp_path)
                pair.start(alone, one.request, taps(one.request, 200)[: one.context_len])
                assert_same(forest[index], alone.propose([one])[0])
    assert min(lengths.values()) > 48, "three pages"
    drafter.pool.check_integrity()


def test_allocate_again_starts_afresh(tmp_path: Path) -> None:
    drafter = drafter_of(tmp_path)
    one = pair.ask(0, 5, 20, BLOCK)
    drafter.allocate(100, 3)
    first = drafter.pool
    begin(drafter, [one])
    tree = drafter.propose([one])[0]
    with pytest.raises(AssertionError, match=r"requests \[0\] are open"):
        drafter.allocate(200, 3)
    assert drafter.pool is first
    drafter.close(0)
    drafter.allocate(200, 3)
    assert drafter.pool is not first and drafter.pool.kv_rows > first.kv_rows >= 100
    assert drafter.pool.requests == () and drafter.context_len(0) == 0
    begin(drafter, [one])
    assert_same(drafter.propose([one])[0], tree)


def test_bytes_of_a_committed_token(tmp_path: Path) -> None:
    """Keys and values of two layers of two heads of 16, eight bytes each."""
    drafter = drafter_of(tmp_path)
    assert drafter.kv_row_bytes == 2 * 2 * 2 * 16 * 8
    assert pair.tiny_drafter(tmp_path).kv_row_bytes == 2 * 2 * 2 * 16 * 4


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> pair.DFlashDrafter:
    return drafter_of(tmp_path_factory.mktemp("drafter"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 70), min_size=1, max_size=6))
def test_what_was_asked_for_is_enough(shared: pair.DFlashDrafter, lengths: list[int]) -> None:
    """`allocate(rows, requests)`: so many committed tokens of so many requests, however they fall, and all blocks."""
    for request in list(shared.pool.requests):
        shared.close(request)
    shared.allocate(sum(lengths), len(lengths))
    wanted = []
    for request, length in enumerate(lengths):
        pair.start(shared, request, taps(request, 70)[:length])
        wanted.append(pair.ask(request, 1, length, BLOCK, max_nodes=2))
    assert len(shared.propose(wanted)) == len(lengths)
    shared.pool.check_integrity()
    assert shared.pool.free_rows < 16 * (2 * len(lengths) + 1), "and not much more"


def test_a_full_pool_loses_no_committed_token(tmp_path: Path) -> None:
    """The rows wait in the queue until another request is closed."""
    drafter = drafter_of(tmp_path)
    drafter.allocate(32, 1)
    one = pair.ask(0, 5, 40, BLOCK)
    pair.start(drafter, 1, taps(1, 40))
    drafter.flush()
    begin(drafter, [one])
    with pytest.raises(PoolExhaustedError):
        drafter.propose([one])
    drafter.pool.check_integrity()
    drafter.close(1)
    assert_same(drafter.propose([one])[0], solo(tmp_path, one))


def test_forests_of_faults_keep_their_words_when_cut(tmp_path: Path) -> None:
    target = pair.ToyTarget(DOUBLE)
    target.matrix[:] = torch.nan
    drafter = drafter_of(tmp_path, target)
    wanted = [pair.ask(request, 1, 3, 4) for request in range(2)]
    begin(drafter, wanted)
    forest: Forest = drafter.propose(wanted)
    assert forest.num_rows.tolist() == [1, 1] and set(forest.faulty) == {0, 1}
    assert set(forest.prefix(np.zeros(2, np.int64)).faulty) == {0, 1}
