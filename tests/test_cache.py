"""The KV pool against a model of it that keeps one list per request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from draftwood.batch import SCRATCH_KV, Batch, RequestRows, build, kv_index
from draftwood.cache import KVPool, LayerSpec, row_bytes
from draftwood.core import Extent, Visibility
from draftwood.errors import PoolExhaustedError
from draftwood.pages import Run

SPECS = (LayerSpec(2, 3, 3), LayerSpec(1, 4, 2), LayerSpec(2, 3, 3))
PAGE = 4


def make_pool(kv_rows: int = 400, page_rows: int = PAGE) -> KVPool:
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


def batch_of(pool: KVPool, staged: dict[int, int]) -> Batch:
    """A batch of the rows that the requests have staged."""
    parts = []
    for request, rows in staged.items():
        zeros, length, prefix = np.zeros(rows, np.int64), pool.prefix_len(request), pool.prefix(request)
        parts.append(RequestRows(request, zeros, zeros, length, prefix, pool.reserve(request, rows), Visibility.CAUSAL))
    return build(parts)


def commit(pool: KVPool, request: int, rows: int, path: list[int]) -> None:
    """Commit a path of one request."""
    pool.commit(batch_of(pool, {request: rows}), np.array(path, np.int64))


class PoolMachine(RuleBasedStateMachine):
    """Random opens, shares, forwards, commits and releases; the prefix must always be what was committed, in order."""

    requests = Bundle("requests")

    @initialize(rows=st.sampled_from([40, 92, 400]), page=st.sampled_from([1, 4, 16]))
    def start(self, rows: int, page: int) -> None:
        self.pool = make_pool(rows, page)
        self.places = [self.pool.k(layer).data_ptr() for layer in range(len(SPECS))]
        self.expected: dict[int, list[float]] = {}
        self.staged: dict[int, np.ndarray] = {}
        self.next_id = 0
        self.mark = 1.0

    @rule(target=requests, rows=st.integers(0, 60))
    def open(self, rows: int) -> int:
        free = self.pool.free_rows
        self.pool.open(self.next_id, rows)
        assert self.pool.free_rows == free  # memory comes with tokens, not with a promise
        self.expected[self.next_id] = []
        self.next_id += 1
        return self.next_id - 1

    @rule(target=requests, source=requests, share=st.floats(0, 1))
    def share(self, source: int, share: float) -> int:
        if source not in self.expected:
            return source
        free, wanted = self.pool.free_rows, int(share * len(self.expected[source]))
        request = self.open(0)
        got = self.pool.share(request, source, wanted)
        assert got == wanted // self.pool.page_rows * self.pool.page_rows and self.pool.free_rows == free
        self.expected[request] = self.expected[source][:got]
        return request

    @rule(request=requests, rows=st.integers(1, 25))
    def forward(self, request: int, rows: int) -> None:
        if request not in self.expected:
            return
        free, lacking = self.pool.free_rows, self.pool.lacking(request, rows)
        try:
            extents = self.pool.reserve(request, rows)
        except PoolExhaustedError:
            assert lacking > free == self.pool.free_rows
            return
        assert sum(extent.length for extent in extents) == rows
        assert SCRATCH_KV not in kv_index(extents)
        marks = self.mark + np.arange(rows)
        self.mark += rows
        write(self.pool, extents, marks)
        self.staged[request] = marks

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        """All staged rows of some requests at once."""
        group = sorted(data.draw(st.sets(st.sampled_from(sorted(self.staged)), min_size=1)))
        batch = batch_of(self.pool, {request: len(self.staged[request]) for request in group})
        accepted: list[int] = []
        for index, request in enumerate(group):
            marks = self.staged.pop(request)
            path = sorted(data.draw(st.sets(st.integers(0, len(marks) - 1))))
            accepted += [int(batch.offsets[index]) + row for row in path]
            self.expected[request] = self.expected[request] + marks[path].tolist()
        self.pool.commit(batch, np.array(accepted, np.int64))

    @rule(request=consumes(requests))
    def release(self, request: int) -> None:
        if request in self.expected:
            self.pool.release(request)
            del self.expected[request]
            self.staged.pop(request, None)

    @invariant()
    def prefixes_are_what_was_committed(self) -> None:
        self.pool.check_integrity()
        assert set(self.pool.requests) == set(self.expected)
        for request, marks in self.expected.items():
            assert self.pool.prefix_len(request) == len(marks)
            assert stored(self.pool, request) == [marks] * len(SPECS)

    def teardown(self) -> None:
        for request in list(self.expected):
            self.pool.release(request)
        self.pool.check_integrity()
        assert self.pool.free_rows == self.pool.kv_rows
        assert [self.pool.k(layer).data_ptr() for layer in range(len(SPECS))] == self.places


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_pool_against_lists = PoolMachine.TestCase


def test_accepted_path_is_not_a_prefix_of_the_rows() -> None:
    pool = make_pool()
    pool.open(7, 20)
    for start, path, kept in ((1, [0, 1, 2], [1, 2, 3]), (10, [0, 2, 5], [10, 12, 15]), (20, [1, 2], [21, 22])):
        write(pool, pool.reserve(7, 6), np.arange(start, start + 6))
        commit(pool, 7, 6, path)
        assert stored(pool, 7)[0][-len(kept) :] == kept
    assert stored(pool, 7) == [[1, 2, 3, 10, 12, 15, 21, 22]] * 3
    assert pool.prefix(7) == (Extent(PAGE, 8),)  # behind the scratch page, in one run


def test_commit_in_place_moves_nothing_that_lies_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    pool.open(0, 30)
    write(pool, pool.reserve(0, 10), np.arange(10))
    moved: list[tuple[list[int], list[int]]] = []
    original = pool._move
    monkeypatch.setattr(pool, "_move", lambda s, t: (moved.append((s.tolist(), t.tolist())), original(s, t)))
    commit(pool, 0, 10, list(range(10)))
    assert moved == []
    write(pool, pool.reserve(0, 10), np.arange(10, 20))
    commit(pool, 0, 10, [0, 1, 4, 9])
    assert moved == [([PAGE + 14, PAGE + 19], [PAGE + 12, PAGE + 13])]


def test_a_commit_of_many_is_one_gather_and_one_scatter_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths (2, 3), (1, 4) and (1, 2): three of each, for five requests, three layers, keys and values."""
    pool = make_pool()
    rows = dict.fromkeys(range(5), 6)
    for request in rows:
        pool.open(request, 6)
    batch = batch_of(pool, rows)
    calls: list[str] = []
    for name in ("index_select", "index_copy_"):
        original = getattr(torch.Tensor, name)

        def counted(self: Any, *args: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(self, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    pool.commit(batch, np.array([6 * request + row for request in rows for row in (0, 3, 5)]))
    assert sorted(calls) == ["index_copy_"] * 3 + ["index_select"] * 3
    assert [pool.prefix_len(request) for request in rows] == [3] * 5


def test_requests_that_grow_in_turns_stay_one_run_each() -> None:
    pool = make_pool(kv_rows=8 * 60)
    for request in range(8):
        pool.open(request, 48)
    for _ in range(12):
        for request in range(8):
            pool.reserve(request, 9)
            pool.advance(request, 4)
    for request in range(8):
        assert len(pool.prefix(request)) == 1, "others took the room behind it"
    pool.check_integrity()


def test_rows_beyond_the_expected_are_found_elsewhere() -> None:
    pool = make_pool(kv_rows=40)
    for request, rows in ((0, 8), (1, 8)):
        pool.open(request, rows)
        write(pool, pool.reserve(request, rows), 100.0 * request + np.arange(rows))
        pool.advance(request, rows)
    extents = pool.reserve(0, 6)  # request 1 lies behind, so the new rows are elsewhere
    assert extents[0].start_kv > pool.prefix(1)[0].start_kv
    write(pool, extents, np.arange(8, 14))
    pool.advance(0, 6)
    assert stored(pool, 0) == [list(range(14))] * 3
    assert stored(pool, 1) == [[100 + row for row in range(8)]] * 3
    assert len(pool.prefix(0)) == 2


def test_a_path_over_two_runs() -> None:
    pool = make_pool(kv_rows=16)
    for request in (0, 1):
        pool.open(request, 1)
        pool.reserve(request, 1)  # a page each, side by side
    staged = pool.reserve(0, 9)
    assert [extent.length for extent in staged] == [4, 5]
    write(pool, staged, np.arange(1, 10))
    commit(pool, 0, 9, [2, 3, 4, 8])
    assert stored(pool, 0) == [[3, 4, 5, 9]] * 3


def test_low_pages_are_used_again_first() -> None:
    """Memory that was touched stays in use: 200 requests after another reach no further than the first five."""
    pool = make_pool(kv_rows=10_000)
    highest = 0
    for request in range(200):
        pool.open(request, 17)
        extents = pool.reserve(request, 17)
        pool.advance(request, 17)
        highest = max(highest, *(extent.start_kv + extent.length for extent in extents))
        if request >= 4:
            pool.release(request - 4)
    assert highest <= PAGE + 5 * 20


def test_a_full_pool_says_so_and_changes_nothing() -> None:
    pool = make_pool(kv_rows=20)
    pool.open(0, 10)
    pool.reserve(0, 9)
    pool.advance(0, 9)
    pool.open(1, 10)
    with pytest.raises(PoolExhaustedError, match="KV pool of 20 rows is full: 3 pages wanted, 2 free; see --kv-memory"):
        pool.reserve(1, 10)
    assert pool.prefix_len(1) == 0 and pool.free_rows == 8
    pool.check_integrity()
    assert sum(extent.length for extent in pool.reserve(1, 8)) == 8
    pool.check_integrity()


def test_rows_that_are_not_needed_are_given_back() -> None:
    pool = make_pool(kv_rows=100)
    pool.open(0, 100)
    pool.reserve(0, 65)
    assert pool.free_rows == 100 - 68
    commit(pool, 0, 65, [0, 3])
    assert pool.free_rows == 100 - PAGE and pool.spare(0) == 2
    assert pool.lacking(0, 2) == 0 and pool.lacking(0, 3) == PAGE


def test_shared_pages_are_freed_by_the_last_holder_only() -> None:
    pool = make_pool(kv_rows=40)
    pool.open(0, 10)
    write(pool, pool.reserve(0, 10), np.arange(10.0))
    pool.advance(0, 10)
    for request in (1, 2):
        pool.open(request, 12)
        assert pool.share(request, 0, 10) == 8
    write(pool, pool.reserve(1, 3), np.array([50.0, 51.0, 52.0]))
    commit(pool, 1, 3, [0, 2])
    assert stored(pool, 0) == [list(range(10))] * 3
    assert stored(pool, 1) == [[*range(8), 50, 52]] * 3
    free = pool.free_rows
    pool.release(0)
    assert pool.free_rows == free + PAGE  # its own last page
    pool.release(1)
    assert stored(pool, 2) == [list(range(8))] * 3 and pool.free_rows == 40 - 8
    pool.release(2)
    pool.check_integrity()
    assert pool.free_rows == 40


@pytest.mark.parametrize("path", [[1, 1], [2, 1]])
def test_a_path_that_is_none_is_refused(path: list[int]) -> None:
    pool = make_pool()
    pool.open(0, 8)
    with pytest.raises(AssertionError, match="do not increase"):
        commit(pool, 0, 3, path)


def test_no_more_than_what_is_staged_becomes_prefix() -> None:
    pool = make_pool()
    pool.open(0, 8)
    pool.reserve(0, 3)
    with pytest.raises(AssertionError, match="4 rows of 3 staged ones"):
        pool.advance(0, 4)


def test_integrity_check_notices_lost_and_shared_pages() -> None:
    pool = make_pool(kv_rows=20)
    pool.open(0, 5)
    pool.open(1, 5)
    pool.reserve(0, 5)
    pool.reserve(1, 5)
    pool._owned[1].runs = [Run(2, 4)]
    with pytest.raises(AssertionError, match="wrong count"):
        pool.check_integrity()
    pool._owned[1].runs = [Run(3, 5)]
    pool.check_integrity()
    pool._pages._free = []
    with pytest.raises(AssertionError, match="neither free nor held"):
        pool.check_integrity()


def test_bytes_of_a_row() -> None:
    assert row_bytes(SPECS, torch.float64) == 8 * (2 * 6 + 1 * 6 + 2 * 6)
