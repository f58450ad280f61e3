"""The fixed node budget of DDTree (arXiv 2604.12989)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..core import MAX_NODES
from ..errors import UsageError
from .base import PolicyState, RoundCosts, RoundOutcome
from .options import about, settle

MAX_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class DdTree:
    """The `budget` likeliest prefixes, every round.

    DDTree, section 3; the public code keeps min(budget, V) candidates, here at most 64 unless `k` says otherwise.
    """

    budget: int = field(default=16, metadata=about("Nodes of every tree (ddtree), 0 to 1024.", "N"))
    """Nodes of every tree, or all that exist."""
    k: int | None = field(default=None, metadata=about("Candidates per depth of a tree.", "K", name="candidates"))
    """Candidates per depth; None: min(budget, 64)."""

    name: ClassVar[str] = "ddtree"
    drafts: ClassVar[bool] = True
    needs_costs: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    curve: ClassVar[str] = "measured"

    def __post_init__(self) -> None:
        settle(self)
        if not 0 <= self.budget <= MAX_NODES:
            raise UsageError(f"budget {self.budget}: expected 0 to {MAX_NODES}")
        if self.k is not None and not 1 <= self.k <= MAX_NODES:
            raise UsageError(f"candidates {self.k}: expected 1 to {MAX_NODES}")

    @property
    def candidates(self) -> int:
        """K."""
        return self.k if self.k is not None else max(1, min(self.budget, MAX_CANDIDATES))

    @property
    def max_nodes(self) -> int:
        """The budget."""
        return self.budget

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Whenever there is a budget to spend."""
        return self.budget > 0

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return the budget, or all nodes that exist."""
        return min(self.budget, len(gains))

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Stateless."""
        return state
