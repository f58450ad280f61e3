"""Which pages of a KV pool are free, and how many requests hold each: integers only.

Pages of one request lie in as few runs of neighbours as possible, because a backend reads a run without copying. A
request grows in place behind its last run; a new run starts where the room that it is expected to need is free and
claimed by nobody, at the lowest such page, so that memory which was touched before is used again first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from .errors import PoolExhaustedError


class Run(NamedTuple):
    """Neighbouring pages: the half-open interval [start, stop)."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Pages of the run."""
        return self.stop - self.start


_START = attrgetter("start")


class Pages:
    """Free pages and reference counts. A page is given back when its last holder lets go of it."""

    def __init__(self, first: int, stop: int) -> None:
        """Pages [first, stop) are free."""
        self._first, self._stop = first, stop
        self._free: list[Run] = [Run(first, stop)] if stop > first else []
        self._refs = np.zeros(stop, np.int32)

    @property
    def free(self) -> int:
        """Free pages."""
        return sum(run.size for run in self._free)

    def take(self, count: int, *, behind: int | None, room: int, claims: Callable[[], Mapping[int, int]]) -> list[Run]:
        """Take `count` pages, in place behind page `behind` - 1 where those are free.

        `room` is how many pages the holder is expected to want from a fresh place; `claims`, asked only when one is
        needed, maps a page to how many pages from there on another holder is expected to want: they are left alone
        while there is other room.
        Raises PoolExhaustedError, nothing taken, when fewer are free.
        """
        if count > self.free:
            raise PoolExhaustedError(f"{count} pages wanted, {self.free} free")
        runs: list[Run] = []
        while count:
            run = self._behind(behind, count) or self._place(count, room, claims())
            self._cut(run)
            self._refs[run.start : run.stop] = 1
            runs.append(run)
            count -= run.size
            behind = run.stop
        return runs

    def hold(self, run: Run) -> None:
        """Count one more holder of pages that are taken."""
        self._refs[run.start : run.stop] += 1

    def drop(self, run: Run) -> None:
        """Let go of pages; those that nobody holds any more become free."""
        refs = self._refs[run.start : run.stop]
        refs -= 1
        if not refs.any():
            self._give(run)
            return
        for page in np.flatnonzero(refs == 0).tolist():
            self._give(Run(run.start + page, run.start + page + 1))

    def check_integrity(self, held: Iterable[Run]) -> None:
        """Assert that free and held pages partition the pool and that every count is the number of holders."""
        holders = np.zeros(self._stop, np.int64)
        for run in held:
            holders[run.start : run.stop] += 1
        assert (holders == self._refs).all(), f"page {int(np.argmax(holders != self._refs))} has a wrong count"
        end = self._first
        for run in self._free:
            assert run.size > 0 and (run.start > end or run.start == end == self._first), f"free run {run} is misplaced"
            assert not holders[run.start : run.stop].any(), f"free run {run} is held"
            end = run.stop
        taken = int((holders[self._first :] > 0).sum())
        assert taken + self.free == self._stop - self._first, "a page is neither free nor held"

    def _behind(self, page: int | None, count: int) -> Run | None:
        """The free pages that start at `page`, at most `count`."""
        at = bisect_left(self._free, page, key=_START) if page is not None else len(self._free)
        if at == len(self._free) or self._free[at].start != page:
            return None
        return Run(page, min(self._free[at].stop, page + count))

    def _place(self, count: int, room: int, claims: Mapping[int, int]) -> Run:
        """A fresh place: the first unclaimed room, else the largest unclaimed piece that will do, else any piece."""
        best = Run(0, 0)
        for free in self._free:
            unclaimed = Run(min(free.start + claims.get(free.start, 0), free.stop), free.stop)
            if unclaimed.size >= max(room, count):
                return Run(unclaimed.start, unclaimed.start + count)
            best = max(best, unclaimed, key=lambda run: run.size)
        if best.size < count:
            best = max(self._free, key=lambda run: run.size)
        return Run(best.start, min(best.stop, best.start + count))

    def _cut(self, run: Run) -> None:
        """Remove pages that lie inside one free run."""
        at = bisect_left(self._free, run.stop, key=_START) - 1
        whole = self._free[at]
        parts = (Run(whole.start, run.start), Run(run.stop, whole.stop))
        self._free[at : at + 1] = [part for part in parts if part.size]

    def _give(self, run: Run) -> None:
        at = bisect_left(self._free, run.start, key=_START)
        before = self._free[at - 1] if at else None
        after = self._free[at] if at < len(self._free) else None
        low, high = at, at
        if before is not None and before.stop == run.start:
            run, low = Run(before.start, run.stop), at - 1
        if after is not None and after.start == run.stop:
            run, high = Run(run.start, after.stop), at + 1
        self._free[low:high] = [run]
