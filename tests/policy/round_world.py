"""A made world of rounds: drafters of known skill, texts whose difficulty varies, and a driver for policies.

The drafter's scores are the true probabilities here, so expected committed lengths are exact: a policy is credited
with 1 + Phi(n) tokens a round, while what it observes is a sampled acceptance, with all its noise.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from draftwood.core import DraftTree, RoundRecord
from draftwood.policy import Policy, PolicyState, RoundCosts, RoundOutcome

DEPTH, CANDIDATES, NODES = 15, 8, 64


@dataclass(frozen=True)
class MadeTree:
    """A best-first tree of NODES nodes with the marginals it came from."""

    tree: DraftTree
    marginals: np.ndarray  # (D, K) probabilities, descending along K
    children: dict[tuple[int, int], int]  # (node, rank) -> node

    @cached_property
    def phi(self) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(self.tree.gains)])

    @cached_property
    def prefixes(self) -> list[DraftTree]:
        return [self.tree.prefix(n) for n in range(NODES + 1)]

    @cached_property
    def cumulative(self) -> list[list[float]]:
        rows: list[list[float]] = np.cumsum(self.marginals, axis=1).tolist()
        return rows

    def sample_path(self, rng: np.random.Generator) -> list[int]:
        """Nodes of the target's text, the root first, as far as they are in the whole tree."""
        path = [0]
        for row, draw in zip(self.cumulative, rng.random(DEPTH).tolist(), strict=True):
            child = self.children.get((path[-1], bisect_left(row, draw)))
            if child is None:
                break
            path.append(child)
        return path


def make_tree(marginals: np.ndarray) -> MadeTree:
    """Best-first growth with a heap, written for clarity."""
    heap = [(-marginals[0, 0], (0,))]
    index: dict[tuple[int, ...], int] = {(): 0}
    parent, rank, mass = [-1], [0], [1.0]
    while heap and len(parent) <= NODES:
        negative, ranks = heapq.heappop(heap)
        index[ranks] = len(parent)
        parent.append(index[ranks[:-1]])
        rank.append(ranks[-1])
        mass.append(-negative)
        at, last = len(ranks) - 1, ranks[-1]
        if last + 1 < CANDIDATES:
            sibling = negative / marginals[at, last] * marginals[at, last + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], last + 1)))
        if at + 1 < DEPTH:
            heapq.heappush(heap, (negative * marginals[at + 1, 0], (*ranks, 0)))
    depth = [0] * len(parent)
    for node in range(1, len(parent)):
        depth[node] = depth[parent[node]] + 1
    children = {(parent[node], rank[node]): node for node in range(1, len(parent))}
    tree = DraftTree(
        np.array(parent, np.int32),
        np.array(rank, np.int64),
        np.array(depth, np.int32),
        np.array(rank, np.int32),
        np.log(np.array(mass)),
    )
    return MadeTree(tree, marginals, children)


def skilled_tree(skill: float, rng: np.random.Generator) -> MadeTree:
    """A tree of a drafter whose first guess is right with 0.25 (skill 0) to 0.97 (skill 1), less with depth."""
    top = (0.25 + 0.72 * skill) * (0.9 + 0.1 * skill) ** np.arange(DEPTH)
    top = np.clip(top + rng.normal(0, 0.03, DEPTH), 0.03, 0.99)
    tail = (0.35 + 0.25 * rng.random()) ** np.arange(CANDIDATES - 1)
    marginals = np.column_stack([top, 0.85 * (1 - top)[:, None] * tail / tail.sum()])
    return make_tree(-np.sort(-marginals, axis=1))


@dataclass(frozen=True)
class Text:
    """Which tree the drafter offers at each token position."""

    pool: list[MadeTree]
    tree_at: np.ndarray  # (T,) index into the pool

    @cached_property
    def mean_gains(self) -> np.ndarray:
        gains = np.stack([made.tree.gains for made in self.pool])
        return gains[self.tree_at].mean(0)


def make_text(seed: int, num_tokens: int, stretch: int, pool: int = 200) -> Text:
    """Difficulty drawn anew every `stretch` tokens, from easy and hard rather than middling."""
    rng = np.random.default_rng(seed)
    trees = [skilled_tree(skill, rng) for skill in rng.beta(0.8, 0.8, pool)]
    drawn = rng.integers(0, pool, num_tokens // stretch + 1)
    return Text(trees, np.repeat(drawn, stretch)[:num_tokens])


def made_costs(shape: str, draft_s: float = 0.003) -> RoundCosts:
    """Costs of 0..NODES nodes: "smooth", "stairs" (captured sizes) or "jump" (twice as slow beyond 8 rows)."""
    rows = np.arange(1, NODES + 2)
    sizes = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96])
    padded = sizes[np.searchsorted(sizes, rows)]
    target_s = {
        "smooth": 0.01 * (1 + 0.012 * (rows - 1) + 0.00012 * (rows - 1) ** 2),
        "stairs": 0.01 * (1 + 0.014 * (padded - 1)),
        "jump": 0.01 * np.where(rows <= 8, 1 + 0.004 * (rows - 1), 2 + 0.006 * (rows - 9)),
    }[shape]
    return RoundCosts(float(target_s[0]), draft_s, target_s + draft_s)


SHAPES = ("smooth", "stairs", "jump")


@dataclass(frozen=True)
class Played:
    """One round as the driver saw it."""

    drafted: bool
    num_nodes: int
    expected_tokens: float
    committed: int
    seconds: float


class Driver:
    """Drives one request under a policy: what an engine does, without a model."""

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self.policy = policy
        self.state = PolicyState()
        self.rng = np.random.default_rng(seed)

    def play(self, made: MadeTree, costs: RoundCosts, path: list[int] | None = None) -> Played:
        """One round; `path` overrides the sampled text."""
        drafted = self.policy.wants_draft(self.state, costs)
        count = self.policy.choose(made.tree.gains, costs.round_s, 1, self.state) if drafted else 0
        text = made.sample_path(self.rng) if path is None else path
        accepted_path = np.array([node for node in text if node <= count])
        accepted = len(accepted_path) - 1
        record = RoundRecord(count + 1, accepted + 1, drafted, 100, accepted)
        self.state = self.policy.observe(self.state, RoundOutcome(record, made.prefixes[count], accepted_path, costs))
        seconds = float(costs.round_s[count]) if drafted else costs.plain_s
        return Played(drafted, count, 1.0 + float(made.phi[count]), accepted + 1, seconds)


def make_costs_table(num_rows: int) -> np.ndarray:
    """(num_rows + 1,) convex target seconds of 0..num_rows rows."""
    rows = np.maximum(np.arange(num_rows + 1), 1)
    table: np.ndarray = 0.01 * (1 + 0.012 * (rows - 1) + 0.00012 * (rows - 1) ** 2)
    table[0] = table[1] - (table[2] - table[1])
    return table
