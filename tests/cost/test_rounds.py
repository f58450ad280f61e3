"""What a policy is told about a round, and the factors that correct it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from draftwood.cost.rounds import MAX_FACTOR, MIN_FACTOR, UNCORRECTED, LiveFactors, RoundCosts
from draftwood.errors import CostError


def test_uncorrected_changes_nothing() -> None:
    assert LiveFactors() == UNCORRECTED
    assert UNCORRECTED.relative_slope == UNCORRECTED.relative_draft == 1.0
    assert UNCORRECTED.to_json() == {"base": 1.0, "slope": 1.0, "draft": 1.0}


@pytest.mark.parametrize("factor", [MIN_FACTOR, 0.5, 2.0, MAX_FACTOR])
def test_a_common_factor_cancels(factor: float) -> None:
    found = LiveFactors(factor, factor, factor)
    assert (found.relative_slope, found.relative_draft) == (1.0, 1.0)


def test_relative_factors_by_hand() -> None:
    found = LiveFactors(base=2.0, slope=3.0, draft=0.5)
    assert (found.relative_slope, found.relative_draft) == (1.5, 0.25)


@pytest.mark.parametrize("name", ["base", "slope", "draft"])
@pytest.mark.parametrize("value", [0.0, 0.249, 4.001, -1.0, float("nan"), float("inf")])
def test_a_factor_out_of_bounds_is_named(name: str, value: float) -> None:
    with pytest.raises(CostError, match=f"cost factor {name} .*expected 0.25 to 4.0"):
        LiveFactors(**{name: value})


def test_factors_there_and_back() -> None:
    found = LiveFactors(0.3, 3.9, 1.25)
    assert LiveFactors(**json.loads(json.dumps(found.to_json()))) == found


def test_factors_are_keys_and_never_change() -> None:
    assert {LiveFactors(): 1}[UNCORRECTED] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        UNCORRECTED.base = 2.0  # type: ignore[misc]


def test_a_round_without_its_draft() -> None:
    costs = RoundCosts(0.010, 0.004, np.array([0.014, 0.015, 0.016]))
    assert costs.draft_share(0) == pytest.approx(2 / 7) and costs.draft_share(2) == 0.25
    assert costs.draft_share(9) == 0.25  # more nodes than are priced
    without = costs.without_draft()
    assert (without.plain_s, without.draft_s) == (0.010, 0.0) and without.draft_share(1) == 0.0
    np.testing.assert_allclose(without.round_s, [0.010, 0.011, 0.012])
