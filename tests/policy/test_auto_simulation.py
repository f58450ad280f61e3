"""`auto` against the best fixed budget where the truth is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from round_world import NODES, SHAPES, Driver, Text, made_costs, make_text, skilled_tree

from draftwood.cost import CostProfile
from draftwood.policy import Policy, RoundCosts, make_policy

ROUNDS = 4_000
TOKENS = 20_000


def profile_of(costs: RoundCosts, text: Text) -> CostProfile:
    """The same costs as a profile, with the text's mean gains."""
    return CostProfile.from_json(
        {
            "schema": 1,
            "rows": list(range(1, NODES + 2)),
            "contexts": [1024],
            "verify_s": [(costs.round_s - costs.draft_s).tolist()],
            "draft_s": [costs.draft_s],
            "mean_gains": text.mean_gains.tolist(),
        }
    )


def fresh_rate(text: Text, policy: Policy, costs: RoundCosts) -> float:
    """Tokens per second when every round is drawn anew: all policies see the same rounds."""
    driver = Driver(policy)
    played = [driver.play(text.pool[at], costs) for at in text.tree_at[:ROUNDS]]
    return sum(item.expected_tokens for item in played) / sum(item.seconds for item in played)


def crossing_rate(text: Text, policy: Policy, costs: RoundCosts) -> float:
    """Tokens per second over a text in stretches: a round starts where the last one got to, in expectation."""
    driver = Driver(policy)
    pos, seconds, rounds = 0.0, 0.0, 0
    while pos < len(text.tree_at):
        played = driver.play(text.pool[text.tree_at[int(pos)]], costs)
        pos += played.expected_tokens
        seconds += played.seconds
        rounds += 1
    assert rounds >= ROUNDS
    return pos / seconds


def best_fixed_fresh(text: Text, costs: RoundCosts) -> float:
    phi = np.stack([made.phi for made in text.pool])[text.tree_at[:ROUNDS]]
    return float(((1 + phi).sum(0) / (ROUNDS * costs.round_s)).max())


def best_fixed_crossing(text: Text, costs: RoundCosts) -> float:
    """Every budget crosses the text at once, in lockstep."""
    step = 1 + np.stack([made.phi for made in text.pool])  # (pool, budgets)
    budgets = np.arange(NODES + 1)
    pos, rounds, running = np.zeros(NODES + 1), np.zeros(NODES + 1), np.ones(NODES + 1, bool)
    while running.any():
        at = text.tree_at[np.minimum(pos.astype(int), len(text.tree_at) - 1)]
        pos += np.where(running, step[at, budgets], 0.0)
        rounds += running
        running = pos < len(text.tree_at)
    return float((pos / (rounds * costs.round_s)).max())


@pytest.fixture(scope="module", params=[1, 20, 50, 300], ids=lambda stretch: f"stretch{stretch}")
def text(request: pytest.FixtureRequest) -> Text:
    return make_text(seed=request.param, num_tokens=ROUNDS if request.param == 1 else TOKENS, stretch=request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_auto_keeps_up_with_the_best_fixed_budget(text: Text, shape: str) -> None:
    costs = made_costs(shape)
    auto = make_policy("auto", profile=profile_of(costs, text))
    fresh = len(text.tree_at) == ROUNDS
    rate = (fresh_rate if fresh else crossing_rate)(text, auto, costs)
    best = (best_fixed_fresh if fresh else best_fixed_crossing)(text, costs)
    assert rate >= 0.995 * best
    assert best * costs.plain_s > 1.5, "the world should reward drafting, or the comparison says little"


@pytest.mark.parametrize("draft_s", [0.008, 0.010, 0.014, 0.020])
@pytest.mark.parametrize("shape", SHAPES)
def test_auto_with_a_drafter_that_hardly_pays(shape: str, draft_s: float) -> None:
    """Acceptance is mostly noise here: skipping must neither start by chance nor stay away from a loss."""
    rng = np.random.default_rng(101)
    pool = [skilled_tree(0.15 * skill - 0.25, rng) for skill in rng.beta(0.8, 0.8, 100)]
    text = Text(pool, rng.integers(0, 100, ROUNDS))
    costs = made_costs(shape, draft_s)
    rate = fresh_rate(text, make_policy("auto", profile=profile_of(costs, text)), costs) * costs.plain_s
    best = best_fixed_fresh(text, costs) * costs.plain_s
    if best > 1.1:
        assert rate >= 0.995 * best
    assert rate >= 0.96
    assert best < 1.3


def test_the_step_ruins_a_rule_that_needs_convexity() -> None:
    """The negative control: on the jump, `caddtree` on its convex fit is far below what `auto` must reach."""
    text, costs = make_text(seed=1, num_tokens=ROUNDS, stretch=1), made_costs("jump")
    profile = profile_of(costs, text)
    fitted = profile.round_cost(1, 1024, max_nodes=NODES, curve="convex").round_s
    caddtree = make_policy("caddtree")
    tokens = seconds = 0.0
    for at in text.tree_at:
        made = text.pool[at]
        count = caddtree.choose(made.tree.gains, fitted, 1, Driver(caddtree).state)
        tokens += 1 + float(made.phi[count])
        seconds += float(costs.round_s[count])
    assert tokens / seconds < 0.9 * best_fixed_fresh(text, costs)
