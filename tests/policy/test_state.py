"""What `auto` remembers."""

from __future__ import annotations

import numpy as np
import pytest
from round_world import Driver, made_costs, make_tree

from draftwood.core import RoundRecord
from draftwood.cost import CostProfile
from draftwood.errors import CostError
from draftwood.policy import PolicyState, RoundCosts, RoundOutcome, make_policy
from draftwood.policy.auto import Auto, AutoEngine, AutoRequest, ExpectedRound
from draftwood.policy.state import Calibration, Payoff, Rate, Skipping

TREE = make_tree(-np.sort(-np.random.default_rng(0).dirichlet(np.ones(8), 15), axis=1))
COSTS = RoundCosts(1.0, 0.25, np.array([1.25, 1.5, 2.0, 3.0]))
EXPECTED = ExpectedRound(accepted=3.0, seconds=2.0, extra_s=0.75, plain_s=1.0)


def observe(policy: Auto, state: PolicyState, nodes: int, accepted: int, drafted: bool = True) -> PolicyState:
    record = RoundRecord(nodes + 1, accepted + 1, drafted, 10, accepted)
    return policy.observe(state, RoundOutcome(record, TREE.prefixes[nodes], np.arange(accepted + 1), COSTS))


def test_the_rate_is_discounted_tokens_over_discounted_seconds() -> None:
    policy = Auto(expected=EXPECTED)
    state = observe(policy, PolicyState(), nodes=2, accepted=1)
    state = observe(policy, state, nodes=3, accepted=0)
    state = observe(policy, state, nodes=0, accepted=0, drafted=False)
    tokens = 0.9**3 * 5 * 4 + 0.9**2 * 2 + 0.9 * 1 + 1
    seconds = 0.9**3 * 5 * 2 + 0.9**2 * 2.0 + 0.9 * 3.0 + 1.0
    assert state.request.rate.tokens == pytest.approx(tokens)
    assert state.request.rate.seconds == pytest.approx(seconds)
    assert state.request.tokens_per_s == pytest.approx(max(tokens / seconds, 1.0))


def test_the_rate_never_falls_below_plain_decoding() -> None:
    slow = AutoRequest(Rate(1.0, 10.0, 1.0), Payoff.start(0.0, 1.0), plain_s=0.5)
    assert slow.tokens_per_s == 2.0


def test_whole_round_seconds_come_from_the_record_in_a_batch() -> None:
    record = RoundRecord(2, 2, True, 10, 1, predicted_s=2.75)
    state = Auto(expected=EXPECTED).observe(PolicyState(), RoundOutcome(record, TREE.prefixes[1], np.arange(2), COSTS))
    assert state.request.rate.seconds == pytest.approx(0.9 * 10 + 2.75)
    assert state.request.payoff.extra_s == pytest.approx(0.9 * 5 * 0.75 + 1.5)


@pytest.mark.parametrize(
    ("accepted", "drafts"), [(4.0, True), (0.8, False)], ids=["worth its price", "not worth its price"]
)
def test_drafting_pays_when_realised_drafts_exceed_their_price(accepted: float, drafts: bool) -> None:
    # At 1 token a second a draft of 0.25 s and 0.75 s more of verifying cost one token.
    request = AutoRequest(Rate(1.0, 1.0, 1.0), Payoff(accepted, accepted**2, 0.75, 1.0), plain_s=1.0)
    assert Auto().wants_draft(PolicyState(request, AutoEngine()), COSTS) is drafts
    assert Auto(skipping=False).wants_draft(PolicyState(request, AutoEngine()), COSTS)


def test_a_noisy_mean_has_the_benefit_of_the_doubt() -> None:
    steady, noisy = Payoff(0.8, 0.64, 0.75, 1.0), Payoff(0.8, 2.24, 0.75, 1.0)
    assert steady.surplus(1.0, 0.25) == pytest.approx(-0.2)
    assert noisy.surplus(1.0, 0.25) == pytest.approx(-0.2 + np.sqrt(1.6 / 19))


def test_probe_intervals_double_until_probing_is_cheap_and_reset_when_a_probe_pays() -> None:
    driver = Driver(Auto(expected=ExpectedRound(0.0, 2.0, 0.75, 1.0)))
    assert isinstance(driver.policy, Auto)
    costs = made_costs("smooth")
    drafted = [driver.play(TREE, costs, path=[0]).drafted for _ in range(1_500)]
    at = np.flatnonzero(drafted)
    gaps = np.diff(at) - 1
    assert gaps[:5].tolist() == [2, 4, 8, 16, 32]
    assert len(set(gaps[-3:].tolist())) == 1, "a last interval is reached and kept"
    price = float(costs.round_s[0]) - costs.plain_s
    assert price / (price + gaps[-1] * costs.plain_s) < 0.01
    while not driver.play(TREE, costs, path=[0, 1]).committed > 1:
        pass
    assert driver.state.request.skipping == Skipping(0, 0)


def test_a_new_request_starts_from_the_engines_mean() -> None:
    policy = Auto(expected=EXPECTED)
    state = PolicyState()
    for _ in range(200):
        state = observe(policy, state, nodes=3, accepted=0)
    fresh = PolicyState(None, state.engine)
    assert policy.wants_draft(PolicyState(), COSTS)
    assert not policy.wants_draft(fresh, COSTS), "the last request showed that it does not pay"
    skipped = observe(policy, fresh, nodes=0, accepted=0, drafted=False)
    assert skipped.request.rate.tokens == pytest.approx(0.9 * 5 * 4 + 1), "the rate starts from the profile"
    for waited in range(1, 16):
        assert not policy.wants_draft(skipped, COSTS), f"probing does not start anew: round {waited}"
        skipped = observe(policy, skipped, nodes=0, accepted=0, drafted=False)
    assert policy.wants_draft(skipped, COSTS), "the first probe comes after sixteen rounds"


def test_a_drafter_that_paid_is_tried_soon_by_the_next_request() -> None:
    policy = Auto(expected=EXPECTED)
    state = PolicyState()
    for _ in range(50):
        state = observe(policy, state, nodes=3, accepted=3)
    assert state.engine.interval == 1
    skipped = observe(policy, PolicyState(None, state.engine), nodes=0, accepted=0, drafted=False)
    assert policy.wants_draft(skipped, COSTS)


def test_without_a_profile_the_first_round_is_the_start() -> None:
    state = observe(Auto(), PolicyState(), nodes=2, accepted=2)
    accepted = float(TREE.tree.gains[:2].sum())
    assert state.request.rate.tokens == pytest.approx(0.9 * 5 * (1 + accepted) + 3)
    assert state.request.payoff.accepted == pytest.approx(0.9 * 5 * accepted + 2)
    assert observe(Auto(), PolicyState(), 0, 0, drafted=False).request is None


def test_rate_modes() -> None:
    gains = np.array([0.9, 0.5, 0.2])
    request = AutoRequest(Rate(1.2, 1.0, 1.0), Payoff.start(1.0, 0.5), plain_s=1.0)
    state = PolicyState(request, AutoEngine())
    best = max((1 + gains[:n].sum()) / COSTS.round_s[n] for n in range(4))

    def by_hand(rate: float) -> int:
        return int(np.argmax([gains[:n].sum() - rate * COSTS.round_s[n] for n in range(4)]))

    for mode, rate in (("local", 1.2), ("mixed", (1.2 + best) / 2), ("fixed", 0.3)):
        policy = Auto(rate=mode, fixed_rate=0.3 if mode == "fixed" else None)
        assert policy.choose(gains, COSTS.round_s, 1, state) == by_hand(rate)
    assert by_hand(0.3) != by_hand(1.2)
    with pytest.raises(CostError, match="rate 'fixed' without fixed_rate"):
        Auto(rate="fixed").choose(gains, COSTS.round_s, 1, state)


def test_a_high_rate_leaves_the_tree_empty() -> None:
    request = AutoRequest(Rate(50.0, 1.0, 1.0), Payoff.start(1.0, 0.5), plain_s=1.0)
    assert Auto(rate="local").choose(np.array([0.9, 0.9]), COSTS.round_s[:3], 1, PolicyState(request)) == 0


def test_the_profile_gives_the_expected_round() -> None:
    profile = CostProfile.from_json(
        {
            "schema": 1,
            "rows": [1, 2, 3, 4],
            "contexts": [1024],
            "verify_s": [[1.0, 1.2, 1.4, 3.0]],
            "draft_s": [0.1],
            "mean_gains": [0.8, 0.5, 0.1],
        }
    )
    policy = make_policy("auto", profile=profile)
    assert isinstance(policy, Auto) and policy.expected is not None
    assert policy.expected == pytest.approx((1.3, 1.5, 0.4, 1.0))


def test_calibration_starts_at_the_identity_and_keeps_the_order() -> None:
    gains = np.array([0.99, 0.5, 0.2, 1e-5])
    np.testing.assert_allclose(Calibration().apply(gains), gains, rtol=1e-9)
    learned = Calibration()
    rng = np.random.default_rng(0)
    for _ in range(50):
        learned = learned.add(gains, (rng.random(4) < gains**2).astype(float))
    mapped = learned.apply(np.linspace(0.999, 0.001, 50))
    assert np.all(np.diff(mapped) < 0)


def test_calibration_finds_the_law_of_the_hits() -> None:
    rng = np.random.default_rng(1)
    learned, shift, scale = Calibration(), -1.0, 0.7
    for _ in range(400):
        gains = rng.random(30)
        truth = 1 / (1 + np.exp(-(shift + scale * np.log(gains / (1 - gains)))))
        learned = learned.add(gains, (rng.random(30) < truth).astype(float))
    assert learned.shift == pytest.approx(shift, abs=0.3)
    assert learned.scale == pytest.approx(scale, abs=0.2)


def test_calibration_belongs_to_the_engine_and_only_moves_when_asked() -> None:
    for on in (False, True):
        state = observe(Auto(calibration=on, expected=EXPECTED), PolicyState(), nodes=3, accepted=0)
        assert (state.engine.calibration != Calibration()) is on


def test_no_costs_is_an_error() -> None:
    with pytest.raises(CostError, match="auto needs a cost profile"):
        Auto().wants_draft(PolicyState(), None)
    outcome = RoundOutcome(RoundRecord(1, 1, False, 10, 0), TREE.prefixes[0], np.zeros(1, int), None)
    with pytest.raises(CostError, match="needs the costs of the round"):
        Auto().observe(PolicyState(), outcome)
