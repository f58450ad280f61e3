"""The KV pool against a model of it that keeps one list per request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from draftwood.cache import SCRATCH_KV, KVPool, LayerSpec, kv_index
from draftwood.core import Extent
from draftwood.errors import PoolExhaustedError

SPECS = (LayerSpec(2, 3, 3), LayerSpec(1, 4, 2), LayerSpec(2, 3, 3))


def make_pool(max_kv_rows: int | None = None) -> KVPool:
    return KVPool(SPECS, dtype=torch.float64, max_kv_rows=max_kv_rows)


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


class PoolMachine(RuleBasedStateMachine):
    """Random opens, forwards, commits and releases; the prefix must always be what was committed, in order."""

    requests = Bundle("requests")

    @initialize(limit=st.sampled_from([None, 40, 90]))
    def start(self, limit: int | None) -> None:
        self.pool = make_pool(limit)
        self.limit = limit
        self.expected: dict[int, list[float]] = {}
        self.staged: dict[int, np.ndarray] = {}
        self.next_id = 0
        self.mark = 1.0

    @rule(target=requests, rows=st.integers(0, 30))
    def open(self, rows: int) -> int:
        request = self.next_id
        self.next_id += 1
        try:
            self.pool.open(request, rows)
        except PoolExhaustedError:
            self.check_refusal(max(1, rows))
            assert request not in self.pool.requests
            return -1
        self.expected[request] = []
        return request

    @rule(request=requests, rows=st.integers(1, 25))
    def forward(self, request: int, rows: int) -> None:
        if request not in self.expected:
            return
        try:
            extents = self.pool.reserve(request, rows)
        except PoolExhaustedError:
            self.check_refusal(rows)
            return
        assert sum(extent.length for extent in extents) == rows
        assert SCRATCH_KV not in kv_index(extents)
        marks = self.mark + np.arange(rows)
        self.mark += rows
        write(self.pool, extents, marks)
        self.staged[request] = marks

    def check_refusal(self, rows: int) -> None:
        """A refusal is right only if neither a free piece nor growth has so many rows."""
        assert self.limit is not None and self.limit - self.pool.kv_rows < rows
        assert all(extent.length < rows for extent in self.pool._free)

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def commit(self, data: Any) -> None:
        request = data.draw(st.sampled_from(sorted(self.staged)))
        marks = self.staged.pop(request)
        path = np.array(sorted(data.draw(st.sets(st.integers(0, len(marks) - 1)))), dtype=np.int64)
        self.pool.commit(request, path)
        self.expected[request] += marks[path].tolist()

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
        assert self.limit is None or self.pool.kv_rows <= self.limit
        for request, marks in self.expected.items():
            assert self.pool.prefix_len(request) == len(marks)
            assert stored(self.pool, request) == [marks] * len(SPECS)

    def teardown(self) -> None:
        for request in list(self.expected):
            self.pool.release(request)
        self.pool.check_integrity()
        assert self.pool.free_rows == self.pool.kv_rows


PoolMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_pool_against_lists = PoolMachine.TestCase


def test_accepted_path_is_not_a_prefix_of_the_rows() -> None:
    pool = make_pool()
    pool.open(7, 20)
    for start, path, kept in ((1, [0, 1, 2], [1, 2, 3]), (10, [0, 2, 5], [10, 12, 15]), (20, [1, 2], [21, 22])):
        write(pool, pool.reserve(7, 6), np.arange(start, start + 6))
        pool.commit(7, np.array(path))
        assert stored(pool, 7)[0][-len(kept) :] == kept
    assert stored(pool, 7) == [[1, 2, 3, 10, 12, 15, 21, 22]] * 3
    assert pool.prefix(7) == (Extent(1, 8),)


def test_commit_in_place_moves_nothing_that_lies_right(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    pool.open(0, 30)
    write(pool, pool.reserve(0, 10), np.arange(10))
    moved: list[tuple[list[int], list[int]]] = []
    original = pool._move
    monkeypatch.setattr(pool, "_move", lambda s, t: (moved.append((s.tolist(), t.tolist())), original(s, t)))
    pool.commit(0, np.arange(10))
    assert moved == []
    write(pool, pool.reserve(0, 10), np.arange(10, 20))
    pool.commit(0, np.array([0, 1, 4, 9]))
    assert moved == [([15, 20], [13, 14])]


def test_growth_in_the_middle_keeps_rows_and_splits_extents() -> None:
    pool = make_pool()
    pool.open(0, 4)
    pool.open(1, 4)
    write(pool, pool.reserve(0, 4), np.arange(1, 5))
    pool.commit(0, np.arange(4))
    write(pool, pool.reserve(1, 4), np.arange(50, 54))  # up to the last row of the pool
    pool.commit(1, np.arange(4))
    extents = pool.reserve(0, 6)  # request 1 lies behind, so the new rows are elsewhere
    assert len(pool.prefix(0) + extents) >= 2 and extents[0].start_kv > 8
    pool.check_integrity()
    write(pool, extents, np.arange(10, 16))
    pool.commit(0, np.array([1, 3, 5]))
    assert stored(pool, 0) == [[1, 2, 3, 4, 11, 13, 15]] * 3
    assert stored(pool, 1) == [[50, 51, 52, 53]] * 3


def test_a_path_over_two_extents() -> None:
    pool = make_pool()
    pool.open(0, 4)
    pool.open(1, 1)
    staged = pool.reserve(0, 9)
    assert [extent.length for extent in staged] == [4, 5]
    write(pool, staged, np.arange(1, 10))
    pool.commit(0, np.array([2, 3, 4, 8]))
    assert stored(pool, 0) == [[3, 4, 5, 9]] * 3


def test_released_rows_are_used_again() -> None:
    pool = make_pool()
    for request in range(200):
        pool.open(request, 17)
        if request >= 4:
            pool.release(request - 4)
        pool.check_integrity()
    assert pool.kv_rows < 17 * 7


def test_a_full_pool_says_so_and_changes_nothing() -> None:
    pool = make_pool(max_kv_rows=20)
    pool.open(0, 10)
    with pytest.raises(PoolExhaustedError, match="KV pool of 20 rows has no 10 free rows"):
        pool.open(1, 10)
    with pytest.raises(PoolExhaustedError):
        pool.reserve(0, 20)
    assert pool.requests == (0,) and pool.prefix_len(0) == 0
    pool.check_integrity()
    pool.open(1, 9)
    pool.check_integrity()


def test_a_full_pool_uses_gaps_between_requests() -> None:
    pool = make_pool(max_kv_rows=31)
    for request in range(3):
        pool.open(request, 10)
    pool.release(1)
    write(pool, pool.reserve(2, 14), np.arange(1, 15))  # nothing lies behind request 2, and the pool may not grow
    pool.commit(2, np.arange(14))
    assert stored(pool, 2) == [list(range(1, 15))] * 3
    pool.check_integrity()


@pytest.mark.parametrize("path", [[3], [-1], [1, 1], [2, 1]])
def test_a_path_that_is_none_is_refused(path: list[int]) -> None:
    pool = make_pool()
    pool.open(0, 8)
    pool.reserve(0, 3)
    with pytest.raises(AssertionError, match="not increasing inside 3 staged rows"):
        pool.commit(0, np.array(path))


def test_integrity_check_notices_lost_and_shared_rows() -> None:
    pool = make_pool()
    pool.open(0, 5)
    pool.open(1, 5)
    pool.release(0)
    pool._free.append(Extent(1, 2))
    with pytest.raises(AssertionError, match="lost or owned twice"):
        pool.check_integrity()
    pool._free = []
    with pytest.raises(AssertionError, match="pool row 1 is lost"):
        pool.check_integrity()
