"""How many nodes each request of a round gets: fixed policies first, then one allocation for all cost-aware ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core import MAX_NODES
from ..errors import UsageError
from .base import Policy, PolicyState, RoundCosts, SharedPolicy

SHARES = ("shared", "uniform")


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One request of the round that may get drafted nodes."""

    policy: Policy
    gains: np.ndarray
    """(N,) float64 non-increasing, already cut at depth remaining_tokens - 1; empty when nothing was drafted."""
    state: PolicyState = field(default_factory=PolicyState)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How cost-aware requests divide a round."""

    share: str = "shared"
    """"shared": global best-first; "uniform": the same number for each."""
    min_nodes: int = 0
    """Nodes that each sharing request gets before the allocation, as far as it has them."""

    def __post_init__(self) -> None:
        if self.share not in SHARES:
            raise UsageError(f"share {self.share!r}: expected one of {', '.join(SHARES)}")
        if not 0 <= self.min_nodes <= MAX_NODES:
            raise UsageError(f"min_nodes {self.min_nodes}: expected 0 to {MAX_NODES}")


SHARED = Sharing()


def allocate(
    members: Sequence[Member],
    costs: Callable[[Policy, int], RoundCosts] | None,
    *,
    default: Policy | None = None,
    sharing: Sharing = SHARED,
    plain_requests: int = 0,
) -> list[int]:
    """Return n per member.

    `costs(policy, extra_rows)` gives the round's costs on the policy's curve with `extra_rows` drafted nodes already
    in the pack beside the base rows; None when no member needs costs. All members whose policy shares are served by
    `default` (the engine's policy, when it shares) or else by the first of them. `plain_requests` counts requests
    of the round that drafted nothing. One request alone gets what its policy chooses.
    Source: CAST, Propositions 2 and 3, with R + Phi for 1 + Phi.
    """
    counts = [0] * len(members)
    requests = len(members) + plain_requests
    groups = _groups(members, default, sharing)
    base_tokens, taken = float(requests), 0
    for at, member in enumerate(members):
        if any(at in indices for _, indices in groups):
            continue
        cost_s = costs(member.policy, taken).round_s if member.policy.needs_costs and costs is not None else None
        counts[at] = member.policy.choose(member.gains, cost_s, base_tokens, member.state)
        taken += counts[at]
        base_tokens += float(member.gains[: counts[at]].sum())
    for policy, indices in groups:
        chosen = _share(policy, [members[at] for at in indices], costs, sharing, _Base(base_tokens, taken))
        for at, count in zip(indices, chosen, strict=True):
            counts[at] = count
            taken += count
            base_tokens += float(members[at].gains[:count].sum())
    return counts


def draft_wishes(
    requests: Sequence[tuple[Policy, PolicyState]],
    costs: Callable[[Policy, int], RoundCosts] | None,
    *,
    default: Policy | None = None,
) -> list[bool]:
    """Return for each (policy, state) whether it wants a draft this round.

    Requests that share decide together, on their merged state: one pass serves them all. One alone decides by itself.
    """
    sharers = [at for at, (policy, _) in enumerate(requests) if policy.shares]
    if len(sharers) == 1:
        sharers = []
    wishes = [
        policy.wants_draft(state, costs(policy, 0) if policy.needs_costs and costs is not None else None)
        for at, (policy, state) in enumerate(requests)
        if at not in sharers
    ]
    if sharers:
        leader = _leader(default, requests[sharers[0]][0])
        merged = leader.merge([requests[at][1] for at in sharers])
        together = leader.wants_draft(merged, costs(leader, 0) if costs is not None else None)
        for at in sharers:
            wishes.insert(at, together)
    return wishes


@dataclass(frozen=True, slots=True)
class _Base:
    """What the round holds before a group chooses."""

    tokens: float
    rows: int


def _groups(
    members: Sequence[Member], default: Policy | None, sharing: Sharing
) -> list[tuple[SharedPolicy, list[int]]]:
    """Members that choose together, by policy: first those that only join a shared round, then the cost-aware."""
    joining: dict[SharedPolicy, list[int]] = {}
    sharers: list[int] = []
    for at, member in enumerate(members):
        if member.policy.shares:
            sharers.append(at)
        elif sharing.share == "shared" and len(members) > 1 and isinstance(member.policy, SharedPolicy):
            joining.setdefault(member.policy, []).append(at)
    groups = [(policy, indices) for policy, indices in joining.items() if len(indices) > 1]
    if sharers:
        groups.append((_leader(default, members[sharers[0]].policy), sharers))
    return groups


def _leader(default: Policy | None, first: Policy) -> SharedPolicy:
    """The policy that serves all sharers: the engine's own, when it shares, or else the first of theirs."""
    leader = default if default is not None and default.shares else first
    if not isinstance(leader, SharedPolicy):
        raise UsageError(f"policy {leader.name} shares a round: expected it to have merge and choose_shared")
    return leader


def _share(
    policy: SharedPolicy,
    group: Sequence[Member],
    costs: Callable[[Policy, int], RoundCosts] | None,
    sharing: Sharing,
    base: _Base,
) -> list[int]:
    if costs is None:
        raise UsageError(f"policy {policy.name} shares a round by its costs: expected a cost profile")
    forced = [min(sharing.min_nodes, len(member.gains)) for member in group]
    rests = [member.gains[count:] for member, count in zip(group, forced, strict=True)]
    tokens = base.tokens + sum(float(member.gains[:n].sum()) for member, n in zip(group, forced, strict=True))
    round_s = costs(policy, base.rows + sum(forced)).round_s
    state = policy.merge([member.state for member in group])
    divide = _divide_shared if sharing.share == "shared" else _divide_uniform

    def pick(gains: np.ndarray, cost_s: np.ndarray, requests: int) -> int:
        return policy.choose_shared(gains, cost_s, tokens, state, requests)

    return [first + more for first, more in zip(forced, divide(rests, round_s, pick), strict=True)]


def _divide_shared(
    rests: Sequence[np.ndarray], round_s: np.ndarray, pick: Callable[[np.ndarray, np.ndarray, int], int]
) -> list[int]:
    """Global best-first: the merged gains in descending order, ties to the earlier request."""
    owner = np.repeat(np.arange(len(rests)), [len(rest) for rest in rests])
    merged = np.concatenate(rests)
    order = np.argsort(-merged, kind="stable")[: len(round_s) - 1]
    total = pick(merged[order], round_s, len(rests))
    counts: list[int] = np.bincount(owner[order[:total]], minlength=len(rests)).tolist()
    return counts


def _divide_uniform(
    rests: Sequence[np.ndarray], round_s: np.ndarray, pick: Callable[[np.ndarray, np.ndarray, int], int]
) -> list[int]:
    """The same n for each: gains of equal order are summed, and a step costs one row per request."""
    requests = len(rests)
    widest = min(max(len(rest) for rest in rests), (len(round_s) - 1) // requests)
    summed = np.zeros(widest)
    for rest in rests:
        count = min(len(rest), widest)
        summed[:count] += rest[:count]
    width = pick(summed, round_s[: requests * widest + 1 : requests], 1)
    return [min(width, len(rest)) for rest in rests]
