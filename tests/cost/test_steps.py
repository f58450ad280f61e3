"""Where a cost curve jumps: planted jumps are found row by row, slopes and noise are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from draftwood.cost.steps import Curve, Gap, pinned_steps, rows_to_add

GRID = (1, 9, 17, 33, 65)


def curve_of(seconds: Callable[[int], float], rows: set[int], spread: float = 1e-5) -> Curve:
    return Curve({row: seconds(row) for row in rows}, dict.fromkeys(rows, spread))


def searched(seconds: Callable[[int], float], spread: float = 1e-5) -> tuple[tuple[int, ...], set[int]]:
    """Steps found by adding rows until nothing more is asked for, and the rows that were measured."""
    rows = set(GRID)
    while added := rows_to_add(GRID, curve_of(seconds, rows, spread)):
        assert not rows & set(added), "a row is asked for twice"
        rows |= set(added)
    return pinned_steps(GRID, curve_of(seconds, rows, spread)), rows


def test_a_gap_is_halved() -> None:
    assert Gap(16, 32).middle == 24 and Gap(4, 5).middle == 4 and Gap(1, 4).middle == 2


@pytest.mark.parametrize("edge", [1, 2, 8, 9, 12, 16, 17, 24, 32, 40, 63, 64])
def test_one_jump_is_pinned_at_any_row(edge: int) -> None:
    steps, rows = searched(lambda row: 0.010 + 1e-5 * row + (0.004 if row > edge else 0.0))
    assert steps == (edge,)
    # Halving a gap of at most 32 rows takes five looks, and the other gaps are left alone.
    assert len(rows) <= len(GRID) + 5


@pytest.mark.parametrize("edges", [(4, 40), (12, 20, 50), (8, 16, 32)])
def test_jumps_in_different_gaps_are_all_pinned(edges: tuple[int, ...]) -> None:
    steps, _ = searched(lambda row: 0.010 + 0.004 * sum(row > edge for edge in edges))
    assert steps == edges


def test_a_slope_is_followed_no_further_than_its_first_halves() -> None:
    steps, rows = searched(lambda row: 0.010 + 2e-4 * row)
    assert steps == () and len(rows) <= 2 * len(GRID)


def test_a_flat_curve_asks_for_nothing() -> None:
    assert searched(lambda row: 0.010) == ((), set(GRID))


def test_a_fall_is_no_step() -> None:
    assert searched(lambda row: 0.010 - (0.004 if row > 20 else 0.0))[0] == ()


def test_a_small_rise_is_no_step() -> None:
    """Under 4 % of the cost, however quiet the machine."""
    assert searched(lambda row: 0.010 + (0.00039 if row > 20 else 0.0))[0] == ()
    assert searched(lambda row: 0.010 + (0.00060 if row > 20 else 0.0))[0] == (20,)


def test_a_rise_within_three_spreads_is_no_step() -> None:
    def jump(row: int) -> float:
        return 0.010 + (0.002 if row > 20 else 0.0)

    assert searched(jump, spread=6e-4)[0] == (20,)
    assert searched(jump, spread=7e-4)[0] == ()


def test_a_lucky_pair_of_repeats_does_not_make_a_step() -> None:
    """The spread of a gap is at least the usual one of the whole curve."""
    curve = Curve({1: 0.010, 2: 0.0112, 8: 0.0112}, {1: 1e-9, 2: 1e-9, 8: 0.001})
    quiet = Curve(curve.seconds, dict.fromkeys(curve.seconds, 1e-9))
    assert quiet.rises(Gap(1, 2)) and quiet.rise(Gap(1, 2)) == pytest.approx(0.0012)
    noisy = Curve(curve.seconds, {1: 1e-9, 2: 0.001, 8: 0.001})
    assert not noisy.rises(Gap(1, 2))
    assert curve.rises(Gap(1, 2)), "the median spread decides, not the largest"


def test_two_equal_jumps_in_one_gap_are_a_slope() -> None:
    """Neither half holds three quarters of the rise: the gap is left linear."""
    steps, _ = searched(lambda row: 0.010 + 0.004 * ((row > 36) + (row > 60)))
    assert steps == ()


def test_noise_of_a_percent_finds_no_steps() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        noise = {row: 0.010 * (1 + 0.01 * rng.standard_normal()) for row in range(1, 66)}
        assert searched(noise.__getitem__, spread=1e-4)[0] == ()
