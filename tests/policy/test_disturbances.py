"""The machine changes while decoding: a common factor must not matter, a new slope or base must."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from round_world import NODES, Driver, Text, made_costs, make_text
from test_auto_simulation import profile_of

from draftwood.cost import CostProfile, LiveCosts, LiveFactors
from draftwood.policy import POLICIES, make_policy

CALM, AFTER = 60, 30
COST_AWARE = [name for name, policy in POLICIES.items() if policy.needs_costs and policy.shares]


@cache
def world(shape: str) -> tuple[Text, CostProfile]:
    text = make_text(seed=9, num_tokens=400, stretch=1, pool=100)
    return text, profile_of(made_costs(shape), text)


def widths_on_mean_gains(name: str, shape: str, now: LiveFactors, seed: int, noise: float = 0.0) -> tuple[int, ...]:
    """n on the mean gains before the change, every round after it, and last what is right after it."""
    text, profile = world(shape)
    driver = Driver(make_policy(name, profile=profile, **({"skipping": False} if name == "auto" else {})), seed)
    rng, live = np.random.default_rng(seed), LiveCosts()
    curve = driver.policy.curve
    found: list[int] = []
    for step in range(CALM + AFTER):
        costs = profile.round_cost(1, 1024, max_nodes=NODES, curve=curve, live=live.factors())
        played = driver.play(text.pool[rng.integers(len(text.pool))], costs)
        true = now if step >= CALM else LiveFactors()
        single_s, rows_s = profile.target_s(1, 1024), profile.target_s(played.num_nodes + 1, 1024)
        measured_s = true.base * single_s + true.slope * (rows_s - single_s)
        live = live.observe_target(single_s, rows_s, measured_s * float(np.exp(noise * rng.standard_normal())))
        live = live.observe_draft(0.003, 0.003 * true.draft)
        if step >= CALM - 1:
            costs = profile.round_cost(1, 1024, max_nodes=NODES, curve=curve, live=live.factors())
            found.append(driver.policy.choose(text.mean_gains, costs.round_s, 1, driver.state))
    right = profile.round_cost(1, 1024, max_nodes=NODES, curve=curve, live=now)
    return (*found, driver.policy.choose(text.mean_gains, right.round_s, 1, driver.state))


@pytest.mark.parametrize("shape", ["smooth", "stairs"])
@pytest.mark.parametrize("name", COST_AWARE)
def test_a_machine_twice_as_slow_is_the_same_machine(name: str, shape: str) -> None:
    """Against the same rounds on a machine that stays as it is: the change itself hardly shows, 30 rounds on not."""
    for seed in range(3):
        slowed = widths_on_mean_gains(name, shape, LiveFactors(2.0, 2.0, 2.0), seed)
        steady = widths_on_mean_gains(name, shape, LiveFactors(), seed)
        apart = [abs(one - other) for one, other in zip(slowed, steady, strict=True)]
        assert max(apart) <= (2 if shape == "smooth" else 8), "no more than one step of the stairs, at once"
        assert max(apart[20:]) <= 1


@pytest.mark.parametrize("name", COST_AWARE)
def test_a_steeper_machine_gets_smaller_trees(name: str) -> None:
    for seed in range(3):
        before, *after, right = widths_on_mean_gains(name, "smooth", LiveFactors(1.0, 3.0, 1.0), seed)
        assert right < before
        assert abs(after[-1] - right) <= 1


@pytest.mark.parametrize("name", COST_AWARE)
def test_a_heavier_base_gets_larger_trees(name: str) -> None:
    for seed in range(3):
        before, *after, right = widths_on_mean_gains(name, "smooth", LiveFactors(3.0, 1.0, 1.0), seed)
        assert right > before + 5
        assert abs(after[-1] - right) <= 3


@pytest.mark.parametrize("name", COST_AWARE)
def test_noise_alone_costs_little(name: str) -> None:
    """Five percent of noise moves n, but not far enough to lose half a percent on average."""
    text, _ = world("smooth")
    costs = made_costs("smooth")
    rate = (1.0 + np.concatenate([[0.0], np.cumsum(text.mean_gains)])) / costs.round_s
    for seed in range(3):
        *widths, right = widths_on_mean_gains(name, "smooth", LiveFactors(), seed, noise=0.05)
        assert rate[widths].mean() >= 0.995 * rate[right]


def test_cast_keeps_its_width() -> None:
    """One width per deployment: no disturbance reaches it."""
    _, profile = world("smooth")
    policy = make_policy("cast", profile=profile)
    for factors in (LiveFactors(), LiveFactors(1.0, 4.0, 1.0)):
        costs = profile.round_cost(1, 1024, max_nodes=NODES, live=factors)
        assert Driver(policy).policy.choose(np.ones(NODES), costs.round_s, 1, Driver(policy).state) == 15
