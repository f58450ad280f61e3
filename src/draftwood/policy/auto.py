"""The default policy: a token is worth the seconds that it saves, and those follow from the current rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from ..cost.profile import CAST_CONTEXT, CostProfile
from ..errors import CostError, UsageError
from .base import NOBODY, Outside, PolicyState, RoundCosts, RoundOutcome, SharedRound
from .deploy import Deployment
from .options import CANDIDATES, INTERNAL, LARGEST_TREE, about, settle
from .rules import best_ratio, best_surplus, check_nodes, expected_accepted, need_costs
from .state import (
    ENGINE_DISCOUNT,
    RATE_DISCOUNT,
    START_INTERVAL,
    START_ROUNDS,
    AutoEngine,
    AutoRequest,
    Calibration,
    Payoff,
    Rate,
    Skipping,
    most_seen,
)

RATES = ("local", "mixed", "fixed")


class ExpectedRound(NamedTuple):
    """A round as the profile expects it."""

    accepted: float
    """Phi at the best width."""
    seconds: float
    """The whole round."""
    extra_s: float
    """C(n + 1) - C(1)."""
    plain_s: float
    """C_plain."""


@dataclass(frozen=True, slots=True)
class Auto:
    """n = argmax over all n of Phi(n) - rate * C(n + 1); 0 is allowed, and so is not drafting at all.

    Crossing a text in the least time is a renewal-reward problem: at the best attainable rate of tokens per second a
    node is worth verifying when its expected token exceeds rate times its seconds (Dinkelbach's form of the ratio).
    `rate` picks which rate: "local" is this request's own over its last rounds, "fixed" one number, "mixed" the mean
    of the local one and this round's own best (1 + Phi) / C.

    R requests in a round cross R texts at once: a second takes tokens from each of them, so its price is the sum of
    their rates. The surplus is linear, hence the same argument holds with the sums in place of the single numbers.
    """

    candidates: int = field(default=16, metadata=CANDIDATES)
    """K, candidates kept per depth."""
    max_nodes: int = field(default=64, metadata=LARGEST_TREE)
    """Most nodes of one tree."""
    rate: str = field(
        default="mixed", metadata=about("Price of a second (auto): local, mixed or fixed.", "RATE", choices=RATES)
    )
    """"local", "mixed" or "fixed"."""
    fixed_rate: float | None = field(default=None, metadata=about("Tokens per second of --rate fixed.", "R"))
    """Tokens per second of one request; R requests in a round make it R times that. None: the profile's own rate."""
    calibration: bool = field(default=False, metadata=about("Map scores to observed hit rates (auto)."))
    """Map scores to observed hit rates."""
    skipping: bool = field(default=True, metadata=about("Leave out drafting where it has not paid (auto)."))
    """May leave out drafting where it has not paid."""
    expected: ExpectedRound | None = field(default=None, metadata=INTERNAL)
    """The start of a request; None: its first drafted round."""
    shared_rates: tuple[tuple[int, float], ...] = field(default=(), metadata=INTERNAL)
    """(R, tokens per second) of the best round of R requests that are all alike, increasing R; the price under
    rate "fixed" without a number."""

    name: ClassVar[str] = "auto"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    curve: ClassVar[str] = "measured"

    def __post_init__(self) -> None:
        settle(self)
        check_nodes(self.candidates, self.max_nodes)
        if self.fixed_rate is not None and not (self.rate == "fixed" and 0 < self.fixed_rate < float("inf")):
            raise UsageError(f"fixed_rate {self.fixed_rate} with rate {self.rate!r}: expected > 0 and rate 'fixed'")

    def with_profile(self, profile: CostProfile) -> Auto:
        """Take the expected round from the profile's mean gains; without them the first round starts the rate."""
        if profile.mean_gains is None:
            return self
        phi = expected_accepted(profile.mean_gains, self.max_nodes)
        context = profile.nearest_context(CAST_CONTEXT)
        costs = profile.round_cost(1, context, max_nodes=len(phi) - 1, curve=self.curve)
        best = best_ratio(phi, costs.round_s, 1.0).at
        seconds = float(costs.round_s[best])
        extra_s = seconds - float(costs.round_s[0])
        expected = ExpectedRound(float(phi[best]), seconds, extra_s, costs.plain_s)
        rates = tuple(
            (count, self._shared_rate(profile, context, phi, count))
            for count in map(int, profile.requests)
            if count <= profile.rows[-1]
        )
        return replace(self, expected=expected, shared_rates=rates)

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Draft while the realised gain of drafted rounds exceeds its price at the current rate, or as a probe."""
        if costs is None:
            raise CostError("policy auto needs a cost profile: pass one with --profile, or measure it first")
        request = self._request(state)
        if not self.skipping or request is None:
            return True
        return self._pays(request, costs) or request.skipping.probe_due

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return the n of the largest surplus. The drafting cost is sunk here, but it is part of the rate."""
        phi = expected_accepted(self.expected_gains(gains, state), self.max_nodes)
        return self._best(phi, round_cost_s, base_tokens, state, 1)

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Update rate, payoff, probing and calibration.

        The round's seconds are `record.predicted_s` (of the whole round, drafting included) or, without it, the costs
        at the request's own number of nodes.
        """
        costs, record = outcome.costs, outcome.record
        if costs is None:
            raise CostError("policy auto needs the costs of the round that it observes: got none")
        engine = state.engine if state.engine is not None else AutoEngine()
        seconds = _round_seconds(outcome, costs)
        request = self._request(state)
        if not record.drafted:
            if request is None:
                return PolicyState(None, engine)
            rate = request.rate.add(record.committed, seconds)
            skipping = request.skipping.after_skip()
            return PolicyState(replace(request, rate=rate, skipping=skipping, plain_s=costs.plain_s), engine)
        extra_s = seconds - float(costs.round_s[0])
        if request is None:
            request = _first_request(outcome, engine, seconds, extra_s)
        engine_payoff = engine.payoff if engine.payoff is not None else request.payoff
        request = self._after_draft(request, outcome, seconds, extra_s)
        payoff = engine_payoff.add(record.accepted, extra_s, ENGINE_DISCOUNT)
        interval = max(1, request.skipping.interval)
        return PolicyState(request, AutoEngine(payoff, self._calibrated(engine, outcome), interval))

    def merge(self, states: Sequence[PolicyState], outside: Outside = NOBODY) -> PolicyState:
        """See R requests as one: accepted and committed tokens per round add up, seconds per round are averaged.

        Requests that have no state yet count like the mean of the others. Variances add up too: the drafts of one
        request say nothing about those of another. Of the engine's halves counts what has seen most.
        """
        engine = most_seen([state.engine for state in states if isinstance(state.engine, AutoEngine)])
        found = [self._request(PolicyState(state.request, engine)) for state in states]
        known = [request for request in found if request is not None]
        if not known:
            return PolicyState(None, engine)
        share = len(states) / len(known)
        rate = Rate(
            share * sum(item.rate.tokens / item.rate.weight for item in known),
            sum(item.rate.seconds / item.rate.weight for item in known) / len(known),
            1.0,
        )
        means = [item.payoff.weighing(1.0) for item in known]
        accepted = share * sum(item.accepted for item in means)
        variance = share * sum(item.variance for item in means)
        extra_s = sum(item.extra_s for item in means) / len(known)
        payoff = Payoff(accepted, variance + accepted * accepted, extra_s, 1.0)
        skipping = Skipping(max(item.skipping.skipped for item in known), min(item.skipping.interval for item in known))
        plain_s = sum(item.plain_s for item in known) / len(known)
        return PolicyState(AutoRequest(rate, payoff, plain_s, skipping, len(states), outside), engine)

    def expected_gains(self, gains: np.ndarray, state: PolicyState) -> np.ndarray:
        """The observed hit rates of these scores; the scores themselves without calibration."""
        if self.calibration and isinstance(state.engine, AutoEngine):
            return state.engine.calibration.apply(gains)
        return gains

    def choose_shared(
        self, gains: np.ndarray, round_cost_s: np.ndarray, state: PolicyState, shared: SharedRound
    ) -> int:
        """The same surplus over the steps of all requests; at most `max_nodes` for each request."""
        phi = expected_accepted(gains, shared.most_steps(self.max_nodes))
        requests = shared.requests + shared.outside.requests
        return self._best(phi, round_cost_s, shared.base_tokens, state, requests)

    def pick_width(self, deployment: Deployment) -> int:
        """The fixed point of rate and width on mean masses: no calibration, no skipping.

        The rate of the width chosen at a rate is never lower than that rate, so the iteration climbs and ends.
        """
        rate = 1.0 / deployment.plain_s
        while True:
            at = best_surplus(deployment.phi, deployment.cost_s, rate).at
            reached = float(deployment.rate[at])
            if reached <= rate:
                return at
            rate = reached

    def _shared_rate(self, profile: CostProfile, context: int, phi: np.ndarray, requests: int) -> float:
        """Tokens per second of `requests` requests with the gains behind `phi`, each at the best common width."""
        widest = min(len(phi) - 1, int(profile.rows[-1]) // requests - 1)
        costs = profile.round_cost(requests, context, requests=requests, max_nodes=requests * widest, curve=self.curve)
        return best_ratio(requests * phi[: widest + 1], costs.round_s[::requests], float(requests)).value

    def _best(
        self, phi: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState, requests: int
    ) -> int:
        cost_s = need_costs(self.name, round_cost_s, len(phi))
        return best_surplus(phi, cost_s, self._rate_for(phi, cost_s, base_tokens, state, requests)).at

    def _rate_for(
        self, phi: np.ndarray, cost_s: np.ndarray, base_tokens: float, state: PolicyState, requests: int
    ) -> float:
        """The price of a second in this round of `requests` requests, tokens."""
        request = self._request(state)
        if self.rate == "fixed":
            return self._fixed(requests)
        if self.rate == "local" and request is not None:
            return request.tokens_per_s
        own = best_ratio(phi, cost_s, base_tokens).value
        return own if request is None else 0.5 * (own + request.tokens_per_s)

    def _fixed(self, requests: int) -> float:
        """The price of a second of `requests` requests: between measured counts their rate apiece is linear."""
        if self.fixed_rate is not None:
            return requests * self.fixed_rate
        if self.expected is None:
            raise CostError("rate 'fixed' without fixed_rate: expected a profile with mean_gains")
        single = (1.0 + self.expected.accepted) / self.expected.seconds
        counts, rates = zip(*(self.shared_rates or ((1, single),)), strict=True)
        return requests * float(np.interp(requests, counts, np.divide(rates, counts)))

    def _request(self, state: PolicyState) -> AutoRequest | None:
        """The request's state, or its start from the profile and the engine's mean; None when nothing is known."""
        if isinstance(state.request, AutoRequest):
            return state.request
        if self.expected is None:
            return None
        expected = self.expected
        rate = Rate.start(1.0 + expected.accepted, expected.seconds)
        payoff = Payoff.start(expected.accepted, expected.extra_s)
        engine = state.engine if isinstance(state.engine, AutoEngine) else None
        # As patient as the last request was, within bounds: this one may be another kind of text.
        skipping = Skipping(0, min(engine.interval, START_INTERVAL)) if engine is not None else Skipping()
        return AutoRequest(rate, _engine_mean(engine, payoff), expected.plain_s, skipping)

    def _price(self, request: AutoRequest, costs: RoundCosts) -> float:
        """Tokens per second for the decision to draft, taken before there are scores."""
        if self.rate == "fixed":
            return self._fixed(request.requests + request.outside.requests)
        return request.floored_rate(costs.plain_s)

    def _pays(self, request: AutoRequest, costs: RoundCosts) -> bool:
        return request.payoff.surplus(self._price(request, costs), costs.draft_s) > 0.0

    def _after_draft(self, request: AutoRequest, outcome: RoundOutcome, seconds: float, extra_s: float) -> AutoRequest:
        costs, record = outcome.costs, outcome.record
        assert costs is not None
        price_s = extra_s + costs.draft_s
        paid = self._pays(request, costs) or record.accepted > self._price(request, costs) * price_s
        return AutoRequest(
            request.rate.add(record.committed, seconds),
            request.payoff.add(record.accepted, extra_s, RATE_DISCOUNT),
            costs.plain_s,
            request.skipping.after_draft(paid, price_s, costs.plain_s),
        )

    def _calibrated(self, engine: AutoEngine, outcome: RoundOutcome) -> Calibration:
        if not self.calibration or outcome.tree.num_nodes == 0:
            return engine.calibration
        hit = np.zeros(outcome.tree.num_rows)
        hit[outcome.path] = 1.0
        return engine.calibration.add(outcome.tree.gains, hit[1:])


def _round_seconds(outcome: RoundOutcome, costs: RoundCosts) -> float:
    """Predicted seconds of the whole round, drafting included when there was any."""
    if outcome.record.predicted_s is not None:
        return outcome.record.predicted_s
    return float(costs.round_s[outcome.tree.num_nodes]) if outcome.record.drafted else costs.plain_s


def _engine_mean(engine: AutoEngine | None, otherwise: Payoff) -> Payoff:
    return otherwise if engine is None or engine.payoff is None else engine.payoff.weighing(START_ROUNDS)


def _first_request(outcome: RoundOutcome, engine: AutoEngine, seconds: float, extra_s: float) -> AutoRequest:
    """A start from the drafter's own expectation in the first round, when the profile has no mean gains."""
    assert outcome.costs is not None
    accepted = float(outcome.tree.gains.sum())
    payoff = _engine_mean(engine, Payoff.start(accepted, extra_s))
    return AutoRequest(Rate.start(1.0 + accepted, seconds), payoff, outcome.costs.plain_s)
