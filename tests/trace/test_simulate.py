"""Widths predicted for published hardware. Tables and masses are typed in as facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood.cost import CostProfile
from draftwood.errors import CostError, UsageError
from draftwood.policy import POLICIES
from draftwood.trace.simulate import load_masses, simulate, width_policies

GRID = (15, 31, 47, 63, 95, 127)
ROWS = [1, 16, 24, 32, 48, 64, 96, 128]
# CAST, Table 5: target forward of Qwen3-8B, milliseconds.
BLACKWELL_MS = [17.2, 21.9, 23.3, 23.6, 24.1, 24.6, 24.4, 30.3]
H100_SXM_MS = [24.7, 30.6, 30.2, 30.6, 31.2, 31.5, 32.2, 32.6]


# A smooth curve through CAST's mean sorted masses on GSM8K (0.86 first, 0.016 at the 48th, 0.011 at the 64th).
# fmt: off
MASSES = np.array([
    0.86, 0.560339, 0.436134, 0.401837, 0.377104, 0.358029, 0.342657, 0.329875, 0.318997, 0.309571, 0.258573,
    0.219388, 0.188607, 0.163973, 0.14394, 0.127422, 0.113636, 0.102008, 0.092106, 0.083601, 0.076242, 0.069829,
    0.064206, 0.059247, 0.054851, 0.050935, 0.04743, 0.044282, 0.041442, 0.038872, 0.036538, 0.034411, 0.032468,
    0.030688, 0.029053, 0.027548, 0.026159, 0.024874, 0.023683, 0.022577, 0.021548, 0.02059, 0.019695, 0.018858,
    0.018074, 0.017339, 0.016649, 0.016, 0.015576, 0.015172, 0.014785, 0.014416, 0.014063, 0.013724, 0.0134,
    0.01309, 0.012791, 0.012505, 0.012229, 0.011965, 0.01171, 0.011464, 0.011228, 0.011, 0.010788, 0.010582,
    0.010384, 0.010192, 0.010007, 0.009827, 0.009654, 0.009485, 0.009322, 0.009164, 0.009011, 0.008862, 0.008717,
    0.008577, 0.008441, 0.008308, 0.008179, 0.008054, 0.007932, 0.007814, 0.007698, 0.007586, 0.007476, 0.007369,
    0.007265, 0.007164, 0.007065, 0.006969, 0.006875, 0.006783, 0.006693, 0.006605, 0.00652, 0.006436, 0.006355,
    0.006275, 0.006197, 0.006121, 0.006046, 0.005973, 0.005901, 0.005831, 0.005763, 0.005696, 0.00563, 0.005566,
    0.005503, 0.005441, 0.005381, 0.005321, 0.005263, 0.005206, 0.00515, 0.005096, 0.005042, 0.004989, 0.004937,
    0.004886, 0.004836, 0.004787, 0.004739, 0.004692, 0.004646, 0.0046,
])
# fmt: on


def table(verify_ms: list[float], **changes: Any) -> CostProfile:
    verify_s = [[cell / 1e3 for cell in verify_ms]]
    document = {"schema": 1, "rows": ROWS, "contexts": [1024], "verify_s": verify_s, "requests": 1}
    return CostProfile.from_json(document | {"dtype": "bfloat16", "draft_s": None, "host_s": None} | changes)


BLACKWELL, H100_SXM = table(BLACKWELL_MS), table(H100_SXM_MS)


def test_cast_deploys_what_was_published() -> None:
    blackwell = simulate(BLACKWELL, MASSES, "cast", grid=GRID, draft_ms=4.5)
    assert blackwell.width == 63
    assert blackwell.threshold == pytest.approx(0.0158, abs=5e-5)
    assert simulate(H100_SXM, MASSES, "cast", grid=GRID, draft_ms=4.5).width == 127


def test_an_affine_rule_depends_on_the_rows_it_is_fitted_over() -> None:
    """Without the last row, which lies behind a tile edge, the slope halves and the width grows."""
    short = simulate(BLACKWELL, MASSES, "cast", grid=GRID, draft_ms=4.5, fit_rows=(16, 96))
    assert short.width == 95
    assert short.c1 < 0.5 * simulate(BLACKWELL, MASSES, "cast", grid=GRID).c1


@pytest.mark.parametrize("policy", ["auto", "ratio"])
def test_the_whole_curve_sees_the_edge(policy: str) -> None:
    assert simulate(BLACKWELL, MASSES, policy, grid=GRID, draft_ms=4.5).width == 95
    assert simulate(H100_SXM, MASSES, policy, grid=GRID, draft_ms=4.5).width == 127


def test_the_speed_of_every_width_by_hand() -> None:
    found = simulate(BLACKWELL, MASSES, "ratio", grid=GRID, draft_ms=4.5)
    for width in GRID:
        seconds = (4.5 + float(np.interp(width + 1, ROWS, BLACKWELL_MS))) / 1e3
        assert found.tokens_per_s_by_width[width] == pytest.approx((1 + MASSES[:width].sum()) / seconds)
    assert found.width == max(found.tokens_per_s_by_width, key=lambda width: found.tokens_per_s_by_width[width])
    slope = np.polyfit(ROWS[1:], np.array(BLACKWELL_MS[1:]) / 1e3, 1)[0]
    assert found.c1 == pytest.approx(slope)
    assert found.threshold == pytest.approx(found.tokens_per_s_by_width[95] * slope)


def test_auto_reaches_the_best_ratio_from_below_on_any_curve() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        profile = table((rng.uniform(10, 40, 8)).tolist())
        masses = -np.sort(-(rng.random(100) ** 3))
        both = [simulate(profile, masses, name, draft_ms=2.0).tokens_per_s_by_width for name in ("auto", "ratio")]
        widths = [simulate(profile, masses, name, draft_ms=2.0).width for name in ("auto", "ratio")]
        assert both[0][widths[0]] == pytest.approx(both[1][widths[1]])


def test_caddtree_is_blind_to_the_edge_on_its_convex_fit() -> None:
    assert simulate(BLACKWELL, MASSES, "caddtree", grid=GRID, draft_ms=4.5).width < 95


def test_a_negative_slope_takes_the_largest_width_and_is_reported() -> None:
    found = simulate(table([25.0, 26.6, 25.1, 25.1, 25.0, 25.2, 24.9, 24.8]), MASSES, "cast", grid=GRID, draft_ms=4.5)
    assert found.width == 127 and found.c1 == 0.0 and found.threshold == 0.0 and found.slope_clamped


def test_without_a_grid_every_measured_width_counts() -> None:
    found = simulate(BLACKWELL, MASSES, "ratio", draft_ms=4.5)
    assert list(found.tokens_per_s_by_width) == list(range(128))


def test_the_context_picks_the_nearest_measured_one() -> None:
    verify_s = [[0.02 + 1e-5 * row for row in ROWS], [0.02 + 1e-3 * row for row in ROWS]]
    two = table([1.0] * 8, contexts=[1024, 8192], verify_s=verify_s)
    assert simulate(two, MASSES, "cast", grid=GRID).width == 127
    assert simulate(two, MASSES, "cast", grid=GRID, context=6000).width == 15


def test_every_cost_aware_policy_can_be_asked() -> None:
    assert width_policies() == tuple(name for name, policy in POLICIES.items() if policy.needs_costs)
    for name in width_policies():
        found = simulate(BLACKWELL, MASSES, name, grid=GRID).to_json()
        assert list(found) == ["width", "threshold", "c1", "tokens_per_s_by_width"]
        json.dumps(found, allow_nan=False)


def test_masses_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text("[0.9, 0.5, 0.5, 0.1]")
    assert load_masses(path).tolist() == [0.9, 0.5, 0.5, 0.1]
    for text, message in (
        ("[0.5, 0.6]", r"masses\[1\] is 0.6, more than the one before: sorted masses never grow"),
        ("[0.5, NaN]", r"masses\[1\] is nan"),
        ("{}", "expected a list of numbers"),
        ("[]", "expected a list of numbers"),
        ("[1.5]", r"masses\[0\] is 1.5: expected 0 to 1"),
    ):
        path.write_text(text)
        with pytest.raises(CostError, match=message) as caught:
            load_masses(path)
        assert str(caught.value).startswith(str(path))
    with pytest.raises(CostError, match=r"masses\[1\] is 0.6"):
        simulate(BLACKWELL, [0.5, 0.6], "ratio")


def test_wrong_requests_are_named() -> None:
    with pytest.raises(UsageError, match="policy 'chain' takes no width from costs: expected one of cast, caddtree"):
        simulate(BLACKWELL, MASSES, "chain")
    with pytest.raises(UsageError, match="grid '63,31': expected increasing widths"):
        simulate(BLACKWELL, MASSES, "cast", grid=(63, 31))
    with pytest.raises(CostError, match=r"draft_s is -0\.001: expected a number >= 0"):
        simulate(BLACKWELL, MASSES, "cast", draft_ms=-1.0)
