"""Pages of the pool against a model of one counter per page."""

from __future__ import annotations

import numpy as np
import pytest

from draftwood.errors import PoolExhaustedError
from draftwood.pages import Pages, Run


def pieces(held: dict[int, int], first: int, stop: int) -> list[Run]:
    """Runs of free pages, by looking at every page."""
    runs, start = [], None
    for page in range(first, stop + 1):
        is_free = page < stop and held[page] == 0
        if is_free and start is None:
            start = page
        if not is_free and start is not None:
            runs.append(Run(start, page))
            start = None
    return runs


def place(free: list[Run], count: int, room: int, claims: dict[int, int]) -> Run:
    """Where a new run must start and end, from the words of the module."""
    unclaimed = [Run(min(run.start + claims.get(run.start, 0), run.stop), run.stop) for run in free]
    roomy = [run for run in unclaimed if run.size >= max(room, count)]
    largest = max(run.size for run in unclaimed)
    if roomy:
        chosen = roomy[0]
    elif largest >= count:
        chosen = next(run for run in unclaimed if run.size == largest)
    else:
        chosen = next(run for run in free if run.size == max(other.size for other in free))
    return Run(chosen.start, min(chosen.stop, chosen.start + count))


def expected_runs(
    held: dict[int, int], bounds: tuple[int, int], count: int, behind: int | None, room: int, claims: dict[int, int]
) -> list[Run]:
    runs = []
    held = dict(held)
    while count:
        free = pieces(held, *bounds)
        run = next((Run(one.start, min(one.stop, one.start + count)) for one in free if one.start == behind), None)
        run = run or place(free, count, room, claims)
        held |= dict.fromkeys(range(run.start, run.stop), 1)
        runs.append(run)
        count, behind = count - run.size, run.stop
    return runs


@pytest.mark.parametrize(("first", "stop"), [(0, 12), (1, 30), (1, 120)])
def test_thousands_of_steps_equal_one_counter_per_page(first: int, stop: int) -> None:
    rng = np.random.default_rng(stop)
    pages, held = Pages(first, stop), dict.fromkeys(range(first, stop), 0)
    holders: list[Run] = []
    refused = shared = in_place = 0
    for _ in range(1500):
        what = rng.random()
        if what < 0.4:
            count = int(rng.integers(1, max(3, stop // 6)))
            behind = int(rng.choice([run.stop for run in holders])) if holders and rng.random() < 0.7 else None
            ends = {run.stop: int(rng.integers(1, 9)) for run in holders if rng.random() < 0.5 and run.stop != behind}
            free = pages.free
            if count > free:
                refused += 1
                with pytest.raises(PoolExhaustedError, match=f"^{count} pages wanted, {free} free$"):
                    pages.take(count, behind=behind, room=5, claims=lambda ends=ends: ends)
            else:
                room = int(rng.integers(0, 9))
                expected = expected_runs(held, (first, stop), count, behind, room, ends)
                taken = pages.take(count, behind=behind, room=room, claims=lambda ends=ends: ends)
                assert taken == expected
                in_place += taken[0].start == behind
                for run in taken:
                    assert not any(held[page] for page in range(run.start, run.stop))
                    held |= dict.fromkeys(range(run.start, run.stop), 1)
                holders += taken
        elif what < 0.5 and holders:
            run = holders[rng.integers(len(holders))]
            part = Run(run.start, int(rng.integers(run.start + 1, run.stop + 1)))
            pages.hold(part)
            holders.append(part)
            shared += 1
            for page in range(part.start, part.stop):
                held[page] += 1
        elif holders:
            run = holders.pop(rng.integers(len(holders)))
            cut = int(rng.integers(run.start, run.stop)) if rng.random() < 0.3 else run.start  # the end may go alone
            if cut > run.start:
                holders.append(Run(run.start, cut))
            pages.drop(Run(cut, run.stop))
            for page in range(cut, run.stop):
                held[page] -= 1
        pages.check_integrity(holders)
        assert pages.free == sum(count == 0 for count in held.values())
        assert pages._free == pieces(held, first, stop)
    assert refused > 50 and shared > 50 and in_place > 20


def test_no_page_at_all() -> None:
    pages = Pages(1, 1)
    assert pages.free == 0 and pages.take(0, behind=None, room=0, claims=dict) == []
    with pytest.raises(PoolExhaustedError, match="1 pages wanted, 0 free"):
        pages.take(1, behind=None, room=0, claims=dict)
    pages.check_integrity([])


def test_a_place_by_hand() -> None:
    """Free: 0-9 behind nobody, 12-19 claimed by its neighbour, 22-29."""
    pages = Pages(0, 30)
    whole = pages.take(30, behind=None, room=30, claims=dict)
    assert whole == [Run(0, 30)]
    for start, stop in ((0, 10), (12, 20), (22, 30)):
        pages.drop(Run(start, stop))
    claims = {12: 8}
    assert pages.take(2, behind=12, room=0, claims=dict) == [Run(12, 14)]
    pages.drop(Run(12, 14))
    assert pages.take(3, behind=None, room=9, claims=lambda: claims) == [Run(0, 3)]
    assert pages.take(3, behind=None, room=8, claims=lambda: claims) == [Run(22, 25)], "7 are left in front"
    assert pages.take(6, behind=None, room=20, claims=lambda: claims) == [Run(3, 9)], "the largest that nobody claims"
    assert pages.take(6, behind=None, room=6, claims=lambda: claims) == [Run(12, 18)], "claimed, but the only one to do"
    assert pages.take(8, behind=None, room=8, claims=dict) == [Run(25, 30), Run(18, 20), Run(9, 10)]
    assert pages.free == 0
