"""Any policy, width or fixed shape on a recorded run, without a model.

A trace that drafted at every position of the text answers for every policy exactly: a policy's round at position t
sees the scores drafted there, commits the longest path of its tree that the text follows plus the target's token, and
goes on at the position behind. A policy's own trace holds only the rounds that this policy visited. Replayed under
it, that is the recorded run again; for another policy the visited positions are somebody else's, so means over them
are biased, and the result says so.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from ..core import RoundRecord
from ..cost.profile import CostProfile
from ..cost.rounds import UNCORRECTED, LiveFactors
from ..errors import TraceError
from ..policy import Policy, RoundCosts, RoundOutcome
from .format import Trace
from .grown import Nursery
from .players import MEASURED, Player, PolicyPlayer, ShapePlayer, made_by
from .shapes import Shape

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
    player: Player = ShapePlayer(trace, arm) if isinstance(arm, Shape) else PolicyPlayer(nursery, arm, profile)
    prices = None if profile is None else _Prices(trace, profile, player.max_nodes)
    requests = []
    for request in range(trace.num_requests):
        player.start(fresh_state)
        requests.append(_replay_request(trace, request, player, prices))
    biased = not trace.meta.every_position and not made_by(trace, arm)
    note = BIAS.format(made=trace.meta.policy, arm=arm.name) if biased else ""
    return ReplayResult(arm.name, tuple(requests), biased, note)


def _replay_request(trace: Trace, request: int, player: Player, prices: _Prices | None) -> RequestReplay:
    """Walk one request. A round's index is its position in an every-position trace, else the next one recorded."""
    rounds = trace.rounds_of(request)
    last = len(trace.output(request)) - 1
    result = RequestReplay([], [], [], [])
    step = 0
    while step < len(rounds):
        index = rounds[step]
        position, context = int(trace.rounds.position[index]), int(trace.rounds.context[index])
        costs = None if prices is None else prices.of(index, player.curve)
        played = player.play(index, costs, result.rows[-1] - 1 if result.rows else 0)
        committed = min(len(played.path), last - position)
        predicted_s = None
        if prices is not None:
            # Every arm is priced by the curve as measured, whatever curve it chose by.
            priced = prices.of(index, MEASURED)
            priced = priced if played.passes else priced.without_draft()
            predicted_s = float(priced.round_s[played.tree.num_nodes]) if played.drafted else priced.plain_s
            result.predicted_s.append(predicted_s)
        record = RoundRecord(
            played.tree.num_rows, committed, played.drafted, context, len(played.path) - 1, predicted_s
        )
        player.learn(RoundOutcome(record, played.tree, played.path, played.costs))
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
