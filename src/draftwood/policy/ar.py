"""Plain decoding: the baseline of every comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .base import PolicyState, RoundCosts, RoundOutcome


@dataclass(frozen=True, slots=True)
class Ar:
    """Verifies the pending token alone and never drafts; the only policy that runs without taps."""

    name: ClassVar[str] = "ar"
    drafts: ClassVar[bool] = False
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    @property
    def candidates(self) -> int:
        """One, never read."""
        return 1

    @property
    def max_nodes(self) -> int:
        """Zero: the root alone is verified."""
        return 0

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Never."""
        return False

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return 0."""
        return 0

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state
