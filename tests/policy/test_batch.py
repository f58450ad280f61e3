"""Several requests in one round."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from round_world import make_costs_table, skilled_tree

from draftwood.errors import UsageError
from draftwood.policy import POLICIES, Policy, PolicyState, RoundCosts, make_policy
from draftwood.policy.auto import Auto, AutoEngine, AutoRequest, ExpectedRound
from draftwood.policy.batch import Member, Sharing, allocate, draft_wishes
from draftwood.policy.cast import Cast
from draftwood.policy.state import Payoff, Rate

SHARERS = [name for name, policy in POLICIES.items() if policy.shares]
TARGET_S = make_costs_table(200)
DRAFT_S = 0.003


def costs_of(base_rows: int, table: np.ndarray = TARGET_S) -> Callable[[Policy, int], RoundCosts]:
    def costs(policy: Policy, extra_rows: int) -> RoundCosts:
        rows = base_rows + extra_rows
        return RoundCosts(float(table[rows]), DRAFT_S, table[rows:] + DRAFT_S)

    return costs


def request_state(tokens: float = 3.0, seconds: float = 0.014) -> PolicyState:
    return PolicyState(AutoRequest(Rate(tokens, seconds, 1.0), Payoff(2.0, 4.0, 0.002, 1.0), 0.01), AutoEngine())


def forests(seed: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [skilled_tree(float(rng.random()), rng).tree.gains[:size] for size in sizes]


@pytest.mark.parametrize("name", SHARERS)
@pytest.mark.parametrize("share", ["shared", "uniform"])
def test_one_request_gets_what_its_policy_chooses(name: str, share: str) -> None:
    policy = make_policy(name)
    for seed in range(5):
        (gains,) = forests(seed, (64,))
        state = request_state()
        alone = policy.choose(gains, TARGET_S[1:66] + DRAFT_S, 1, state)
        member = Member(policy, gains, state)
        assert allocate([member], costs_of(1), sharing=Sharing(share)) == [alone]


def test_shared_allocation_beats_every_split_of_two_small_forests() -> None:
    """Enumerates (n1, n2): best-first prefixes of each forest are its best prefix-closed sets."""
    for seed in range(20):
        first, second = forests(seed, (9, 9))
        phi = [np.concatenate([[0.0], np.cumsum(gains)]) for gains in (first, second)]
        jumpy = TARGET_S * np.where(np.arange(len(TARGET_S)) > 8, 1.4, 1.0)
        split = list(product(range(10), range(10)))

        chosen = allocate([Member(make_policy("ratio"), g) for g in (first, second)], costs_of(2, jumpy))
        ratio = [(2 + phi[0][a] + phi[1][b]) / (jumpy[2 + a + b] + DRAFT_S) for a, b in split]
        assert ratio[split.index((chosen[0], chosen[1]))] == pytest.approx(max(ratio), rel=1e-12)

        rate = 75.0  # of each request: a second costs both of them
        frozen = Auto(rate="fixed", fixed_rate=rate)
        chosen = allocate([Member(frozen, g) for g in (first, second)], costs_of(2, jumpy))
        surplus = [phi[0][a] + phi[1][b] - 2 * rate * jumpy[2 + a + b] for a, b in split]
        assert surplus[split.index((chosen[0], chosen[1]))] == pytest.approx(max(surplus), abs=1e-12)


def test_caddtree_shares_like_ratio_on_a_convex_curve() -> None:
    gains = forests(3, (40, 40, 40))
    by_name = [allocate([Member(make_policy(name), g) for g in gains], costs_of(3)) for name in ("caddtree", "ratio")]
    assert by_name[0] == by_name[1]
    assert len(set(by_name[0])) > 1, "widths differ where the forests do"


def test_uniform_gives_each_the_same() -> None:
    gains = forests(3, (40, 40, 7))
    counts = allocate([Member(make_policy("ratio"), g) for g in gains], costs_of(3), sharing=Sharing("uniform"))
    assert counts[0] == counts[1] and counts[2] == min(counts[0], 7)
    rows = [sum(min(n, len(g)) for g in gains) for n in range(41)]
    rate = [(3 + sum(float(g[:n].sum()) for g in gains)) / (TARGET_S[3 + rows[n]] + DRAFT_S) for n in range(41)]
    assert counts[0] == int(np.argmax(rate))


def test_fixed_policies_take_their_nodes_first() -> None:
    gains = forests(1, (20, 20, 20))
    members = [Member(make_policy("ratio"), gains[0]), Member(make_policy("ddtree", budget=11), gains[1])]
    members.append(Member(Cast(width=6, slopes=((1, 1e-4),)), gains[2]))
    counts = allocate(members, costs_of(3), sharing=Sharing("uniform"))
    assert counts[1:] == [11, 6]
    base = 3 + float(gains[1][:11].sum()) + float(gains[2][:6].sum())
    phi = np.concatenate([[0.0], np.cumsum(gains[0])])
    assert counts[0] == int(np.argmax((base + phi) / (TARGET_S[20:41] + DRAFT_S)))


def test_cast_requests_share_by_proposition_three() -> None:
    gains = forests(2, (30, 30, 30))
    policy = Cast(width=6, slopes=((1, 1e-4), (4, 2.5e-4)))
    shared = allocate([Member(policy, g) for g in gains], costs_of(3))
    assert allocate([Member(policy, g) for g in gains], costs_of(3), sharing=Sharing("uniform")) == [6, 6, 6]
    merged = -np.sort(-np.concatenate(gains))
    count, phi = 0, 0.0
    while merged[count] >= (3 + phi) / (TARGET_S[3 + count] + DRAFT_S) * 2e-4:
        phi += float(merged[count])
        count += 1
    assert sum(shared) == count
    assert [int((g >= merged[count - 1]).sum()) for g in gains] == shared
    assert allocate([Member(policy, gains[0])], costs_of(1)) == [6], "one request keeps the deployment's width"


def test_min_nodes_bounds_starvation() -> None:
    strong, weak = np.full(30, 0.9), np.full(10, 0.001)
    members = [Member(make_policy("ratio"), strong), Member(make_policy("ratio"), weak)]
    starved = allocate(members, costs_of(2))
    fed = allocate(members, costs_of(2), sharing=Sharing(min_nodes=4))
    assert starved[1] == 0 and fed[1] == 4
    assert allocate([Member(make_policy("ratio"), weak[:2])], costs_of(1), sharing=Sharing(min_nodes=4)) == [2]


def test_the_engines_policy_serves_all_sharers() -> None:
    gains = forests(4, (30, 30))
    members = [Member(make_policy("ratio"), gains[0]), Member(make_policy("caddtree"), gains[1])]
    frozen = Auto(rate="fixed", fixed_rate=150.0)
    assert allocate(members, costs_of(2), default=frozen) == allocate([Member(frozen, g) for g in gains], costs_of(2))


def test_plain_requests_count_as_tokens() -> None:
    (gains,) = forests(5, (40,))
    member = Member(make_policy("ratio"), gains)
    phi = np.concatenate([[0.0], np.cumsum(gains)])
    counts = allocate([member], costs_of(6), plain_requests=5)
    assert counts == [int(np.argmax((6 + phi) / (TARGET_S[6:47] + DRAFT_S)))]


def test_merged_rate_adds_tokens_and_averages_seconds() -> None:
    policy = Auto()
    states = [
        PolicyState(AutoRequest(Rate(8.0, 4.0, 2.0), Payoff(2.0, 2.0, 1.0, 2.0), 1.0), AutoEngine()),
        PolicyState(AutoRequest(Rate(15.0, 9.0, 3.0), Payoff(9.0, 27.0, 6.0, 3.0), 3.0), AutoEngine()),
    ]
    merged = policy.merge(states).request
    assert merged.rate.per_second == pytest.approx((4 + 5) / 2.5)
    assert merged.payoff.accepted == pytest.approx(1 + 3) and merged.payoff.extra_s == pytest.approx(1.25)
    assert merged.requests == 2 and merged.plain_s == pytest.approx(2.0)
    assert policy.merge(states[:1]).request.tokens_per_s == pytest.approx(2.0)
    with_new = policy.merge([*states, PolicyState()]).request
    assert with_new.rate.tokens == pytest.approx(9 * 3 / 2), "an unknown request counts like the mean of the others"
    assert policy.merge([PolicyState(), PolicyState()]).request is None
    start = Auto(expected=ExpectedRound(1.0, 2.0, 0.5, 1.0)).merge([PolicyState()] * 3).request
    assert start.rate.per_second == pytest.approx(3 * 2 / 2)


def test_sharers_decide_on_drafting_together() -> None:
    paying, idle = (
        request_state(),
        PolicyState(AutoRequest(Rate(1.0, 0.01, 1.0), Payoff(0.0, 0.0, 0.004, 1.0), 0.01), AutoEngine()),
    )
    auto = Auto()
    costs = costs_of(2)
    assert auto.wants_draft(paying, costs(auto, 0)) and not auto.wants_draft(idle, costs(auto, 0))
    requests: list[tuple[Policy, PolicyState]] = [(auto, idle), (make_policy("ar"), PolicyState()), (auto, paying)]
    assert draft_wishes(requests, costs) == [False, False, False], "together they do not earn the pass"
    assert draft_wishes(requests[2:], costs) == [True]
    assert draft_wishes(requests, costs, default=make_policy("ratio")) == [True, False, True]
    assert draft_wishes([(make_policy("chain"), PolicyState())], None) == [True]


def test_wrong_sharing_is_named() -> None:
    with pytest.raises(UsageError, match="share 'fair': expected one of shared, uniform"):
        Sharing("fair")
    with pytest.raises(UsageError, match="min_nodes -1: expected 0 to 1024"):
        Sharing(min_nodes=-1)
    with pytest.raises(UsageError, match="min_nodes 1025: expected 0 to 1024"):
        Sharing(min_nodes=1025)
    with pytest.raises(UsageError, match="policy ratio shares a round by its costs: expected a cost profile"):
        allocate([Member(make_policy("ratio"), np.ones(2))], None)
