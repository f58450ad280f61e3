"""The curve over rows, entry by entry: between grid rows, across steps, beyond the grid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from draftwood.cost.curve import CURVES, Curve
from draftwood.cost.fit import is_convex

ROWS = np.array([1, 4, 8, 16])
SECONDS = np.array([0.010, 0.013, 0.017, 0.025])


def plain_entry(curve: Curve, at: int) -> float:
    """One entry of `Curve.table` by the words of its docstring, gap by gap."""
    rows, seconds = curve.rows.tolist(), curve.seconds.tolist()
    at = max(at, 1)
    if at > rows[-1]:
        if len(rows) == 1:
            return float(seconds[0])
        slope = (seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2])
        return max(seconds[-1] + slope * (at - rows[-1]), min(seconds))
    for (low, low_s), (high, high_s) in pairwise(zip(rows, seconds, strict=True)):
        if low <= at <= high:
            inside = [step for step in curve.steps if low <= step < high]
            if inside:
                return float(low_s if at <= inside[0] else high_s)
            return float(low_s + (high_s - low_s) * (at - low) / (high - low))
    return float(seconds[0])


def test_by_hand() -> None:
    table = Curve(ROWS, SECONDS).table(10)
    expected = [0.010, 0.010, 0.011, 0.012, 0.013, 0.014, 0.015, 0.016, 0.017, 0.018, 0.019]
    np.testing.assert_allclose(table, expected, rtol=1e-12)


@pytest.mark.parametrize("steps", [(), (1,), (4,), (6,), (8,), (15,), (2, 5, 12), (1, 4, 8)])
@pytest.mark.parametrize("last", [1, 3, 4, 15, 16, 17, 40])
def test_every_entry_by_the_rule_of_its_gap(steps: tuple[int, ...], last: int) -> None:
    curve = Curve(ROWS, SECONDS, steps)
    expected = [plain_entry(curve, at) for at in range(last + 1)]
    np.testing.assert_allclose(curve.table(last), expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_random_grids_with_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = np.concatenate([[1], 1 + np.sort(rng.choice(np.arange(1, 60), 6, replace=False))])
    gaps = [(int(low), int(high)) for low, high in pairwise(rows)]
    steps = tuple(int(rng.integers(low, high)) for low, high in gaps if rng.random() < 0.5)
    curve = Curve(rows, rng.uniform(0.01, 0.1, len(rows)), steps)
    expected = [plain_entry(curve, at) for at in range(91)]
    np.testing.assert_allclose(curve.table(90), expected, rtol=1e-12)


def test_padded_sizes_of_a_captured_graph_are_a_staircase() -> None:
    sizes = [1, 2, 4, 8]
    seconds = np.array([0.01, 0.02, 0.03, 0.04])
    table = Curve(np.array(sizes), seconds, (1, 2, 4)).table(8)
    fits = [next(second for size, second in zip(sizes, seconds, strict=True) if size >= rows) for rows in range(1, 9)]
    np.testing.assert_array_equal(table[1:], fits)


def test_beyond_the_grid_the_last_segment_goes_on_but_not_below_the_least() -> None:
    falling = Curve(np.array([1, 10, 20]), np.array([0.02, 0.03, 0.021])).table(100)
    assert falling[21] == pytest.approx(0.021 - 0.0009)
    assert falling[100] == 0.02
    assert Curve(np.array([1]), np.array([0.5])).table(7).tolist() == [0.5] * 8


def test_a_step_in_the_last_gap_is_spread_when_the_curve_goes_on() -> None:
    table = Curve(np.array([1, 9]), np.array([0.1, 0.5]), (4,)).table(13)
    assert table[4] == 0.1 and table[5] == table[9] == 0.5
    np.testing.assert_allclose(np.diff(table[9:]), 0.05)


class TestFits:
    NOISY = np.array([0.010, 0.014, 0.012, 0.025])
    SPREAD = np.full(4, 0.0005)

    def test_measured_is_as_measured_with_its_steps(self) -> None:
        curve = CURVES["measured"](ROWS, self.NOISY, self.SPREAD, (9,))
        assert curve.seconds.tolist() == self.NOISY.tolist() and curve.steps == (9,)

    def test_monotone_pools_noise_and_keeps_what_the_spread_does_not_explain(self) -> None:
        kept = CURVES["monotone"](ROWS, self.NOISY, self.SPREAD, (9,))
        assert kept.seconds.tolist() == self.NOISY.tolist() and kept.steps == (9,)
        pooled = CURVES["monotone"](ROWS, self.NOISY, np.full(4, 0.01), ())
        np.testing.assert_allclose(pooled.seconds, [0.010, 0.013, 0.013, 0.025])

    def test_convex_is_convex_row_by_row_and_knows_no_steps(self) -> None:
        curve = CURVES["convex"](ROWS, self.NOISY, self.SPREAD, (9,))
        assert curve.steps == ()
        assert is_convex(curve.table(60)[1:])
        assert np.all(np.diff(curve.table(60)) >= -1e-15)

    def test_all_agree_on_a_convex_curve(self) -> None:
        convex = np.array([0.01, 0.013, 0.018, 0.03])
        for name, make in CURVES.items():
            np.testing.assert_allclose(make(ROWS, convex, None, ()).seconds, convex, rtol=1e-6, err_msg=name)
