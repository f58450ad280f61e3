"""The chain of DFlash: the best candidate of every depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core import MAX_NODES
from .base import PolicyState, RoundCosts, RoundOutcome


@dataclass(frozen=True, slots=True)
class Chain:
    """K = 1 and n = D: every depth contributes its best candidate (DFlash)."""

    name: ClassVar[str] = "chain"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    @property
    def candidates(self) -> int:
        """One."""
        return 1

    @property
    def max_nodes(self) -> int:
        """As deep as the drafter scores; the tree is bounded by D."""
        return MAX_NODES

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Always."""
        return True

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return D, the length of the chain."""
        return len(gains)

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state
