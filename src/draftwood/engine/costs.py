"""What the engine's rounds are predicted to cost, and how far the machine is from its profile right now."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..cost.live import LiveCosts
from ..cost.profile import CostProfile
from ..cost.rounds import UNCORRECTED, LiveFactors, RoundCosts
from ..policy import Policy


@dataclass(frozen=True, slots=True)
class Load:
    """What a step carries whatever the policies choose."""

    base_rows: int
    """Roots and prefill rows."""
    context: int
    """L: mean committed context of the requests in a round."""
    requests: int
    """R, requests in a round (at least 1)."""
    has_prefill: bool
    drafts: bool = True
    """False where a union of drafters has left its costly part out of the round."""


@dataclass(slots=True)
class CostModel:
    """A cost profile with its live correction. Mutable: `learn` moves the correction."""

    profile: CostProfile
    live: LiveCosts | None = field(default_factory=LiveCosts)
    """None: the profile is taken as it is."""
    _known: tuple[object, RoundCosts] | None = None
    """The last costs asked for and what they were asked for: all requests of a round ask for the same."""

    @property
    def factors(self) -> LiveFactors:
        """The factors that predictions use now."""
        return UNCORRECTED if self.live is None else self.live.factors()

    def round_costs(self, load: Load, policy: Policy, *, extra_rows: int = 0) -> RoundCosts:
        """Costs of the coming round on the policy's curve, with `extra_rows` drafted nodes already in the pack.

        Together several requests may draw as many nodes as were measured, but no fewer than one of them could.
        """
        key = (load, policy.curve, policy.max_nodes, extra_rows, self.factors)
        if self._known is None or self._known[0] != key:
            self._known = (key, self._round_costs(load, policy, extra_rows))
        return self._known[1]

    def _round_costs(self, load: Load, policy: Policy, extra_rows: int) -> RoundCosts:
        base_rows = load.base_rows + extra_rows
        measured = int(self.profile.rows[-1]) - base_rows
        costs = self.profile.round_cost(
            base_rows,
            load.context,
            requests=load.requests,
            max_nodes=min(policy.max_nodes * load.requests, max(policy.max_nodes, measured)),
            curve=policy.curve,
            live=self.factors,
        )
        return costs if load.drafts else costs.without_draft()

    def predicted_s(self, load: Load, rows: int, drafted: int) -> float:
        """Seconds of a step that verifies `rows` rows and drafts for `drafted` requests, in the policies' clock."""
        costs = self.profile.round_cost(rows, load.context, requests=load.requests, max_nodes=0, live=self.factors)
        draft_s = self.profile.draft_cost_s(load.context, drafted) * self.factors.relative_draft if drafted else 0.0
        return costs.plain_s + draft_s

    def learn(self, load: Load, rows: int, drafted: int, *, draft_s: float, step_s: float) -> None:
        """Correct the profile by one measured step; steps with a prefill chunk teach nothing."""
        if self.live is None or load.has_prefill:
            return
        if drafted:
            self.live = self.live.observe_draft(self.profile.draft_cost_s(load.context, drafted), draft_s)
        single_s = self.profile.target_s(1, load.context, requests=load.requests)
        rows_s = self.profile.target_s(rows, load.context, requests=load.requests)
        self.live = self.live.observe_target(single_s, rows_s, step_s - draft_s)
