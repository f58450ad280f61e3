"""The width of CAST: grid, boundaries, slope."""

from __future__ import annotations

import numpy as np
import pytest

from draftwood.cost import CostProfile
from draftwood.errors import CostError
from draftwood.policy import PolicyState, RoundCosts, make_policy
from draftwood.policy.base import SharedRound
from draftwood.policy.cast import Cast


def affine_profile(c1: float = 1e-4, **more: object) -> CostProfile:
    rows = [1, 16, 32, 64, 128]
    document = {
        "schema": 1,
        "rows": rows,
        "contexts": [1024],
        "verify_s": [[0.02 + c1 * row for row in rows]],
        "draft_s": [0.004],
        "mean_gains": (0.9 * 0.95 ** np.arange(128)).tolist(),
    }
    return CostProfile.from_json(document | more)


def width(profile: CostProfile, **options: object) -> int:
    policy = make_policy("cast", profile=profile, **options)
    assert isinstance(policy, Cast) and policy.width is not None
    return policy.width


def test_the_width_is_the_argmax_on_an_affine_curve() -> None:
    for c1 in (2e-5, 1e-4, 5e-4, 3e-3):
        profile = affine_profile(c1)
        phi = np.concatenate([[0.0], np.cumsum(profile.mean_gains[:64])])  # type: ignore[index]
        rate = (1 + phi) / (0.004 + 0.02 + c1 * np.arange(1, 66))
        assert width(profile) == int(rate.argmax())


def test_boundaries_and_grid() -> None:
    profile = affine_profile()
    free = width(profile)
    assert 20 < free < 60
    assert width(profile, max_nodes=free - 5) == free - 5
    assert width(profile, min_nodes=free + 3) == free + 3
    # On a grid one steps while the node after the present width passes, so the chosen width may overshoot by a step.
    assert width(profile, grid=(7, 15, 31, 63)) == next(w for w in (7, 15, 31, 63) if w >= free)
    assert width(profile, grid=(2, 5)) == 5
    assert width(profile, grid=(62, 63)) == 62


def test_a_negative_slope_counts_as_zero_and_is_reported() -> None:
    policy = make_policy("cast", profile=affine_profile(-1e-6))
    assert isinstance(policy, Cast)
    assert policy.width == 64 and policy.slope_clamped
    assert policy.slopes == ((1, 0.0),)


def test_one_width_whatever_the_round() -> None:
    policy = make_policy("cast", profile=affine_profile())
    assert isinstance(policy, Cast)
    for gain in (0.001, 0.99):
        assert policy.choose(np.full(64, gain), None, 1, PolicyState()) == policy.width
    assert policy.choose(np.full(3, 0.9), None, 1, PolicyState()) == 3
    assert policy.candidates == 8


def test_no_draft_at_width_zero() -> None:
    policy = make_policy("cast", profile=affine_profile(), grid=(0,))
    assert not policy.wants_draft(PolicyState(), RoundCosts(1.0, 0.1, np.ones(2)))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(CostError, match="cast has no width yet"):
        make_policy("cast").choose(np.ones(3), None, 1, PolicyState())
    with pytest.raises(CostError, match="needs mean gains"):
        make_policy("cast", profile=affine_profile(mean_gains=None))
    with pytest.raises(CostError, match="fit rows 200,300: expected a range with at least 2 of the measured rows 1 to"):
        make_policy("cast", profile=affine_profile(), fit_rows=(200, 300))


def test_shared_rule_is_the_argmax_of_the_batch_on_an_affine_curve() -> None:
    rng = np.random.default_rng(0)
    policy = make_policy("cast", profile=affine_profile())
    assert isinstance(policy, Cast)
    for requests in (2, 5):
        gains = -np.sort(-(rng.random(200) ** 2))
        cost_s = 0.024 + 1e-4 * (requests + np.arange(201))
        chosen = policy.choose_shared(gains, cost_s, PolicyState(), SharedRound(requests, requests))
        rate = (requests + np.concatenate([[0.0], np.cumsum(gains)])) / cost_s
        assert chosen == int(rate[: 64 * requests + 1].argmax())
