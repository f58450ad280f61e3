"""What a trace says about its drafter: ranks of corrections, reliability, masses, and what K and shape are worth.

Every function takes the rounds to look at (default: all that drafted) and returns a frozen dataclass of plain numbers
and lists, ready for `dataclasses.asdict` and JSON; None stands where there is nothing to average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..cost.profile import CAST_CONTEXT, CostProfile
from ..errors import UsageError
from ..policy import Policy
from ..policy.cast import Cast
from ..policy.ddtree import DdTree
from ..policy.deploy import deployment
from .format import Trace
from .grown import Nursery
from .replay import ReplayResult, replay
from .shapes import Shape, named_shape

RANK_CAPS = (1, 2, 4, 8, 16, 64)
BIN_EDGES = tuple(edge / 10 for edge in range(11))


@dataclass(frozen=True, slots=True)
class CorrectionRanks:
    """Where the target's token stood among the candidates when the chain was first rejected (CAST, figure 4a)."""

    rounds: int
    events: int
    """Rounds in which some depth of the chain was rejected."""
    counts: list[int]
    """Entry r is the number of events with the correction at rank r + 1; entry 0 is always 0."""
    outside: int
    """Events whose correction is not among the recorded candidates."""
    share_2_to_4: float | None
    share_5_to_8: float | None
    share_9_to_32: float | None
    share_beyond_32: float | None
    """Those outside the recorded candidates counted in."""


@dataclass(frozen=True, slots=True)
class Bins:
    """Scores of a group of nodes against how often they were hits, by score."""

    count: list[int]
    mean_score: list[float | None]
    hit_rate: list[float | None]


@dataclass(frozen=True, slots=True)
class Reliability:
    """Are scores probabilities? Groups of nodes over the same bins of score."""

    edges: list[float]
    by_depth: list[Bins]
    """Entry d: nodes at depth d + 1."""
    spine: Bins
    """Nodes whose whole path has rank 0."""
    off_spine: Bins
    everything: Bins


@dataclass(frozen=True, slots=True)
class Masses:
    """Mean sorted candidate masses, and where the stopping rule of CAST crosses them."""

    candidates: int
    masses: list[float]
    """Entry n: mean over rounds of the score of the (n + 1)-th best node, 0 where a round has none."""
    threshold: list[float] | None
    """Entry n: the least mass that node n + 1 needs, (1 + Phi(n)) / C(n + 1) * c1; None without a profile."""
    width: int | None
    """Nodes before the first mass below its threshold."""


@dataclass(frozen=True, slots=True)
class CapRow:
    """One candidate cap at one budget."""

    budget: int
    candidates: int
    mean_committed: float | None
    mean_rows: float | None
    against_widest: float | None
    """Mean committed length over that of the largest cap."""
    share_beyond: float | None
    """Share of realised tokens, over all usable depths, that stand outside the first K candidates."""


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """One tree at one number of nodes."""

    shape: str
    budget: int
    mean_committed: float | None
    mean_rows: float | None


def drafted_rounds(trace: Trace) -> np.ndarray:
    """(n,) int64 rounds with scores that a tree may use."""
    return np.flatnonzero(trace.rounds.drafted & (trace.max_depth() > 0))


def visited_rounds(trace: Trace, result: ReplayResult) -> np.ndarray:
    """(n,) int64 the drafted rounds that a replay went through: what its policy saw, and not what lay between."""
    visited = []
    for request, item in enumerate(result.requests):
        rounds = trace.rounds_of(request)
        if trace.meta.every_position:
            starts = np.cumsum([0, *item.committed])[:-1].tolist()
            visited += [rounds[start] for start in starts]
        else:
            visited += list(rounds)
    return np.intersect1d(np.array(visited, dtype=np.int64), drafted_rounds(trace))


def correction_ranks(trace: Trace, rounds: np.ndarray | None = None) -> CorrectionRanks:
    """Rank of the realised token at the first depth whose best candidate is not it.

    The paper counts the rounds of the chain: pass `visited_rounds(trace, replay(trace, Chain()))` for those.
    """
    picked = drafted_rounds(trace) if rounds is None else rounds
    ranks = _realised_ranks(trace, picked)  # (n, D), 0 = best, K = outside, -1 = unknown
    rejected = ranks > 0
    happened = rejected.any(axis=1)
    first = ranks[happened, rejected[happened].argmax(axis=1)]
    width = trace.rounds.logp.shape[2]
    counts = np.bincount(first, minlength=width + 1)
    events = int(happened.sum())

    def share(low: int, high: int) -> float | None:
        return float(counts[low - 1 : min(high, width)].sum()) / events if events else None

    return CorrectionRanks(
        rounds=len(picked),
        events=events,
        counts=counts[:width].tolist(),
        outside=int(counts[width]),
        share_2_to_4=share(2, 4),
        share_5_to_8=share(5, 8),
        share_9_to_32=share(9, 32),
        share_beyond_32=float(counts[32:width].sum() + counts[width]) / events if events else None,
    )


def reliability(
    trace: Trace,
    rounds: np.ndarray | None = None,
    *,
    candidates: int = 8,
    max_nodes: int = 64,
    conditional: bool = False,
    nursery: Nursery | None = None,
) -> Reliability:
    """Scores of tree nodes against hits.

    By default a node's score is that of its whole path and it is a hit if the text follows that path: what a policy
    sums and a calibration maps. With `conditional` only nodes whose parent lies on the text count, the score is the
    node's own probability, and a hit is the target's token there (CAST, appendix G). Depths beyond the text are left
    out.
    """
    trees = (nursery or Nursery(trace)).get(candidates, max_nodes)
    columns: list[np.ndarray] = []
    for index in (drafted_rounds(trace) if rounds is None else rounds).tolist():
        tree = trees[index].tree.prefix(max_nodes)
        hit = np.zeros(tree.num_rows, dtype=bool)
        hit[trees[index].path[trees[index].path <= tree.num_nodes]] = True
        spine = np.zeros(tree.num_rows, dtype=bool)
        node = np.zeros(1, np.int64)
        while len(node):
            spine[node] = True
            node = np.flatnonzero((tree.parent == node[0]) & (tree.rank == 0))
        logp = tree.logp[1:] - tree.logp[tree.parent[1:]] if conditional else tree.logp[1:]
        keep = tree.depth[1:] <= len(trace.realised(index))
        if conditional:
            keep &= hit[tree.parent[1:]]
        columns.append(np.stack([np.exp(logp), hit[1:], tree.depth[1:], spine[1:]])[:, keep])
    score, hits, depth, on_spine = np.concatenate([np.zeros((4, 0)), *columns], axis=1)
    deepest = trace.rounds.logp.shape[1]
    return Reliability(
        list(BIN_EDGES),
        [_bins(score[depth == d], hits[depth == d]) for d in range(1, deepest + 1)],
        _bins(score[on_spine == 1], hits[on_spine == 1]),
        _bins(score[on_spine == 0], hits[on_spine == 0]),
        _bins(score, hits),
    )


def masses(
    trace: Trace,
    rounds: np.ndarray | None = None,
    *,
    candidates: int = 8,
    max_nodes: int = 128,
    profile: CostProfile | None = None,
    nursery: Nursery | None = None,
) -> Masses:
    """Mean sorted masses (CAST, figure 4c) and, with a profile, the width at which its rule stops on them.

    The slope is fitted and the cost read as policy `cast` does with its defaults.
    """
    trees = (nursery or Nursery(trace)).get(candidates, max_nodes)
    picked = (drafted_rounds(trace) if rounds is None else rounds).tolist()
    total = np.zeros(max_nodes)
    for index in picked:
        gains = trees[index].gains[:max_nodes]
        total[: len(gains)] += gains
    mean = total / max(len(picked), 1)
    if profile is None:
        return Masses(candidates, mean.tolist(), None, None)
    rule = Cast(candidates=candidates, max_nodes=max_nodes - 1)
    widths = np.arange(max_nodes)
    context = profile.nearest_context(CAST_CONTEXT)
    c1 = profile.slope(*rule.fit_rows).c1
    plan = deployment(profile, mean, widths, context=context, curve=rule.curve, c1=c1)
    return Masses(candidates, mean.tolist(), plan.threshold.tolist(), int(widths[rule.pick_width(plan)]))


def rank_cap(
    trace: Trace, budgets: Sequence[int], caps: Sequence[int] = RANK_CAPS, *, nursery: Nursery | None = None
) -> list[CapRow]:
    """The best-first tree with K candidates per depth, for every K and budget (CAST, appendix G.1).

    Raises `UsageError` for a cap beyond what the trace keeps, unless that is the whole vocabulary.
    """
    width = trace.rounds.logp.shape[2]
    if max(caps) > width < trace.meta.vocab_size:
        raise UsageError(f"candidates {max(caps)}: the trace keeps {width}")
    nursery = nursery or Nursery(trace)
    ranks = _realised_ranks(trace, drafted_rounds(trace))
    known = int((ranks >= 0).sum())
    rows = []
    for budget in budgets:
        results = {cap: replay(trace, DdTree(budget=budget, k=cap), nursery=nursery) for cap in caps}
        widest = results[max(caps)].mean_committed
        for cap, result in results.items():
            mean = result.mean_committed
            against = mean / widest if mean is not None and widest else None
            beyond = float((ranks >= cap).sum()) / known if known else None
            rows.append(CapRow(budget, cap, mean, result.mean_rows, against, beyond))
    return rows


def shape_comparison(
    trace: Trace, budgets: Sequence[int], shapes: Sequence[str] = ("medusa", "binary", "chain")
) -> list[ShapeRow]:
    """The best-first tree against fixed shapes of as many nodes (CAST, appendix G); the chain ends at depth D."""
    depth = trace.rounds.logp.shape[1]
    nursery = Nursery(trace)
    rows = []
    for budget in budgets:
        arms: list[Policy | Shape] = [DdTree(budget=budget)]
        arms += [named_shape(name, budget, depth) for name in shapes]
        for arm in arms:
            result = replay(trace, arm, nursery=nursery)
            rows.append(ShapeRow(arm.name, budget, result.mean_committed, result.mean_rows))
    return rows


def _realised_ranks(trace: Trace, rounds: np.ndarray) -> np.ndarray:
    """(n, D) int64 rank of the realised token among a depth's candidates; K outside them, -1 beyond text or depth."""
    _, depths, width = trace.rounds.logp.shape
    limit = trace.max_depth()
    ranks = np.full((len(rounds), depths), -1, dtype=np.int64)
    for row, index in enumerate(rounds.tolist()):
        text = trace.realised(index)[: min(int(limit[index]), depths)]
        same = trace.rounds.ids[index, : len(text)] == text[:, None]
        same &= np.isfinite(trace.rounds.logp[index, : len(text)])
        ranks[row, : len(text)] = np.where(same.any(axis=1), same.argmax(axis=1), width)
    return ranks


def _bins(score: np.ndarray, hits: np.ndarray) -> Bins:
    """Bins are half-open, the last one closed."""
    at = np.minimum(np.searchsorted(BIN_EDGES, score, side="right") - 1, len(BIN_EDGES) - 2)
    size = len(BIN_EDGES) - 1
    count = np.bincount(at, minlength=size)
    total, hit = np.bincount(at, score, size), np.bincount(at, hits, size)

    def means(sums: np.ndarray) -> list[float | None]:
        return [float(value / n) if n else None for value, n in zip(sums, count, strict=True)]

    return Bins(count.tolist(), means(total), means(hit))
