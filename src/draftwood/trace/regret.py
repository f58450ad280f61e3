"""How far trees fall short of what hindsight would have chosen, alone and when requests share one budget.

The realised text is one draw, under greedy decoding the only one: the prefix law of the target puts 1 on the text's
prefixes and 0 elsewhere, so expected accepted lengths become counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from .diagnostics import drafted_rounds
from .format import Trace
from .grown import GrownRound, Nursery


@dataclass(frozen=True, slots=True)
class Regret:
    """Accepted drafts that the plug-in tree left behind, means over rounds."""

    budget: int
    candidates: int
    rounds: int
    accepted: float | None
    """Of the plug-in tree: the best-first tree under the drafter's scores."""
    plug_in: float | None
    """Regret against the best tree of as many nodes over the same K candidates a depth (CAST, Proposition 1)."""
    bound: float | None
    """Proposition 1's bound: score errors summed over the nodes in which the two trees differ."""
    hindsight: float | None
    """Regret against the tree that spends its nodes on the text itself, whatever the candidates."""
    share_without: float | None
    """Share of rounds without plug-in regret."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One budget for a batch, shared out in three ways; accepted drafts per batch, means over random batches."""

    batches: int
    requests: int
    nodes_per_request: int
    uniform: float
    """The same number of nodes for every request."""
    shared: float
    """Global best-first over all requests' scores (CAST, Proposition 2)."""
    hindsight: float
    """The best split of the budget over the same trees, knowing the texts."""
    shared_gain: float | None
    """shared / uniform - 1."""
    hindsight_gain: float | None
    """hindsight / uniform - 1."""


def regret(
    trace: Trace, budget: int, rounds: np.ndarray | None = None, *, candidates: int = 8, nursery: Nursery | None = None
) -> Regret:
    """Regret of the best-first tree of `budget` nodes over K `candidates` per depth.

    The oracle tree holds the text's prefixes inside the K candidates and, for the rest, the plug-in tree's nodes: of
    all maximisers the one that differs least, which makes the bound as sharp as it gets.
    """
    if budget < 1:
        raise UsageError(f"budget {budget}: expected at least 1")
    trees = (nursery or Nursery(trace)).get(candidates, budget)
    picked = (drafted_rounds(trace) if rounds is None else rounds).tolist()
    depths = trace.max_depth()
    rows = np.zeros((len(picked), 4))
    for row, index in enumerate(picked):
        grown = trees[index]
        text = trace.realised(index)[: int(depths[index])]
        num_nodes = min(budget, grown.tree.num_nodes)
        length = int(grown.accepted[num_nodes])
        # Path log-probabilities of the text's prefixes, as far as they stay inside the K candidates.
        logp, ids = (part[index, : len(text), :candidates] for part in (trace.rounds.logp, trace.rounds.ids))
        hit = (ids == text[: len(ids), None]) & np.isfinite(logp)
        inside = int(np.logical_and.accumulate(hit.any(axis=1)).sum())
        path_logp = np.cumsum(logp[np.arange(inside), hit[:inside].argmax(axis=1)].astype(np.float64))
        missed = path_logp[length : min(num_nodes, inside)]
        # |law - score| over both trees' difference: the missed prefixes, whose law is 1, and as many nodes off the
        # text, the last ones first, whose law is 0.
        off = np.ones(num_nodes, dtype=bool)
        off[grown.path[(grown.path > 0) & (grown.path <= num_nodes)] - 1] = False
        given_up = grown.gains[:num_nodes][off][::-1][: len(missed)]
        bound = (1.0 - np.exp(missed)).sum() + given_up.sum()
        rows[row] = length, len(missed), bound, min(budget, len(text)) - length
    if not len(picked):
        return Regret(budget, candidates, 0, None, None, None, None, None)
    accepted, plug_in, bound, hindsight = rows.mean(axis=0).tolist()
    without = float((rows[:, 1] == 0).mean())
    return Regret(budget, candidates, len(picked), accepted, plug_in, bound, hindsight, without)


def shared_allocation(
    trace: Trace,
    *,
    requests: int,
    nodes_per_request: int,
    batches: int = 400,
    candidates: int = 8,
    seed: int = 0,
    rounds: np.ndarray | None = None,
    nursery: Nursery | None = None,
) -> Allocation:
    """Draw random batches of rounds and share `requests * nodes_per_request` nodes out (CAST, section 5, appendix F).

    Raises `UsageError` if there is no round to draw or a size is below 1.
    """
    if min(requests, nodes_per_request, batches) < 1:
        raise UsageError(f"batches {batches} of {requests} x {nodes_per_request} nodes: expected at least 1 of each")
    picked = drafted_rounds(trace) if rounds is None else rounds
    if not len(picked):
        raise UsageError("no drafted round to make batches of")
    total = requests * nodes_per_request
    trees = (nursery or Nursery(trace)).get(candidates, min(total, 1024))
    rng = np.random.default_rng(seed)
    sums = np.zeros(3)
    for _ in range(batches):
        batch = [trees[int(index)] for index in rng.choice(picked, size=requests)]
        uniform = sum(int(grown.accepted[min(nodes_per_request, len(grown.gains))]) for grown in batch)
        sums += uniform, global_best_first(batch, total), best_split(batch, total)
    uniform, shared, hindsight = (sums / batches).tolist()
    return Allocation(
        batches=batches,
        requests=requests,
        nodes_per_request=nodes_per_request,
        uniform=uniform,
        shared=shared,
        hindsight=hindsight,
        shared_gain=shared / uniform - 1 if uniform else None,
        hindsight_gain=hindsight / uniform - 1 if uniform else None,
    )


def global_best_first(batch: list[GrownRound], total: int) -> int:
    """Accepted drafts of a batch whose `total` nodes of largest score are verified.

    Equal scores go to the earlier request; inside one, parents stand before their children.
    """
    gains = np.concatenate([grown.gains for grown in batch])
    owner = np.repeat(np.arange(len(batch)), [len(grown.gains) for grown in batch])
    chosen = owner[np.argsort(-gains, kind="stable")[:total]]
    counts = np.bincount(chosen, minlength=len(batch))
    return sum(int(grown.accepted[count]) for grown, count in zip(batch, counts, strict=True))


def best_split(batch: list[GrownRound], total: int) -> int:
    """The most drafts that a split of `total` nodes over best-first trees could have accepted; exact.

    Accepting j drafts of a request costs as many nodes as its j-th node on the text has ahead of it and itself: a
    knapsack with one choice per request, filled request by request.
    """
    best = np.zeros(total + 1, dtype=np.int64)
    for grown in batch:
        options = [best]
        for drafts, cost in enumerate(grown.path.tolist()):
            if 0 < cost <= total:
                shifted = np.full(total + 1, -1, dtype=np.int64)
                shifted[cost:] = best[: total + 1 - cost] + drafts
                options.append(shifted)
        best = np.max(options, axis=0)
    return int(best[total])
