"""Who plays a recorded run: a policy as the engine drives it, or a fixed shape filled with each round's scores."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core import DraftTree
from ..cost.profile import CostProfile
from ..draft.gate import Gate
from ..errors import UsageError
from ..policy import Policy, PolicyState, RoundCosts, RoundOutcome
from ..tree.follow import follow
from ..tree.grow import root_tree
from .format import Trace
from .grown import GrownTrees, Nursery
from .shapes import Shape

MEASURED = "measured"
"""The curve as measured: what every arm is priced by."""


class Played(NamedTuple):
    """One round under an arm."""

    tree: DraftTree
    path: np.ndarray
    drafted: bool
    costs: RoundCosts | None = None
    """Those by which the policy chose and learns."""
    passes: bool = True
    """False where a union left its costly part out."""


class Player(Protocol):
    """Plays one arm round by round."""

    curve: str
    max_nodes: int

    def start(self, fresh_state: bool) -> None:
        """A request begins."""

    def play(self, round_index: int, costs: RoundCosts | None, last_nodes: int) -> Played:
        """Choose a tree and follow the text through it; `last_nodes` were verified in the round before."""

    def learn(self, outcome: RoundOutcome) -> None:
        """The round is over."""


class PolicyPlayer:
    """A policy as the engine drives it: wants_draft, grow, choose, observe."""

    def __init__(self, nursery: Nursery, policy: Policy, profile: CostProfile | None) -> None:
        if policy.needs_costs and profile is None:
            raise UsageError(f"policy {policy.name} chooses by cost: a profile is needed")
        self._trace = nursery.trace
        self._policy = policy
        self._own = not self._trace.meta.every_position and made_by(self._trace, policy)
        self._grown = nursery.get(policy.candidates, policy.max_nodes)
        self._union = None
        if nursery.trace.is_union and policy.needs_costs:
            cheap = nursery.cheap.get(policy.candidates, policy.max_nodes)
            self._union = _Union(cheap, self._trace.rounds.depth if self._own else None)
        self._state = PolicyState()
        self.max_nodes = nursery.bound(policy.candidates, policy.max_nodes)
        self.curve = policy.curve

    def start(self, fresh_state: bool) -> None:
        """Forget the last request, and with `fresh_state` what the engine half of the state has learned."""
        self._state = PolicyState(None, None if fresh_state else self._state.engine)

    def play(self, round_index: int, costs: RoundCosts | None, last_nodes: int) -> Played:
        """One round, from what was recorded at its position."""
        policy = self._policy
        drafts = policy.drafts and self._grown.max_depth[round_index] > 0
        if not drafts or not policy.wants_draft(self._state, costs):
            pending = int(self._trace.rounds.pending[round_index])
            return Played(root_tree(pending), np.zeros(1, np.int64), False, costs)
        grown, passes = self._grown[round_index], True
        if self._union is not None and costs is not None:
            passes = self._union.asks(round_index, costs.draft_share(last_nodes))
            if not passes:
                grown = self._union.cheap[round_index]
            if not grown.tree.num_nodes:
                self._union.learn(round_index, 0, passes)
                return Played(grown.tree, grown.path, False, costs, passes)
            costs = costs if passes else costs.without_draft()
        available = min(len(grown.gains), self.max_nodes)
        gains = grown.gains[:available]
        num_nodes = policy.choose(gains, None if costs is None else costs.round_s, 1, self._state)
        path = grown.path[: int(grown.accepted[num_nodes]) + 1]
        if self._own and num_nodes == self._trace.rounds.num_nodes[round_index]:
            # Past a stop the text says nothing, the recorded path does.
            path = np.concatenate(([0], self._trace.accepted_path(round_index)))
        if self._union is not None:
            self._union.learn(round_index, len(path) - 1, passes)
        return Played(grown.tree.prefix(num_nodes), path, True, costs, passes)

    def learn(self, outcome: RoundOutcome) -> None:
        """Let the policy observe the round."""
        self._state = self._policy.observe(self._state, outcome)


class _Union:
    """A union's gate as the engine drives it. A policy's own trace says itself where the costly part was asked."""

    def __init__(self, cheap: GrownTrees, scored: np.ndarray | None) -> None:
        self.cheap = cheap
        self._scored = scored
        self._gate = Gate()

    def asks(self, round_index: int, share: float) -> bool:
        """Whether the costly part was asked, or would have been."""
        if self._scored is not None:
            return bool(self._scored[round_index])
        return self._gate.asks([self._promised(round_index)], share)

    def learn(self, round_index: int, accepted: int, passes: bool) -> None:
        """A round has accepted so many drafts."""
        cheap = min(int(self.cheap[round_index].accepted[-1]), accepted)
        self._gate.learn(self._promised(round_index), cheap, accepted - cheap if passes else None)

    def _promised(self, round_index: int) -> float:
        return float(self.cheap[round_index].gains.sum())


class ShapePlayer:
    """A fixed shape, filled with each round's scores."""

    curve = MEASURED

    def __init__(self, trace: Trace, shape: Shape) -> None:
        width = trace.rounds.logp.shape[2]
        if shape.candidates > width:
            raise UsageError(f"shape {shape.name} reads {shape.candidates} candidates, the trace keeps {width}")
        self._trace, self._shape = trace, shape
        self._max_depth = trace.max_depth()
        self.max_nodes = shape.num_nodes

    def start(self, fresh_state: bool) -> None:
        """A shape remembers nothing."""

    def play(self, round_index: int, costs: RoundCosts | None, last_nodes: int) -> Played:
        """The shape's tree and how far the text follows it."""
        rounds = self._trace.rounds
        depth = int(self._max_depth[round_index])
        pending = int(rounds.pending[round_index])
        tree = self._shape.tree(rounds.logp[round_index], rounds.ids[round_index], pending, depth)
        return Played(tree, follow(tree, self._trace.realised(round_index)).path, depth > 0, costs)

    def learn(self, outcome: RoundOutcome) -> None:
        """A shape learns nothing."""


def policy_options(policy: Policy) -> dict[str, Any]:
    """The options of a policy as JSON values: what a trace keeps and a replay compares.

    Constants that a policy took from a cost profile (fields marked as no option) are left out.
    """
    chosen = [item.name for item in fields(policy) if item.metadata.get("option", True)]  # type: ignore[arg-type]
    options: dict[str, Any] = json.loads(json.dumps({name: getattr(policy, name) for name in chosen}))
    return options


def made_by(trace: Trace, arm: Policy | Shape) -> bool:
    """Whether `arm`, with the same options, chose the rounds of the trace."""
    if isinstance(arm, Shape) or arm.name != trace.meta.policy:
        return False
    return bool(policy_options(arm) == json.loads(json.dumps(trace.meta.options)))
