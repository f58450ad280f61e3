"""Every policy against its contract, and each rule against brute force."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from round_world import make_tree

from draftwood.core import RoundRecord
from draftwood.cost.fit import convex
from draftwood.errors import CostError, UsageError
from draftwood.policy import POLICIES, Policy, PolicyState, RoundCosts, RoundOutcome, make_policy
from draftwood.policy.auto import Auto
from draftwood.policy.cast import Cast

STATE = PolicyState()


def bound(name: str) -> Policy:
    """A policy ready to choose."""
    return Cast(width=5, slopes=((1, 1e-4),)) if name == "cast" else POLICIES[name]()


def sorted_gains(rng: np.random.Generator, count: int) -> np.ndarray:
    return -np.sort(-(rng.random(count) ** 3))


def convex_costs(rng: np.random.Generator, count: int) -> np.ndarray:
    slopes = np.cumsum(rng.exponential(0.01, count) * (rng.random(count) < 0.3))
    return rng.uniform(0.2, 2.0) + np.concatenate([[0.0], np.cumsum(slopes + rng.exponential(0.005))])


@pytest.mark.parametrize("name", POLICIES)
def test_a_choice_is_always_possible(name: str) -> None:
    policy = bound(name)
    assert policy.name == name
    assert policy.curve in ("measured", "monotone", "convex")
    rng = np.random.default_rng(0)
    for count in (0, 1, 7, 64):
        cost_s = convex_costs(rng, max(count, 1))
        costs = RoundCosts(float(cost_s[0]) * 0.9, float(cost_s[0]) * 0.1, cost_s)
        chosen = policy.choose(sorted_gains(rng, count), cost_s, 1, STATE)
        assert 0 <= chosen <= min(count, policy.max_nodes)
        # Nothing is known yet that speaks against a draft.
        assert policy.wants_draft(STATE, costs) is (name != "ar")


@pytest.mark.parametrize("policy", [Cast(width=0, slopes=((1, 1e-4),)), make_policy("ddtree", budget=0)])
def test_a_width_of_nothing_wants_no_draft(policy: Policy) -> None:
    assert policy.drafts
    assert policy.wants_draft(STATE, RoundCosts(1.0, 0.1, np.array([1.1, 1.2]))) is False


@pytest.mark.parametrize("name", POLICIES)
def test_gains_beyond_max_nodes_are_never_chosen(name: str) -> None:
    policy = bound(name)
    count = min(policy.max_nodes + 5, 1024)
    chosen = policy.choose(np.full(count, 0.9), 1.0 + np.arange(count + 1) * 1e-6, 1, STATE)
    assert chosen <= policy.max_nodes


@pytest.mark.parametrize("name", [name for name in POLICIES if POLICIES[name].needs_costs and name != "cast"])
def test_a_cost_aware_choice_without_costs_is_an_error(name: str) -> None:
    with pytest.raises(CostError, match=f"policy {name} needs a cost profile"):
        POLICIES[name]().choose(np.array([0.5]), None, 1, STATE)
    with pytest.raises(CostError, match="1 nodes have a cost: expected at least 2"):
        POLICIES[name]().choose(np.array([0.5, 0.4]), np.array([1.0, 1.1]), 1, STATE)


def best_by_enumeration(parents: np.ndarray, gains: np.ndarray, worth: Callable[[float, int], float]) -> float:
    """Best value of `worth(expected accepted, nodes)` over every set of nodes that holds the parents of its members."""
    nodes = range(1, len(gains) + 1)
    best = -np.inf
    for size in range(len(gains) + 1):
        for chosen in combinations(nodes, size):
            if all(parents[node] == 0 or parents[node] in chosen for node in chosen):
                best = max(best, worth(sum(gains[node - 1] for node in chosen), size))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_ratio_and_frozen_auto_beat_every_prefix_closed_set(seed: int) -> None:
    rng = np.random.default_rng(seed)
    marginals = -np.sort(-rng.dirichlet(np.ones(3) * 0.7, size=3), axis=1)
    marginals = np.pad(marginals, ((0, 12), (0, 5)), constant_values=1e-9)
    whole = make_tree(marginals).tree
    tree = whole.prefix(10)
    cost_s = np.cumsum(np.concatenate([[1.0], rng.choice([0.001, 0.01, 0.4], 10)]))
    count = POLICIES["ratio"]().choose(tree.gains, cost_s, 1, STATE)
    reached = (1 + tree.gains[:count].sum()) / cost_s[count]
    best = best_by_enumeration(tree.parent, tree.gains, lambda phi, size: (1 + phi) / cost_s[size])
    assert reached == pytest.approx(best, rel=1e-12)

    rate = float(rng.uniform(0.3, 3.0))
    count = Auto(rate="fixed", fixed_rate=rate).choose(tree.gains, cost_s, 1, STATE)
    reached = tree.gains[:count].sum() - rate * cost_s[count]
    best = best_by_enumeration(tree.parent, tree.gains, lambda phi, size: phi - rate * cost_s[size])
    assert reached == pytest.approx(best, abs=1e-12)


def test_caddtree_is_the_full_argmax_on_convex_curves() -> None:
    rng = np.random.default_rng(4)
    caddtree = POLICIES["caddtree"]()
    widths = set()
    for _ in range(1_000):
        gains, cost_s = sorted_gains(rng, 64), convex_costs(rng, 64)
        ratio = [(1 + gains[:n].sum()) / cost_s[n] for n in range(65)]
        chosen = caddtree.choose(gains, cost_s, 1, STATE)
        assert ratio[chosen] == pytest.approx(max(ratio), rel=1e-9)
        widths.add(chosen)
    assert len(widths) > 25 and max(widths) < 64


def test_caddtree_refuses_a_staircase_and_loses_on_its_fit() -> None:
    rows = np.arange(1, 34)
    stairs = 1.0 + 0.5 * ((rows - 1) // 8)
    gains = 0.8 * 0.93 ** np.arange(32)
    phi = np.concatenate([[0.0], np.cumsum(gains)])
    with pytest.raises(CostError, match="not convex"):
        POLICIES["caddtree"]().choose(gains, stairs, 1, STATE)
    on_fit = POLICIES["caddtree"]().choose(gains, convex(rows, stairs), 1, STATE)
    on_stairs = POLICIES["ratio"]().choose(gains, stairs, 1, STATE)
    assert on_stairs % 8 == 7, "the last node of a step is free"
    assert on_fit != on_stairs
    assert (1 + phi[on_stairs]) / stairs[on_stairs] > 1.02 * (1 + phi[on_fit]) / stairs[on_fit]


def golden_rows() -> np.ndarray:
    """Log-probabilities of the golden tree: the deterministic fill of the drafter document, normalised."""
    x = (np.arange(18, dtype=np.uint64) * 2654435761 + 201 * 97531) % 2**32
    x ^= x >> np.uint64(15)
    x = x * 2246822519 % 2**32
    x ^= x >> np.uint64(13)
    logits = (-2 + 4 * x / 2**32).astype(np.float32).astype(np.float64).reshape(3, 6)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_golden_cost_aware_numbers() -> None:
    """Drafting 10, verifying 30 up to 3 nodes, then 30 + 0.4 (n - 3) + 0.03 (n - 3)(n - 4): stop at 12."""
    rows = -np.sort(-np.exp(golden_rows()), axis=1)
    paths = [rows[0]]
    for row in rows[1:]:
        paths.append((paths[-1][:, None] * row).ravel())
    gains = -np.sort(-np.concatenate(paths))
    assert len(gains) == 258
    np.testing.assert_allclose(
        np.log(gains[:10]),
        [-1.180164, -1.267773, -1.592841, -2.013595, -2.101204, -2.128417, -2.216027, -2.371338, -2.426272, -2.541094],
        atol=2e-6,
    )
    n = np.arange(65)
    cost = 10 + 30 + np.where(n <= 3, 0.0, 0.4 * (n - 3) + 0.03 * (n - 3) * (n - 4))
    ratio = (1 + np.concatenate([[0.0], np.cumsum(gains[:64])])) / cost
    theta = [0.025, 0.032681, 0.039717, 0.044801, 0.047662, 0.050119, 0.052365, 0.054240, 0.055617, 0.056758]
    theta += [0.057567, 0.057822, 0.057933, 0.057800]
    np.testing.assert_allclose(ratio[:14], theta, atol=1e-6)
    for name in ("caddtree", "ratio"):
        assert POLICIES[name]().choose(gains[:64], cost, 1, STATE) == 12
    assert gains[:12].sum() == pytest.approx(1.651030, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cosst", {}, "policy 'cosst': expected one of ar, chain, ddtree, cast, caddtree, ratio, auto"),
        ("chain", {"candidates": 4}, "option 'candidates' is not used by policy chain: expected no options"),
        ("ratio", {"budget": 4}, "option 'budget' is not used by policy ratio: expected candidates, max_nodes"),
        ("cast", {"width": 4}, "option 'width' is not used by policy cast"),
        ("ddtree", {"budget": -1}, "budget -1: expected 0 to 1024"),
        ("ratio", {"candidates": 0}, "candidates 0: expected 1 to 1024"),
        ("auto", {"max_nodes": 1025}, "max_nodes 1025: expected 0 to 1024"),
        ("auto", {"rate": "fast"}, "rate 'fast': expected one of local, mixed, fixed"),
        ("auto", {"fixed_rate": 3.0}, "fixed_rate 3.0 with rate 'mixed'"),
        ("cast", {"grid": (15, 15)}, "grid '15,15': expected increasing widths"),
        ("cast", {"fit_rows": (128, 16)}, r"fit_rows \(128, 16\): expected two increasing"),
        ("cast", {"min_nodes": 65}, "min_nodes 65: expected 0 to max_nodes, 64"),
    ],
)
def test_wrong_options_name_the_value_and_the_allowed_set(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make_policy(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in POLICIES if name not in ("ar", "chain")])
def test_every_policy_with_a_k_takes_candidates(name: str) -> None:
    assert make_policy(name, candidates=3).candidates == 3


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_values(name: str) -> None:
    assert make_policy(name) == make_policy(name)
    assert hash(make_policy(name)) == hash(make_policy(name))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "auto"])
def test_stateless_policies_keep_their_state(name: str) -> None:
    policy = bound(name)
    costs = RoundCosts(1.0, 0.1, np.array([1.1, 1.2]))
    tree = make_tree(np.full((15, 8), 0.1)).tree.prefix(1)
    outcome = RoundOutcome(RoundRecord(2, 1, True, 10, 0), tree, np.array([0]), costs)
    assert policy.observe(STATE, outcome) == STATE
