"""One allocation for several requests against the enumeration of every way to divide a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from draftwood.cost import CostProfile
from draftwood.policy import Policy, PolicyState, RoundCosts, make_policy
from draftwood.policy.auto import Auto, AutoEngine, AutoRequest
from draftwood.policy.base import Outside
from draftwood.policy.batch import Member, Sharing, allocate, draft_wishes
from draftwood.policy.state import Calibration, Payoff, Rate

DRAFT_S = 0.002
SIZE = 5
LEARNED = Calibration(shift=-0.7, scale=0.6, info_shift=40.0, info_scale=90.0)


def table(seed: int) -> np.ndarray:
    """(61,) target seconds by rows, rising unevenly."""
    rng = np.random.default_rng([seed, 9])
    steps = rng.exponential(4e-4, 60) + np.where(rng.random(60) < 0.2, 2e-3, 0.0)
    return np.concatenate([[0.01, 0.01], 0.01 + np.cumsum(steps[:-1])])


def costs_of(base_rows: int, seconds: np.ndarray) -> Callable[[Policy, int], RoundCosts]:
    def costs(policy: Policy, extra_rows: int) -> RoundCosts:
        rows = base_rows + extra_rows
        return RoundCosts(float(seconds[rows]), DRAFT_S, seconds[rows:] + DRAFT_S)

    return costs


def gains_of(seed: int, requests: int) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, requests])
    return [-np.sort(-(rng.random(SIZE) ** 2)) for _ in range(requests)]


def request_state(seed: int, calibration: Calibration = LEARNED) -> PolicyState:
    rng = np.random.default_rng([seed, 5])
    request = AutoRequest(Rate(4 * (1 + 2 * rng.random()), 4 * 0.02, 4.0), Payoff(2.0, 5.0, 0.002, 1.0), 0.01)
    return PolicyState(request, AutoEngine(Payoff(2.0, 5.0, 0.002, 1.0), calibration))


def splits(gains: Sequence[np.ndarray], least: int = 0) -> list[tuple[int, ...]]:
    return list(product(*(range(min(least, len(own)), len(own) + 1) for own in gains)))


def calibrated(gains: np.ndarray) -> np.ndarray:
    """LEARNED, written out."""
    hit_rate: np.ndarray = 1 / (1 + np.exp(0.7) * ((1 - gains) / gains) ** 0.6)
    return hit_rate


def best_split(
    gains: Sequence[np.ndarray], seconds: np.ndarray, base_rows: int, base_tokens: float, per_s: float, least: int = 0
) -> tuple[float, Callable[[Sequence[int]], float]]:
    """The largest surplus of any split under the mean of its own best rate and `per_s`; and the surplus of a split."""

    def tokens(split: Sequence[int]) -> float:
        return sum(float(own[:n].sum()) for own, n in zip(gains, split, strict=True))

    def cost(split: Sequence[int]) -> float:
        return float(seconds[base_rows + sum(split)]) + DRAFT_S

    every = splits(gains, least)
    own = max((base_tokens + tokens(split)) / cost(split) for split in every)
    price = (own + per_s) / 2

    def surplus(split: Sequence[int]) -> float:
        return tokens(split) - price * cost(split)

    return max(map(surplus, every)), surplus


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_fixed_rate_at_the_best_rate_attains_it(requests: int) -> None:
    """The rate is each request's own, so the best of R requests is R times it (Dinkelbach: its surplus is largest)."""
    widths = set()
    for seed in range(30):
        gains, seconds = gains_of(seed, requests), table(seed)

        def rate(split: Sequence[int], gains: list[np.ndarray] = gains, seconds: np.ndarray = seconds) -> float:
            tokens = sum(float(own[:n].sum()) for own, n in zip(gains, split, strict=True))
            return (requests + tokens) / (float(seconds[requests + sum(split)]) + DRAFT_S)

        best = max(map(rate, splits(gains)))
        frozen = Auto(rate="fixed", fixed_rate=best / requests)
        chosen = allocate([Member(frozen, own) for own in gains], costs_of(requests, seconds))
        assert rate(chosen) == pytest.approx(best, rel=1e-12)
        widths.add(sum(chosen))
    assert len(widths) > 4


def profile(gains: Sequence[float]) -> CostProfile:
    """One request: 10 ms and 0.2 ms a row; two or four: 1.5 ms more for each further one."""
    rows = [1, 2, 4, 8, 16, 32, 64]
    extra = [[[0.01 + 2e-4 * row + 1.5e-3 * (count - 1) for row in (8, 32)]] for count in (2, 4)]
    return CostProfile.from_json(
        {
            "schema": 1, "rows": rows, "contexts": [1024], "requests": [1, 2, 4],
            "verify_s": [[0.01 + 2e-4 * row for row in rows]], "draft_s": [[0.002, 0.0025, 0.0035]], "host_s": None,
            "batch": {"contexts": [1024], "rows": [8, 32], "verify_s": extra}, "mean_gains": list(gains),
        }
    )  # fmt: skip


def seconds_by_hand(rows: int, requests: int) -> float:
    return 0.01 + 2e-4 * rows + 1.5e-3 * (requests - 1) + 0.002 + 0.0005 * (requests - 1)


@pytest.mark.parametrize("requests", [1, 2, 3, 4, 8])
def test_the_profiles_rate_is_that_of_as_many_requests(requests: int) -> None:
    gains = np.array([0.8, 0.6, 0.3, 0.1, 0.02])
    policy = make_policy("auto", profile=profile(gains.tolist()), rate="fixed")
    assert isinstance(policy, Auto)
    # The best rate apiece of 1, 2 and 4 requests that are all alike; linear between, constant beyond.
    apiece = {
        count: max((1 + gains[:n].sum()) / seconds_by_hand(count * (1 + n), count) for n in range(6))
        for count in (1, 2, 4)
    }
    price = requests * {**apiece, 3: (apiece[2] + apiece[4]) / 2, 8: apiece[4]}[requests]
    seconds = np.array([seconds_by_hand(rows, requests) for rows in range(60)]) - DRAFT_S
    chosen = allocate([Member(policy, gains)] * requests, costs_of(requests, seconds))
    merged = -np.sort(-np.tile(gains, requests))
    phi = np.concatenate([[0.0], np.cumsum(merged)])
    surplus = phi - price * seconds[requests : requests + len(phi)]
    assert surplus[sum(chosen)] == pytest.approx(surplus.max(), rel=1e-12)
    state = policy.merge([PolicyState()] * requests)
    pays_up_to = state.request.payoff.accepted / price - state.request.payoff.extra_s
    for draft_s, drafts in ((float(0.9 * pays_up_to), True), (float(1.6 * pays_up_to), False)):
        costs = RoundCosts(float(seconds[requests]), draft_s, seconds[requests:] + draft_s)
        assert policy.wants_draft(state, costs) is drafts


@pytest.mark.parametrize("least", [0, 2])
@pytest.mark.parametrize("fixed", [0, 3])
def test_calibrated_gains_decide_everything(least: int, fixed: int) -> None:
    """Gains of the sharers, of their forced nodes and of fixed trees are hit rates alike."""
    policy = Auto(calibration=True)
    raw_differs = 0
    for seed in range(25):
        gains, seconds, tree = gains_of(seed, 2), table(seed), gains_of(seed + 100, 1)[0]
        members = [Member(policy, own, request_state(seed + at)) for at, own in enumerate(gains)]
        if fixed:
            members.insert(0, Member(make_policy("ddtree", budget=fixed), tree))
        requests = len(members)
        found = allocate(members, costs_of(requests, seconds), sharing=Sharing(min_nodes=least))
        chosen = found[-2:]
        outside = 1 + float(calibrated(tree[:fixed]).sum()) if fixed else 0.0
        rate = sum(member.state.request.rate.tokens / 4 for member in members[-2:]) + outside
        per_s = max(rate / 0.02, (2 + outside) / 0.01)
        hits = [calibrated(own) for own in gains]
        best, surplus = best_split(hits, seconds, requests + fixed, 2 + outside, per_s, least)
        assert surplus(chosen) == pytest.approx(best, abs=1e-12)
        _, by_scores = best_split(gains, seconds, requests + fixed, 2 + outside, per_s, least)
        raw_differs += max(map(by_scores, splits(gains, least))) > by_scores(chosen) + 1e-9
    assert raw_differs


@pytest.mark.parametrize("name", ["auto", "ratio", "caddtree"])
@pytest.mark.parametrize("calibration", [False, True])
def test_uniform_widths_pay_for_the_nodes_that_exist(name: str, calibration: bool) -> None:
    policy = Auto(calibration=calibration) if name == "auto" else make_policy(name)
    widths = set()
    for seed in range(25):
        gains = [own[:size] for own, size in zip(gains_of(seed, 3), (5, 2, 4), strict=True)]
        seconds = 0.01 + 3e-5 * np.arange(61.0) ** 1.5 if name == "caddtree" else table(seed)
        states = [request_state(seed + at) for at in range(3)]
        members = [Member(policy, own, state) for own, state in zip(gains, states, strict=True)]
        chosen = allocate(members, costs_of(3, seconds), sharing=Sharing("uniform"))
        hits = [calibrated(own) for own in gains] if calibration and name == "auto" else gains
        rows = [3 + sum(min(n, len(own)) for own in gains) for n in range(6)]
        tokens = [sum(float(own[:n].sum()) for own in hits) for n in range(6)]
        cost = [float(seconds[row]) + DRAFT_S for row in rows]
        ratio = [(3 + phi) / spent for phi, spent in zip(tokens, cost, strict=True)]
        value = ratio
        if name == "auto":
            merged = sum(state.request.rate.tokens / 4 for state in states) / 0.02
            price = (max(ratio) + max(merged, 3 / 0.01)) / 2
            value = [phi - price * spent for phi, spent in zip(tokens, cost, strict=True)]
        width = chosen[0]
        assert chosen == [min(width, len(own)) for own in gains]
        if name == "caddtree":  # stops at the first loss
            losses = [n for n in range(5) if ratio[n + 1] <= ratio[n]]
            assert width == min([*losses, 5])
        else:
            assert value[width] == pytest.approx(max(value), abs=1e-12)
        widths.add(width)
    assert len(widths) > 1


def test_what_has_been_learned_counts_wherever_it_stands() -> None:
    """The most experienced halves of the engine's memory, whichever request comes first and whatever its policy."""
    policy = Auto(calibration=True)
    young, old = request_state(1, Calibration()), request_state(2)
    foreign = PolicyState("another policy's", "memory")
    for order in ([young, old, foreign], [foreign, old, young], [old, foreign, young]):
        merged = policy.merge(order)
        assert merged.engine.calibration == LEARNED
        assert merged.request.requests == 3
    gains, seconds = gains_of(3, 2), table(3)
    leader = Member(make_policy("ratio"), gains[0]), Member(policy, gains[1], old)
    mixed = allocate(leader, costs_of(2, seconds), default=policy)
    again = allocate(leader[::-1], costs_of(2, seconds), default=policy)
    assert mixed == again[::-1]


def test_the_doubt_of_a_batch_is_that_of_its_sum() -> None:
    """Accepted drafts of 0 or 4 and of 1 or 2, equally likely and independent: all four sums by hand."""
    first = AutoRequest(Rate(3.0, 0.02, 1.0), Payoff(2.0, 8.0, 0.01, 1.0), 0.01)
    second = AutoRequest(Rate(2.5, 0.02, 1.0), Payoff(3.0, 5.0, 0.02, 2.0), 0.01)
    payoff = Auto().merge([PolicyState(first), PolicyState(second)]).request.payoff
    sums = [a + b for a, b in product((0, 4), (1, 2))]
    assert payoff.accepted / payoff.weight == pytest.approx(np.mean(sums))
    assert payoff.variance == pytest.approx(np.var(sums))
    assert payoff.extra_s == pytest.approx(0.01)


def test_seconds_belong_to_everybody_in_the_round() -> None:
    """A request beside others that do not share: their tokens pass in the same seconds."""
    request = AutoRequest(Rate(3.0, 0.02, 1.0), Payoff(2.0, 4.0, 0.004, 1.0), 0.018)
    merged = Auto().merge([PolicyState(request)], Outside(5, 6.5)).request
    assert merged.tokens_per_s == pytest.approx(max((3.0 + 6.5) / 0.02, (1 + 6.5) / 0.018))
    costs = costs_of(1, np.full(60, 0.018))
    # Alone the draft earns 2 tokens for 0.004 + 0.002 s at 150 a second; beside 5 others a second costs 400.
    drafter: list[tuple[Policy, PolicyState]] = [(Auto(), PolicyState(request))]
    assert draft_wishes(drafter, costs) == [True]
    assert draft_wishes(drafter, costs, plain_requests=5) == [False]
    chain: tuple[Policy, PolicyState] = (make_policy("chain"), PolicyState())
    assert draft_wishes([chain, *drafter, *[chain] * 4], costs) == [True, False, *[True] * 4]
