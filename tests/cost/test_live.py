"""The live correction: what it learns, what it ignores."""

from __future__ import annotations

import numpy as np
import pytest

from draftwood.cost import LiveCosts, LiveFactors
from draftwood.errors import CostError

SINGLE_S, ROW_S = 0.010, 0.0004


def feed(live: LiveCosts, true: LiveFactors, rows: list[int]) -> LiveCosts:
    for count in rows:
        rise_s = ROW_S * (count - 1)
        live = live.observe_target(SINGLE_S, SINGLE_S + rise_s, true.base * SINGLE_S + true.slope * rise_s)
    return live


def mixed_rows(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 30, count).tolist()


def test_starts_at_the_identity_and_stays_there() -> None:
    assert LiveCosts().factors() == LiveFactors()
    factors = feed(LiveCosts(), LiveFactors(), mixed_rows(50)).factors()
    assert factors.base == pytest.approx(1.0) and factors.slope == pytest.approx(1.0)


@pytest.mark.parametrize(
    "true", [LiveFactors(2.0, 2.0), LiveFactors(1.0, 3.0), LiveFactors(3.0, 1.0), LiveFactors(0.5, 0.7)]
)
def test_finds_base_and_slope_within_thirty_rounds(true: LiveFactors) -> None:
    factors = feed(feed(LiveCosts(), LiveFactors(), mixed_rows(40)), true, mixed_rows(30, 1)).factors()
    assert factors.base == pytest.approx(true.base, rel=0.1)
    assert factors.slope == pytest.approx(true.slope, rel=0.12)


@pytest.mark.parametrize("factor", [2.0, 0.5, 3.5])
def test_a_common_factor_cancels_on_the_way_too(factor: float) -> None:
    live = feed(LiveCosts(), LiveFactors(), mixed_rows(40))
    for count in mixed_rows(30, 2):
        live = feed(live, LiveFactors(factor, factor), [count])
        assert live.factors().relative_slope == pytest.approx(1.0, abs=0.15)
    assert live.factors().base == pytest.approx(factor, rel=0.03)
    assert live.factors().relative_slope == pytest.approx(1.0, abs=0.05)


def test_one_width_alone_is_taken_as_a_common_factor() -> None:
    factors = feed(LiveCosts(), LiveFactors(1.0, 3.0), [16] * 60).factors()
    assert factors.relative_slope == pytest.approx(1.0, abs=0.05)
    rise = ROW_S * 15
    assert factors.base == pytest.approx((SINGLE_S + 3 * rise) / (SINGLE_S + rise), rel=0.03)


def test_one_stall_does_not_tip_anything() -> None:
    live = feed(LiveCosts(), LiveFactors(), mixed_rows(40))
    stalled = live.observe_target(SINGLE_S, SINGLE_S + 10 * ROW_S, 30.0)
    assert stalled.factors().relative_slope == pytest.approx(1.0, abs=0.05)
    assert stalled.factors().base == pytest.approx(1.0, abs=0.05)


def test_factors_stay_in_their_bounds() -> None:
    for true, bound in (((50.0, 50.0), 4.0), ((0.01, 0.01), 0.25)):
        live = LiveCosts()
        for count in mixed_rows(60):
            rise = ROW_S * (count - 1)
            live = live.observe_target(SINGLE_S, SINGLE_S + rise, true[0] * SINGLE_S + true[1] * rise)
            live = live.observe_draft(0.002, 0.002 * true[0])
        factors = live.factors()
        assert (factors.base, factors.slope, factors.draft) == (bound, bound, bound)


def test_drafting_is_followed_apart() -> None:
    live = LiveCosts()
    for _ in range(30):
        live = live.observe_draft(0.002, 0.005)
    assert live.factors().draft == pytest.approx(2.5, rel=0.02)
    assert live.factors().base == pytest.approx(1.0)
    assert LiveCosts().observe_draft(0.0, 0.005) == LiveCosts(), "nothing was predicted"


def test_factors_can_be_recorded() -> None:
    factors = LiveFactors(1.5, 2.0, 0.5)
    assert LiveFactors(**factors.to_json()) == factors


@pytest.mark.parametrize("measured", [0.0, -1.0, float("nan"), float("inf")])
def test_seconds_that_cannot_be(measured: float) -> None:
    with pytest.raises(CostError, match="expected both finite and above 0"):
        LiveCosts().observe_target(SINGLE_S, SINGLE_S, measured)
    with pytest.raises(CostError, match="expected both finite and above 0"):
        LiveCosts().observe_draft(SINGLE_S, measured)
