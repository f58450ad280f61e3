"""How many nodes each request of a round gets: fixed policies first, then one allocation for all cost-aware ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

import numpy as np

from ..core import MAX_NODES
from ..errors import UsageError
from .base import Outside, Policy, PolicyState, RoundCosts, SharedPolicy, SharedRound

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
    groups = _groups(members, default, sharing)
    base = _Base(len(members) + plain_requests)
    for at, member in enumerate(members):
        if any(at in indices for _, indices in groups):
            continue
        cost_s = costs(member.policy, base.rows).round_s if member.policy.needs_costs and costs is not None else None
        tokens = base.tokens(member.policy, member.state)
        counts[at] = member.policy.choose(member.gains, cost_s, tokens, member.state)
        base.taken.append(member.gains[: counts[at]])
    for policy, indices in groups:
        group = [members[at] for at in indices]
        chosen = _share(policy, group, costs, sharing, base)
        for at, count in zip(indices, chosen, strict=True):
            counts[at] = count
            base.taken.append(members[at].gains[:count])
    return counts


def draft_wishes(
    requests: Sequence[tuple[Policy, PolicyState]],
    costs: Callable[[Policy, int], RoundCosts] | None,
    *,
    default: Policy | None = None,
    plain_requests: int = 0,
) -> list[bool]:
    """Return for each (policy, state) whether it wants a draft this round.

    Requests that share decide together, on their merged state: one pass serves them all, and its seconds are also
    those of every other request of the round, `plain_requests` more of which are not among `requests`. One that is
    alone in the round decides by itself.
    """
    sharers = [at for at, (policy, _) in enumerate(requests) if policy.shares]
    outside = len(requests) - len(sharers) + plain_requests
    if len(sharers) == 1 and not outside:
        sharers = []
    wishes = [
        policy.wants_draft(state, costs(policy, 0) if policy.needs_costs and costs is not None else None)
        for at, (policy, state) in enumerate(requests)
        if at not in sharers
    ]
    if sharers:
        leader = _leader(default, requests[sharers[0]][0])
        # What the others will draft is not known yet: each commits at least one token.
        merged = leader.merge([requests[at][1] for at in sharers], Outside(outside, float(outside)))
        together = leader.wants_draft(merged, costs(leader, 0) if costs is not None else None)
        for at in sharers:
            wishes.insert(at, together)
    return wishes


@dataclass(slots=True)
class _Base:
    """What the round holds before a policy chooses. Mutable: `taken` grows."""

    requests: int
    """All of the round."""
    taken: list[np.ndarray] = field(default_factory=list)
    """Gains of the nodes that were given out, by request."""

    @property
    def rows(self) -> int:
        """Rows of those nodes."""
        return sum(len(gains) for gains in self.taken)

    def tokens(self, policy: Policy, state: PolicyState) -> float:
        """What the round commits without more nodes, as `policy` expects it."""
        expected = policy.expected_gains if isinstance(policy, SharedPolicy) else _as_scored
        return self.requests + sum(float(expected(gains, state).sum()) for gains in self.taken)


def _as_scored(gains: np.ndarray, state: PolicyState) -> np.ndarray:
    return gains


def _groups(
    members: Sequence[Member], default: Policy | None, sharing: Sharing
) -> list[tuple[SharedPolicy, list[int]]]:
    """Members that choose together, by policy: first those that only join a shared round, then the cost-aware."""
    joining: dict[SharedPolicy, list[int]] = {}
    sharers: list[int] = []
    for at, member in enumerate(members):
        if member.policy.shares:
            sharers.append(at)
        elif sharing.share == "shared" and len(members) > 1 and _can_join(member.policy):
            joining.setdefault(member.policy, []).append(at)
    groups = [(policy, indices) for policy, indices in joining.items() if len(indices) > 1]
    if sharers:
        groups.append((_leader(default, members[sharers[0]].policy), sharers))
    return groups


def _can_join(policy: Policy) -> TypeGuard[SharedPolicy]:
    """As isinstance would say, which takes longer than all the rest of an allocation: it is asked every round."""
    return hasattr(policy, "choose_shared")


def _leader(default: Policy | None, first: Policy) -> SharedPolicy:
    """The policy that serves all sharers: the engine's own, when it shares, or else the first of theirs."""
    leader = default if default is not None and default.shares else first
    if not isinstance(leader, SharedPolicy):
        raise UsageError(f"policy {leader.name} shares a round: expected merge, expected_gains and choose_shared")
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
    # Without the group's own requests and what they get: the rest of the round shares its seconds.
    outside = base.requests - len(group)
    states = [member.state for member in group]
    state = policy.merge(states)
    others = Outside(outside, base.tokens(policy, state) - len(group))
    state = policy.merge(states, others)
    forced = [min(sharing.min_nodes, len(member.gains)) for member in group]
    gains = [policy.expected_gains(member.gains, state) for member in group]
    rests = [own[count:] for own, count in zip(gains, forced, strict=True)]
    tokens = base.tokens(policy, state) + sum(float(own[:n].sum()) for own, n in zip(gains, forced, strict=True))
    round_s = costs(policy, base.rows + sum(forced)).round_s
    shared = SharedRound(len(group), tokens, others)
    divide = _divide_shared if sharing.share == "shared" else _divide_uniform
    more = divide(rests, round_s, shared, partial(_pick, policy, state))
    return [first + count for first, count in zip(forced, more, strict=True)]


_Pick = Callable[[np.ndarray, np.ndarray, SharedRound], int]


def _pick(policy: SharedPolicy, state: PolicyState, gains: np.ndarray, cost_s: np.ndarray, shared: SharedRound) -> int:
    return policy.choose_shared(gains, cost_s, state, shared)


def _divide_shared(rests: Sequence[np.ndarray], round_s: np.ndarray, shared: SharedRound, pick: _Pick) -> list[int]:
    """Global best-first: the merged gains in descending order, ties to the earlier request."""
    owner = np.repeat(np.arange(len(rests)), [len(rest) for rest in rests])
    merged = np.concatenate(rests)
    order = np.argsort(-merged, kind="stable")[: len(round_s) - 1]
    total = pick(merged[order], round_s, shared)
    counts: list[int] = np.bincount(owner[order[:total]], minlength=len(rests)).tolist()
    return counts


def _divide_uniform(rests: Sequence[np.ndarray], round_s: np.ndarray, shared: SharedRound, pick: _Pick) -> list[int]:
    """The same n for each, as far as it has them: gains of equal order are summed, a step costs a row for each."""
    lengths = np.array([len(rest) for rest in rests])
    rows = np.minimum(lengths, np.arange(lengths.max() + 1)[:, None]).sum(axis=1)  # (widest + 1,)
    rows = rows[rows < len(round_s)]
    summed = np.zeros(len(rows) - 1)
    for rest in rests:
        count = min(len(rest), len(summed))
        summed[:count] += rest[:count]
    width = pick(summed, round_s[rows], replace(shared, rows=rows))
    return [min(width, len(rest)) for rest in rests]
