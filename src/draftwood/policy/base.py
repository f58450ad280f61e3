"""What a policy is: a pure rule from (gains, costs, state) to a number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from ..core import DraftTree, RoundRecord
from ..cost.profile import CostProfile
from ..cost.rounds import RoundCosts
from .deploy import Deployment

__all__ = [
    "Outside",
    "Policy",
    "PolicyState",
    "ProfilePolicy",
    "RoundCosts",
    "RoundOutcome",
    "SharedPolicy",
    "SharedRound",
    "WidthRule",
]


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy remembers; both halves are frozen values owned by the engine, None for stateless policies."""

    request: Any = None
    """Belongs to one request (its rate, its skipping)."""
    engine: Any = None
    """Shared by all requests of an engine (calibration, mean realised gain)."""


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """What `observe` learns about a finished round of one request."""

    record: RoundRecord
    tree: DraftTree
    """The tree that was verified (root only when nothing was drafted)."""
    path: np.ndarray
    """(accepted + 1,) int64 nodes of the accepted path, root first."""
    costs: RoundCosts | None
    """The costs under which the choice was made."""


class Policy(Protocol):
    """The contract; implementations are frozen dataclasses whose fields are the policy's options."""

    name: ClassVar[str]
    drafts: ClassVar[bool]
    """False only for `ar`: never drafts, needs no drafter and no taps."""
    needs_costs: ClassVar[bool]
    """True when `choose` reads `round_cost_s`."""
    shares: ClassVar[bool]
    """True when its requests join one shared allocation per round."""
    curve: ClassVar[str]
    """Which curve of the cost profile `choose` reads: "measured", "monotone" or "convex"."""

    @property
    def candidates(self) -> int:
        """K, candidates kept per depth."""
        ...

    @property
    def max_nodes(self) -> int:
        """Most nodes that `choose` can return."""
        ...

    def wants_draft(self, state: PolicyState, costs: RoundCosts | None) -> bool:
        """Decide before there are scores whether this round drafts at all."""
        ...

    def choose(self, gains: np.ndarray, round_cost_s: np.ndarray | None, base_tokens: float, state: PolicyState) -> int:
        """Return n, 0 <= n <= len(gains): how many nodes, in best-first order, are verified.

        `gains` (N,) float64 non-increasing; `round_cost_s` (>= N + 1,) seconds of the round with n nodes, drafting
        included; `base_tokens` committed without these nodes: 1 for one request, R for R requests, and what
        fixed trees in the same pack are expected to add.
        """
        ...

    def observe(self, state: PolicyState, outcome: RoundOutcome) -> PolicyState:
        """Return the state after a round."""
        ...


@runtime_checkable
class ProfilePolicy(Protocol):
    """A policy that takes constants from the cost profile before it serves."""

    def with_profile(self, profile: CostProfile) -> Policy:
        """Return this policy with its constants filled in; raises CostError when the profile lacks them."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """Requests of a round that take no part in a shared choice; its seconds are theirs as well."""

    requests: int = 0
    tokens: float = 0.0
    """Expected of them in this round."""


NOBODY = Outside()


@dataclass(frozen=True, slots=True, eq=False)
class SharedRound:
    """What a shared choice is about, beside gains and costs."""

    requests: int
    """R, requests that share."""
    base_tokens: float
    """Tokens of the whole round without the nodes to be chosen."""
    outside: Outside = NOBODY
    rows: np.ndarray | None = None
    """(N + 1,) rows that n more steps add, where a step is one node of each request; None: a step is one node."""

    def most_steps(self, max_nodes: int) -> int:
        """Steps allowed when a request may have `max_nodes` nodes."""
        return max_nodes * self.requests if self.rows is None else max_nodes


@runtime_checkable
class SharedPolicy(Policy, Protocol):
    """A policy that can allocate the nodes of several requests at once (CAST, Propositions 2 and 3)."""

    def merge(self, states: Sequence[PolicyState], outside: Outside = NOBODY) -> PolicyState:
        """Return the state of R requests seen as one: tokens add up, seconds are those of a round.

        The order of `states` does not matter, and states of other policies count as unknown.
        """
        ...

    def expected_gains(self, gains: np.ndarray, state: PolicyState) -> np.ndarray:
        """Map the scores (N,) of one request to what this policy expects of them, order kept."""
        ...

    def choose_shared(
        self, gains: np.ndarray, round_cost_s: np.ndarray, state: PolicyState, shared: SharedRound
    ) -> int:
        """Like `choose`, for steps of several requests and their expected gains (N,): how many steps are taken.

        `state` is that of `merge`; entry n of `round_cost_s` is the round after n steps.
        """
        ...


@runtime_checkable
class WidthRule(Protocol):
    """A policy that can pick one width from mean masses, as a deployment would have it."""

    def pick_width(self, deployment: Deployment) -> int:
        """Return the index into `deployment.widths`."""
        ...
