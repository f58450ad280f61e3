"""The greedy stop of CaDDTree (arXiv 2606.01813)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..cost.fit import is_convex
from ..errors import CostError
from .base import NOBODY, Outside, PolicyState, RoundCosts, RoundOutcome, SharedRound
from .deploy import Deployment
from .options import CANDIDATES, LARGEST_TREE, settle
from .rules import check_nodes, expected_accepted, first_loss, need_costs


@dataclass(frozen=True, slots=True)
class CaddTree:
    """Add nodes while each raises (1 + Phi(n)) / (C_draft + C_verify(n + 1; L)); the first that does not is left out.

    With sorted gains and a convex cost the quotient is unimodal, so the first loss is the maximum: the cost is the
    convex regression, and is checked. Differs from the public code: n nodes are charged n + 1 rows (it reads the
    latency of n), and K is 16 rather than the budget.
    """

    candidates: int = field(default=16, metadata=CANDIDATES)
    """K, candidates kept per depth."""
    max_nodes: int = field(default=64, metadata=LARGEST_TREE)
    """Most nodes of one tree."""

    name: ClassVar[str] = "caddtree"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    curve: ClassVar[str] = "convex"

    def __post_init__(self) -> None:
        settle(self)
        check_nodes(self.candidates, self.max_nodes)

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Always."""
        return True

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return the n before the first loss; raises CostError when the costs are not convex."""
        return self._stop(expected_accepted(gains, self.max_nodes), round_cost_s, base_tokens)

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
        """The same stop over the merged gains (CAST, Proposition 3, with the whole curve for the slope)."""
        phi = expected_accepted(gains, shared.most_steps(self.max_nodes))
        return self._stop(phi, round_cost_s, shared.base_tokens, shared.rows)

    def pick_width(self, deployment: Deployment) -> int:
        """The width before the first that does not raise the ratio."""
        return first_loss(deployment.phi, deployment.cost_s, 1.0)

    def _stop(
        self, phi: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, rows: np.ndarray | None = None
    ) -> int:
        cost_s = need_costs(self.name, round_cost_s, len(phi))
        if not is_convex(cost_s, rows=None if rows is None else rows[: len(phi)]):
            raise CostError("policy caddtree: the costs of a round are not convex in rows, expected the convex fit")
        return first_loss(phi, cost_s, base_tokens)
