"""The best expected ratio of tokens to seconds of this very round, whatever the shape of the cost curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .base import NOBODY, Outside, PolicyState, RoundCosts, RoundOutcome, SharedRound
from .deploy import Deployment
from .options import CANDIDATES, LARGEST_TREE, settle
from .rules import best_ratio, check_nodes, expected_accepted, need_costs


@dataclass(frozen=True, slots=True)
class Ratio:
    """n = argmax over all n of (1 + Phi(n)) / C(n + 1), the least n of equals.

    The objective is that of CaDDTree (arXiv 2606.01813); scanning every n instead of stopping at the first loss needs
    no convexity, so steps of the measured curve are seen.
    """

    candidates: int = field(default=16, metadata=CANDIDATES)
    """K, candidates kept per depth."""
    max_nodes: int = field(default=64, metadata=LARGEST_TREE)
    """Most nodes of one tree."""

    name: ClassVar[str] = "ratio"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    curve: ClassVar[str] = "measured"

    def __post_init__(self) -> None:
        settle(self)
        check_nodes(self.candidates, self.max_nodes)

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Always: the ratio is known only after drafting."""
        return True

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return the n of the best ratio."""
        phi = expected_accepted(gains, self.max_nodes)
        return best_ratio(phi, need_costs(self.name, round_cost_s, len(phi)), base_tokens).at

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state

    def merge(self, states: Sequence[PolicyState], outside: Outside = NOBODY) -> PolicyState:
        """Stateless."""
        return PolicyState()

    def expected_gains(self, gains: np.ndarray, state: PolicyState) -> np.ndarray:
        """The scores as they are."""
        return gains

    def choose_shared(
        self, gains: np.ndarray, round_cost_s: np.ndarray, state: PolicyState, shared: SharedRound
    ) -> int:
        """(R + Phi) / C over the merged gains; at most `max_nodes` for each request."""
        phi = expected_accepted(gains, shared.most_steps(self.max_nodes))
        return best_ratio(phi, need_costs(self.name, round_cost_s, len(phi)), shared.base_tokens).at

    def pick_width(self, deployment: Deployment) -> int:
        """The width of the best ratio."""
        return best_ratio(deployment.phi, deployment.cost_s, 1.0).at
