"""The KV pool against a model of it that keeps one list per request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from ragged_packs import rows_of
from trees import random_forest

from draftwood.batch import SCRATCH_KV, Batch, RequestRows, build, kv_index
from draftwood.cache import KVPool, LayerSpec, _moves, row_bytes
from draftwood.core import Extent, Visibility
from draftwood.errors import PoolExhaustedError
from draftwood.pages import Run

SPECS = (LayerSpec(2, 3, 3), LayerSpec(1, 4, 2), LayerSpec(2, 3, 3))
STORES = 3
"""Different widths of keys and values in SPECS."""


def make_pool(kv_rows: int = 60, page_rows: int = 1) -> KVPool:
    return KVPool(SPECS, kv_rows=kv_rows, dtype=torch.float64, page_rows=page_rows)


def write(pool: KVPool, extents: tuple[Extent, ...], marks: np.ndarray) -> None:
    """What a forward does: row i of the staged rows becomes marks[i], in every layer its own multiple."""
    rows = torch.from_numpy(kv_index(extents))
    values = torch.from_numpy(marks).double()[:, None, None]
    for layer in range(len(SPECS)):
        pool.k(layer)[rows] = (layer + 1) * values
        pool.v(layer)[rows] = -(layer + 1) * values


def stored(pool: KVPool, request: int) -> list[list[float]]:
    """The marks of a request's prefix, by layer, after checking that whole rows agree."""
    rows = torch.from_numpy(kv_index(pool.prefix(request)))
    marks = []
    for layer in range(len(SPECS)):
        keys, values = pool.k(layer)[rows] / (layer + 1), -pool.v(layer)[rows] / (layer + 1)
        assert (keys == keys[:, :1, :1]).all() and (values == keys[:, :1, :1]).all()
        marks.append(keys[:, 0, 0].tolist())
    return marks


def append(pool: KVPool, request: int, marks: Sequence[float]) -> None:
    """Stage, write and commit rows."""
    write(pool, pool.reserve(request, len(marks)), np.array(marks, np.float64))
    pool.advance(request, len(marks))


def staged_batch(pool: KVPool, staged: dict[int, tuple[Extent, ...]]) -> Batch:
    """A batch over rows that are staged already."""
    parts = []
    for request, extents in staged.items():
        rows = sum(extent.length for extent in extents)
        prefix_len, prefix = pool.prefix_len(request), pool.prefix(request)
        pos = prefix_len + np.arange(rows)
        parts.append(RequestRows(request, np.zeros(rows, np.int64), pos, prefix_len, prefix, extents, Visibility.FULL))
    return build(parts)


def tensors(pool: KVPool) -> list[torch.Tensor]:
    return [view for layer in range(len(SPECS)) for view in (pool.k(layer), pool.v(layer))]


class PoolMachine(RuleBasedStateMachine):
    """Random opens, forwards, commits, shares and releases; every prefix must be what was committed, in order."""

    requests = Bundle("requests")

    @initialize(kv_rows=st.sampled_from([9, 40, 90, 300]), page_rows=st.sampled_from([1, 2, 3, 8]))
    def start(self, kv_rows: int, page_rows: int) -> None:
        self.pool = make_pool(kv_rows, page_rows)
        assert kv_rows <= self.pool.kv_rows < kv_rows + page_rows and self.pool.free_rows == self.pool.kv_rows
        self.places = [view.data_ptr() for view in tensors(self.pool)]
        self.expected: dict[int, list[float]] = {}
        self.staged: dict[int, tuple[tuple[Extent, ...], np.ndarray]] = {}
        self.next_id = 0
        self.mark = 1.0

    @rule(target=requests, rows=st.integers(0, 30))
    def open(self, rows: int) -> int:
        free = self.pool.free_rows
        self.pool.open(self.next_id, rows)
        assert self.pool.free_rows == free, "no page is taken before a row is"
        self.expected[self.next_id] = []
        self.next_id += 1
        return self.next_id - 1

    @rule(request=requests, rows=st.integers(0, 25))
    def forward(self, request: int, rows: int) -> None:
        if request not in self.expected:
            return
        missing = -(-(len(self.expected[request]) + rows) // self.pool.page_rows) - len(self.pages(request))
        fits = missing * self.pool.page_rows <= self.pool.free_rows
        assert self.pool.lacking(request, rows) == max(missing, 0) * self.pool.page_rows
        if not fits:
            self.refused(request, rows)
            return
        extents = self.pool.reserve(request, rows)
        assert sum(extent.length for extent in extents) == rows
        others = [self.rows(other) for other in self.expected if other != request]
        assert not set(kv_index(extents).tolist()) & set().union({SCRATCH_KV}, *others), "a row of somebody else"
        marks = self.mark + np.arange(rows)
        self.mark += rows
        write(self.pool, extents, marks)
        self.staged[request] = extents, marks

    def refused(self, request: int, rows: int) -> None:
        """A pool that is full says so and leaves everything as it was, staged rows too."""
        before = [(self.pool.prefix(one), self.pool.spare(one)) for one in self.expected], self.pool.free_rows
        with pytest.raises(PoolExhaustedError, match=rf"KV pool of {self.pool.kv_rows} rows is full"):
            self.pool.reserve(request, rows)
        assert before == (
            [(self.pool.prefix(one), self.pool.spare(one)) for one in self.expected],
            self.pool.free_rows,
        )

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def advance(self, data: Any) -> None:
        request = data.draw(st.sampled_from(sorted(self.staged)))
        _, marks = self.staged.pop(request)
        rows = data.draw(st.integers(0, len(marks)))
        self.pool.advance(request, rows)
        self.expected[request] += marks[:rows].tolist()

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        """Some of the requests that have staged rows, in any order, with any increasing rows accepted."""
        taken = data.draw(st.lists(st.sampled_from(sorted(self.staged)), min_size=1, unique=True))
        staged = {request: self.staged.pop(request) for request in taken}
        batch = staged_batch(self.pool, {request: extents for request, (extents, _) in staged.items()})
        accepted = data.draw(st.sets(st.integers(0, max(batch.num_rows - 1, 0)))) if batch.num_rows else set()
        self.pool.commit(batch, np.array(sorted(accepted), np.int64))
        for index, request in enumerate(taken):
            rows = batch.rows(index)
            self.expected[request] += [staged[request][1][row - rows.start] for row in sorted(accepted)
                                       if rows.start <= row < rows.stop]  # fmt: skip

    @rule(target=requests, source=requests, expected=st.integers(0, 30), data=st.data())
    def share(self, source: int, expected: int, data: Any) -> int:
        if source not in self.expected:
            return -1
        request, held = self.next_id, self.pool.free_rows
        self.next_id += 1
        self.pool.open(request, expected)
        rows = data.draw(st.integers(0, len(self.expected[source])))
        shared = self.pool.share(request, source, rows)
        assert shared == rows // self.pool.page_rows * self.pool.page_rows
        assert self.pool.free_rows == held
        self.expected[request] = self.expected[source][:shared]
        return request

    @rule(request=requests)
    def release(self, request: int) -> None:
        if request in self.expected:
            self.pool.release(request)
            del self.expected[request]
            self.staged.pop(request, None)

    def rows(self, request: int) -> set[int]:
        """Pool rows that the request's tokens are in, staged ones included."""
        extents, _ = self.staged.get(request, ((), None))
        return set(kv_index([*self.pool.prefix(request), *extents]).tolist())

    def pages(self, request: int) -> set[int]:
        return {row // self.pool.page_rows for row in self.rows(request)}

    @invariant()
    def prefixes_are_what_was_committed(self) -> None:
        self.pool.check_integrity()
        assert set(self.pool.requests) == set(self.expected)
        for request, marks in self.expected.items():
            assert self.pool.prefix_len(request) == len(marks)
            assert stored(self.pool, request) == [marks] * len(SPECS)
        assert self.places == [view.data_ptr() for view in tensors(self.pool)]

    @invariant()
    def no_page_is_lost_and_only_prefixes_are_shared(self) -> None:
        holders = Counter(page for request in self.expected for page in self.pages(request))
        assert self.pool.free_rows == self.pool.kv_rows - len(holders) * self.pool.page_rows
        for request, (extents, _) in self.staged.items():
            own = {row // self.pool.page_rows for row in kv_index(extents).tolist()}
            assert all(holders[page] == 1 for page in own), f"request {request} would write a shared page"

    def teardown(self) -> None:
        for request in list(self.expected):
            self.pool.release(request)
        self.pool.check_integrity()
        assert self.pool.free_rows == self.pool.kv_rows


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_pool_against_lists = PoolMachine.TestCase


def test_accepted_path_is_not_a_prefix_of_the_rows() -> None:
    pool = make_pool()
    pool.open(7, 20)
    for start, path, kept in ((1, [0, 1, 2], [1, 2, 3]), (10, [0, 2, 5], [10, 12, 15]), (20, [1, 2], [21, 22])):
        batch = build([rows_of(pool, 7, np.arange(6), Visibility.CAUSAL)])
        write(pool, pool.reserve(7, 6), np.arange(start, start + 6))
        pool.commit(batch, np.array(path))
        assert stored(pool, 7)[0][-len(kept) :] == kept
    assert stored(pool, 7) == [[1, 2, 3, 10, 12, 15, 21, 22]] * 3
    assert pool.prefix(7) == (Extent(1, 8),)


def test_commit_in_place_moves_nothing_that_lies_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    pool.open(0, 30)
    moved: list[list[list[int]]] = []

    def noted(*arrays: np.ndarray) -> int:
        count: int = _moves(*arrays)
        moved.append(arrays[-1][:, :count].tolist())
        return count

    monkeypatch.setattr("draftwood.cache._moves", noted)
    pool.commit(build([rows_of(pool, 0, np.arange(10), Visibility.CAUSAL)]), np.arange(10))
    pool.commit(build([rows_of(pool, 0, np.arange(10), Visibility.CAUSAL)]), np.array([0, 1, 4, 9]))
    assert moved == [[[], []], [[15, 20], [13, 14]]]


def forest_in_pool(seed: int, page_rows: int = 3) -> tuple[KVPool, Batch, np.ndarray]:
    """Five requests with prefixes in pieces, each with a random tree staged and written; and an accepted path each."""
    rng = np.random.default_rng(seed)
    pool = make_pool(kv_rows=900, page_rows=page_rows)
    for request in range(5):
        pool.open(request, 1)
    for _ in range(4):
        for request in range(5):
            append(pool, request, rng.normal(size=int(rng.integers(0, 7))).tolist())
    forest = random_forest(rng, [0, 4, 150, 33, 70], reach=6)
    parts = [
        rows_of(pool, request, tree.depth.astype(np.int64), Visibility.CAUSAL)
        for request, tree in enumerate(forest[index] for index in range(5))
    ]
    batch = build(parts)
    for part in parts:
        write(pool, part.staged, rng.normal(size=len(part.token_ids)))
    accepted = []
    for index in range(5):
        node, path = 0, [0]
        while len(below := np.flatnonzero(forest[index].parent == node)) and rng.random() < 0.95:
            node = int(rng.choice(below))
            path.append(node)
        accepted += [int(forest.offsets[index]) + node for node in path]
    return pool, batch, np.array(accepted)


@pytest.mark.parametrize("page_rows", [1, 3, 16])
def test_a_commit_equals_moving_row_by_row(page_rows: int) -> None:
    """The whole pool, rows of nobody included, against copies one row at a time from where it was before."""
    moved = 0
    for seed in range(6):
        pool, batch, accepted = forest_in_pool(seed, page_rows)
        before = [view.clone() for view in tensors(pool)]
        after = [view.clone() for view in before]
        for index in range(5):
            rows = batch.rows(index)
            path = [row for row in accepted.tolist() if rows.start <= row < rows.stop]
            for place, row in enumerate(path, start=rows.start):
                for old, new in zip(before, after, strict=True):
                    new[int(batch.kv_rows[place])] = old[int(batch.kv_rows[row])]
                moved += place != row
        lengths = batch.prefix_len + np.bincount(np.searchsorted(batch.offsets, accepted, side="right") - 1)
        pool.commit(batch, accepted)
        assert all(torch.equal(view, copy) for view, copy in zip(tensors(pool), after, strict=True))
        assert [pool.prefix_len(request) for request in range(5)] == lengths.tolist()
        pool.check_integrity()
    assert moved > 30


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name in ("index_select", "index_copy_", "__getitem__", "__setitem__", "copy_"):
        original = getattr(torch.Tensor, name)

        def counted(self: torch.Tensor, *args: Any, name: str = name, original: Any = original) -> Any:
            counts[name] += 1
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return counts


def test_one_gather_and_one_scatter_move_the_rows_of_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, batch, accepted = forest_in_pool(1)
    counts = count_calls(monkeypatch)
    pool.commit(batch, accepted)
    assert counts == {"index_select": STORES, "index_copy_": STORES}


def test_rows_that_lie_right_cost_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, batch, _ = forest_in_pool(1)
    counts = count_calls(monkeypatch)
    pool.commit(batch, np.concatenate([np.arange(start, start + 1) for start in batch.offsets[:-1]]))
    assert not counts
    assert [pool.prefix_len(request) for request in range(5)] == (batch.prefix_len + 1).tolist()


def test_growth_around_a_neighbour_keeps_rows_and_splits_extents() -> None:
    pool = make_pool()
    pool.open(0, 4)
    pool.open(1, 4)
    append(pool, 0, [1, 2, 3, 4])
    append(pool, 1, [50, 51, 52, 53])
    extents = pool.reserve(0, 6)  # request 1 lies behind, so the new rows are elsewhere
    assert len(pool.prefix(0) + extents) == 2 and extents[0].start_kv > 8
    batch = staged_batch(pool, {0: extents})
    pool.check_integrity()
    write(pool, extents, np.arange(10, 16))
    pool.commit(batch, np.array([1, 3, 5]))
    assert stored(pool, 0) == [[1, 2, 3, 4, 11, 13, 15]] * 3
    assert stored(pool, 1) == [[50, 51, 52, 53]] * 3


def test_a_path_over_two_extents() -> None:
    pool = make_pool()
    pool.open(0, 4)
    pool.open(1, 1)
    append(pool, 0, [9])
    append(pool, 1, [1])  # behind the room that request 0 expects
    staged = pool.reserve(0, 9)
    assert [extent.length for extent in staged] == [3, 6]
    write(pool, staged, np.arange(1, 10))
    pool.commit(staged_batch(pool, {0: staged}), np.array([1, 2, 3, 7]))
    assert stored(pool, 0) == [[9, 2, 3, 4, 8]] * 3


def test_a_request_alone_is_one_run() -> None:
    """However it grows, and however little was expected."""
    for expected in (0, 5, 400):
        pool = make_pool(kv_rows=400, page_rows=4)
        rng = np.random.default_rng(expected)
        pool.open(3, expected)
        marks: list[float] = []
        while len(marks) < 380:
            rows = int(rng.integers(1, 20))
            pool.reserve(3, rows + int(rng.integers(0, 2)))
            append(pool, 3, [len(marks) + row for row in range(rows)])
            marks += range(len(marks), len(marks) + rows)
            assert pool.prefix(3) == (Extent(4, len(marks)),)
        assert stored(pool, 3) == [marks] * 3


@pytest.mark.parametrize("page_rows", [1, 4, 16])
def test_requests_that_grow_in_turns_stay_one_run_each(page_rows: int) -> None:
    """Eight of them fill a pool to the last page: each keeps away from where the others expect to grow."""
    rng = np.random.default_rng(page_rows)
    for _ in range(5):
        expected = rng.integers(40, 200, 8)
        pages = -(-expected // page_rows)
        pool = make_pool(kv_rows=int(pages.sum()) * page_rows, page_rows=page_rows)
        for request, rows in enumerate(expected.tolist()):
            pool.open(request, rows)
        while any(pool.prefix_len(request) < expected[request] for request in range(8)):
            for request in rng.permutation(8).tolist():
                left = int(expected[request]) - pool.prefix_len(request)
                rows = min(left, int(rng.integers(0, 30)))
                before = pool.prefix(request)
                staged = pool.reserve(request, min(left, rows + int(rng.integers(0, 12))))
                pool.advance(request, rows)
                kv = kv_index([*before, *staged])
                assert (np.diff(kv) == 1).all() and len(pool.prefix(request)) <= 1
        assert pool.free_rows == 0
        pool.check_integrity()


def test_claims_yield_once_there_is_no_other_room() -> None:
    """Room that a request only expects is no reason to refuse another."""
    pool = make_pool(kv_rows=20)
    pool.open(0, 20)
    pool.open(1, 5)
    append(pool, 0, [1])
    append(pool, 1, [2, 3, 4, 5, 6])
    append(pool, 0, list(range(10, 24)))
    assert stored(pool, 0) == [[1, *range(10, 24)]] * 3 and stored(pool, 1) == [[2, 3, 4, 5, 6]] * 3
    assert pool.free_rows == 0


def test_released_rows_are_used_again() -> None:
    """Memory that was touched before comes first, so what a long service touches follows what lives at once."""
    pool = make_pool(kv_rows=10_000, page_rows=4)
    touched = 0
    for request in range(200):
        pool.open(request, 17)
        append(pool, request, [float(request)] * 17)
        touched = max(touched, *(extent.start_kv + extent.length for extent in pool.prefix(request)))
        if request >= 4:
            pool.release(request - 4)
        pool.check_integrity()
    assert touched <= 4 + 5 * 20


def test_pages_follow_tokens_not_expectations() -> None:
    pool = make_pool(kv_rows=64, page_rows=16)
    for request in range(4):
        pool.open(request, 900_000)
        append(pool, request, [1.0] * 10)
    assert pool.free_rows == 0 and [pool.spare(request) for request in range(4)] == [6] * 4
    pool.release(2)
    assert len(pool.reserve(0, 20)) == 2, "what is left behind the prefix, then the released page"
    assert pool.free_rows == 0 and pool.spare(0) == 22
    pool.advance(0, 3)  # the page of dropped rows goes back
    assert pool.free_rows == 16 and pool.spare(0) == 3 and pool.lacking(0, 4) == 16 and pool.lacking(0, 3) == 0


def test_a_full_pool_says_so_and_changes_nothing() -> None:
    pool = make_pool(kv_rows=20)
    pool.open(0, 10)
    staged = pool.reserve(0, 12)
    pool.open(1, 10)
    with pytest.raises(
        PoolExhaustedError, match=r"^KV pool of 20 rows is full: 10 pages wanted, 8 free; see --kv-memory$"
    ):
        pool.reserve(1, 10)
    with pytest.raises(PoolExhaustedError):
        pool.reserve(0, 21)
    assert pool.requests == (0, 1) and pool.prefix_len(0) == pool.prefix_len(1) == 0 and pool.free_rows == 8
    pool.check_integrity()
    write(pool, staged, np.arange(12))  # what was staged is still there
    pool.advance(0, 12)
    append(pool, 1, list(range(50, 58)))
    assert stored(pool, 0) == [list(range(12))] * 3 and stored(pool, 1) == [list(range(50, 58))] * 3
    pool.check_integrity()


def test_a_full_pool_uses_gaps_between_requests() -> None:
    pool = make_pool(kv_rows=30)
    for request in range(3):
        pool.open(request, 10)
        append(pool, request, [float(request)] * 10)
    pool.release(1)
    append(pool, 2, list(range(1, 11)))  # nothing is free behind request 2
    assert stored(pool, 2) == [[2.0] * 10 + list(range(1, 11))] * 3
    assert len(pool.prefix(2)) == 2 and pool.free_rows == 0
    pool.check_integrity()


def test_shared_pages_live_until_their_last_holder_goes() -> None:
    pool = make_pool(kv_rows=80, page_rows=4)
    pool.open(0, 20)
    text = list(range(1, 15))
    append(pool, 0, text)
    for request, rows in ((1, 14), (2, 9), (3, 3)):
        pool.open(request, 20)
        assert pool.share(request, 0, rows) == rows // 4 * 4
    assert pool.prefix(1) == (Extent(4, 12),) and pool.prefix(2) == (Extent(4, 8),) and pool.prefix(3) == ()
    assert pool.kv_rows - pool.free_rows == 16
    for request, marks in ((1, [100.0] * 5), (2, [200.0] * 5), (0, [300.0] * 5)):
        append(pool, request, marks)
    pool.check_integrity()
    assert stored(pool, 0) == [[*text, *[300.0] * 5]] * 3
    assert stored(pool, 1) == [[*text[:12], *[100.0] * 5]] * 3
    assert stored(pool, 2) == [[*text[:8], *[200.0] * 5]] * 3
    pool.release(0)
    assert pool.kv_rows - pool.free_rows == 4 * (3 + 2 + 2), "three pages of text, two pages each of their own"
    pool.release(1)
    assert pool.kv_rows - pool.free_rows == 4 * (2 + 2)
    assert stored(pool, 2) == [[*text[:8], *[200.0] * 5]] * 3
    pool.release(2)
    assert pool.free_rows == pool.kv_rows
    pool.check_integrity()


def test_only_committed_rows_reach_an_empty_request() -> None:
    pool = make_pool()
    for request in range(3):
        pool.open(request, 10)
    append(pool, 0, [1, 2, 3])
    pool.reserve(0, 4)
    append(pool, 1, [9])
    with pytest.raises(AssertionError, match="only an empty request"):
        pool.share(1, 0, 2)
    with pytest.raises(AssertionError, match="committed rows"):
        pool.share(2, 0, 4)
    with pytest.raises(AssertionError, match="open already"):
        pool.open(2, 10)
    assert pool.share(2, 0, 3) == 3 and stored(pool, 2) == [[1, 2, 3]] * 3


@pytest.mark.parametrize("path", [[3], [-1], [1, 1], [2, 1]])
@pytest.mark.parametrize("tiers", [(), (8,)])
def test_a_path_that_is_none_is_refused(path: list[int], tiers: tuple[int, ...]) -> None:
    """Padding rows included; the request keeps what it had staged."""
    pool = make_pool()
    pool.open(0, 8)
    batch = build([rows_of(pool, 0, np.arange(3), Visibility.CAUSAL)], tiers)
    before = [view.clone() for view in tensors(pool)]
    with pytest.raises(AssertionError, match="not increasing inside 3 rows"):
        pool.commit(batch, np.array(path))
    assert all(torch.equal(view, copy) for view, copy in zip(tensors(pool), before, strict=True))
    pool.commit(batch, np.array([0, 2]))
    assert pool.prefix_len(0) == 2


def test_more_rows_than_are_staged_are_refused() -> None:
    pool = make_pool()
    pool.open(0, 8)
    pool.reserve(0, 3)
    for rows in (4, -1):
        with pytest.raises(AssertionError, match=f"{rows} rows of 3 staged ones"):
            pool.advance(0, rows)


def test_tensors_never_move() -> None:
    pool = make_pool(kv_rows=50, page_rows=4)
    places = [view.data_ptr() for view in tensors(pool)]
    for request in range(20):
        pool.open(request, 30)
        append(pool, request, [1.0] * 30)
        batch = build([rows_of(pool, request, np.arange(9), Visibility.CAUSAL)])
        pool.commit(batch, np.array([0, 5, 8]))
        pool.release(request)
        assert places == [view.data_ptr() for view in tensors(pool)]
    assert all(len(view) == 4 + 52 for view in tensors(pool))


def test_bytes_of_a_row() -> None:
    assert row_bytes(SPECS, torch.float64) == 8 * (2 * 6 + 6 + 2 * 6)
    held = sum(view.numel() for view in tensors(make_pool(kv_rows=9, page_rows=1)))
    assert held * 8 == 10 * row_bytes(SPECS, torch.float64), "nine rows and scratch"


def test_integrity_check_notices_what_is_wrong() -> None:
    def broken() -> KVPool:
        pool = make_pool(kv_rows=20, page_rows=2)
        for request in range(3):
            pool.open(request, 4)
            append(pool, request, [1.0] * 4)
        pool.release(1)
        pool.check_integrity()
        return pool

    pool = broken()
    pool._pages._free = pool._pages._free[1:]
    with pytest.raises(AssertionError, match="a page is neither free nor held"):
        pool.check_integrity()
    pool = broken()
    pool._pages._free.insert(0, Run(1, 2))
    with pytest.raises(AssertionError, match=r"free run Run\(start=1, stop=2\) is held"):
        pool.check_integrity()
    pool = broken()
    pool._pages.hold(Run(2, 3))
    with pytest.raises(AssertionError, match="page 2 has a wrong count"):
        pool.check_integrity()
    pool = broken()
    pool._owned[2].runs = pool._owned[0].runs
    with pytest.raises(AssertionError, match="page 1 has a wrong count"):
        pool.check_integrity()
    pool = broken()
    pool._owned[0].prefix_len = 2
    with pytest.raises(AssertionError, match="request 0 has 2 pages for 2 rows"):
        pool.check_integrity()
    pool = broken()
    pool._pages._free = [Run(3, 4), Run(4, 5), *pool._pages._free[1:]]
    with pytest.raises(AssertionError, match=r"free run Run\(start=4, stop=5\) is misplaced"):
        pool.check_integrity()
