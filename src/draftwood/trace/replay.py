"""Any policy, width or fixed shape on a recorded run, without a model.

A trace that drafted at every position of the text answers for every policy exactly: a policy's round at position t
sees the scores drafted there, commits the longest path of its tree that the text follows plus the target's token, and
goes on at the position behind. A policy's own trace holds only the rounds that this policy visited. Replayed under
it, that is the recorded run again; for another policy the visited positions are somebody else's, so means over them
are biased, and the result says so.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core import DraftTree, RoundRecord
from ..cost.profile import CostProfile
from ..cost.rounds import UNCORRECTED, LiveFactors
from ..errors import TraceError, UsageError
from ..policy import Policy, PolicyState, RoundCosts, RoundOutcome
from ..tree.grow import root_tree
from .format import Trace
from .grown import Nursery, follow
from .shapes import Shape

MEASURED = "measured"
BIAS = (
    "these rounds start where policy {made} arrived, not where {arm} would have: mean committed length and speed are "
    "biased; record with --every-position for an exact replay"
)


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """One request's rounds; the lists run in parallel."""

    committed: list[int]
    rows: list[int]
    drafted: list[bool]
    predicted_s: list[float]
    """Under the profile; empty without one."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a policy would have done on a trace."""

    arm: str
    requests: tuple[RequestReplay, ...]
    biased: bool
    note: str
    """Why it is biased; empty otherwise."""

    @property
    def num_rounds(self) -> int:
        """Rounds of all requests."""
        return sum(len(item.committed) for item in self.requests)

    @property
    def tokens(self) -> int:
        """Tokens committed; on an unbiased replay the output tokens minus one per request."""
        return sum(sum(item.committed) for item in self.requests)

    @property
    def predicted_s(self) -> float | None:
        """Seconds of all rounds under the profile; None without one."""
        if self.num_rounds and not any(item.predicted_s for item in self.requests):
            return None
        return float(sum(sum(item.predicted_s) for item in self.requests))

    @property
    def tokens_per_s(self) -> float | None:
        """Committed tokens over predicted seconds; None without a profile or without rounds."""
        seconds = self.predicted_s
        return self.tokens / seconds if seconds else None

    @property
    def mean_committed(self) -> float | None:
        """Mean committed length of the rounds; None without rounds."""
        return self.tokens / self.num_rounds if self.num_rounds else None

    @property
    def mean_rows(self) -> float | None:
        """Mean rows verified, the root counted; None without rounds."""
        rows = self.rows
        return statistics.fmean(rows) if rows else None

    @property
    def sd_rows(self) -> float | None:
        """Standard deviation of the rows over rounds; None without rounds."""
        rows = self.rows
        return statistics.pstdev(rows) if rows else None

    @property
    def skipped_rounds(self) -> int:
        """Rounds that drafted nothing."""
        return sum(item.drafted.count(False) for item in self.requests)

    @property
    def rows(self) -> list[int]:
        """Rows verified, round by round."""
        return [rows for item in self.requests for rows in item.rows]

    def to_json(self) -> dict[str, Any]:
        """Totals, ready for JSON; absent values are None."""
        names = (
            "arm", "num_rounds", "tokens", "predicted_s", "tokens_per_s", "mean_committed", "mean_rows", "sd_rows",
            "skipped_rounds", "biased", "note",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


class _Played(NamedTuple):
    """One round under an arm."""

    tree: DraftTree
    path: np.ndarray
    drafted: bool


def replay(
    trace: Trace,
    arm: Policy | Shape,
    profile: CostProfile | None = None,
    *,
    nursery: Nursery | None = None,
    fresh_state: bool = False,
) -> ReplayResult:
    """Replay `arm`, a policy or a fixed shape, over every request of `trace`.

    `profile` prices the rounds, by its measured curve for every arm, and is what cost-aware policies choose by; a
    policy that takes constants from a profile must have them (`with_profile`). Cost factors that the trace recorded
    correct the costs. `nursery` of the same trace, passed from call to call, saves growing trees again. The engine
    half of a policy's state is carried from request to request, as an engine that serves them one after the other
    does, or starts anew for each with `fresh_state`.

    Raises `UsageError` for a cost-aware policy without a profile, `TraceError` for scores that cannot be grown.
    """
    nursery = nursery or Nursery(trace)
    player: _Player = _ShapePlayer(trace, arm) if isinstance(arm, Shape) else _PolicyPlayer(nursery, arm, profile)
    prices = None if profile is None else _Prices(trace, profile, player.max_nodes)
    requests = []
    for request in range(trace.num_requests):
        player.start(fresh_state)
        requests.append(_replay_request(trace, request, player, prices))
    biased = not trace.meta.every_position and not _made_by(trace, arm)
    note = BIAS.format(made=trace.meta.policy, arm=arm.name) if biased else ""
    return ReplayResult(arm.name, tuple(requests), biased, note)


def policy_options(policy: Policy) -> dict[str, Any]:
    """The options of a policy as JSON values: what a trace keeps and a replay compares.

    Constants that a policy took from a cost profile (fields marked as no option) are left out.
    """
    chosen = [item.name for item in fields(policy) if item.metadata.get("option", True)]  # type: ignore[arg-type]
    options: dict[str, Any] = json.loads(json.dumps({name: getattr(policy, name) for name in chosen}))
    return options


class _Player(Protocol):
    """Plays one arm round by round."""

    curve: str
    max_nodes: int

    def start(self, fresh_state: bool) -> None:
        """A request begins."""

    def play(self, round_index: int, costs: RoundCosts | None) -> _Played:
        """Choose a tree and follow the text through it."""

    def learn(self, outcome: RoundOutcome) -> None:
        """The round is over."""


class _PolicyPlayer:
    """A policy as the engine drives it: wants_draft, grow, choose, observe."""

    def __init__(self, nursery: Nursery, policy: Policy, profile: CostProfile | None) -> None:
        if policy.needs_costs and profile is None:
            raise UsageError(f"policy {policy.name} chooses by cost: a profile is needed")
        self._trace = nursery.trace
        self._policy = policy
        self._own = not self._trace.meta.every_position and _made_by(self._trace, policy)
        self._grown = nursery.get(policy.candidates, policy.max_nodes)
        self._state = PolicyState()
        self.max_nodes = nursery.bound(policy.candidates, policy.max_nodes)
        self.curve = policy.curve

    def start(self, fresh_state: bool) -> None:
        self._state = PolicyState(None, None if fresh_state else self._state.engine)

    def play(self, round_index: int, costs: RoundCosts | None) -> _Played:
        policy = self._policy
        drafts = policy.drafts and self._grown.max_depth[round_index] > 0
        if not drafts or not policy.wants_draft(self._state, costs):
            return _Played(root_tree(int(self._trace.rounds.pending[round_index])), np.zeros(1, np.int64), False)
        grown = self._grown[round_index]
        available = min(len(grown.gains), self.max_nodes)
        gains = grown.gains[:available]
        num_nodes = policy.choose(gains, None if costs is None else costs.round_s, 1, self._state)
        path = grown.path[: int(grown.accepted[num_nodes]) + 1]
        if self._own and num_nodes == self._trace.rounds.num_nodes[round_index]:
            # Past a stop the text says nothing, the recorded path does.
            path = np.concatenate(([0], self._trace.accepted_path(round_index)))
        return _Played(grown.tree.prefix(num_nodes), path, True)

    def learn(self, outcome: RoundOutcome) -> None:
        self._state = self._policy.observe(self._state, outcome)


class _ShapePlayer:
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

    def play(self, round_index: int, costs: RoundCosts | None) -> _Played:
        rounds = self._trace.rounds
        depth = int(self._max_depth[round_index])
        pending = int(rounds.pending[round_index])
        tree = self._shape.tree(rounds.logp[round_index], rounds.ids[round_index], pending, depth)
        return _Played(tree, follow(tree, self._trace.realised(round_index)).path, depth > 0)

    def learn(self, outcome: RoundOutcome) -> None:
        """A shape learns nothing."""


def _replay_request(trace: Trace, request: int, player: _Player, prices: _Prices | None) -> RequestReplay:
    """Walk one request. A round's index is its position in an every-position trace, else the next one recorded."""
    rounds = trace.rounds_of(request)
    last = len(trace.output(request)) - 1
    result = RequestReplay([], [], [], [])
    step = 0
    while step < len(rounds):
        index = rounds[step]
        position, context = int(trace.rounds.position[index]), int(trace.rounds.context[index])
        costs = None if prices is None else prices.of(index, player.curve)
        played = player.play(index, costs)
        committed = min(len(played.path), last - position)
        predicted_s = None
        if prices is not None:
            # Every arm is priced by the curve as measured, whatever curve it chose by.
            priced = prices.of(index, MEASURED)
            predicted_s = float(priced.round_s[played.tree.num_nodes]) if played.drafted else priced.plain_s
            result.predicted_s.append(predicted_s)
        record = RoundRecord(
            played.tree.num_rows, committed, played.drafted, context, len(played.path) - 1, predicted_s
        )
        player.learn(RoundOutcome(record, played.tree, played.path, costs))
        result.committed.append(committed)
        result.rows.append(record.rows)
        result.drafted.append(played.drafted)
        step += committed if trace.meta.every_position else 1
    return result


class _Prices:
    """The profile's costs of a trace's rounds; those of one context, curve and correction are computed once."""

    def __init__(self, trace: Trace, profile: CostProfile, max_nodes: int) -> None:
        self._trace, self._profile, self._max_nodes = trace, profile, max_nodes
        self._names = trace.meta.factor_names
        if not set(self._names) <= {"base", "slope", "draft"}:
            raise TraceError(f"cost factors {', '.join(self._names)}: expected base, slope, draft")
        self._known: dict[tuple[int, str, LiveFactors], RoundCosts] = {}

    def of(self, round_index: int, curve: str) -> RoundCosts:
        """Costs of a lone request's round."""
        context = int(self._trace.rounds.context[round_index])
        live = UNCORRECTED
        if self._names:
            factors = self._trace.rounds.factors[round_index].tolist()
            live = LiveFactors(**dict(zip(self._names, factors, strict=True)))
        key = (context, curve, live)
        found = self._known.get(key)
        if found is None:
            found = self._profile.round_cost(1, context, max_nodes=self._max_nodes, curve=curve, live=live)
            self._known[key] = found
        return found


def _made_by(trace: Trace, arm: Policy | Shape) -> bool:
    if isinstance(arm, Shape) or arm.name != trace.meta.policy:
        return False
    return bool(policy_options(arm) == json.loads(json.dumps(trace.meta.options)))
