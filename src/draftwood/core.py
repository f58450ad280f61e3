"""The nouns that all layers share. Names and index spaces follow docs in ARCHITECTURE.md.

Four index spaces never mix: ``node`` (0 = root), ``row`` (of a pack), ``kv`` (row of the KV pool) and ``pos``
(absolute position in a request). Capital letters are sizes only: R requests, D draft depth, P parent ranks,
K candidates per depth, N drafted nodes, M = N + 1 rows, V vocabulary, T rows of a packed forward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from .errors import DraftwoodError, UsageError

ROOT_NODE = 0
MAX_NODES = 1024
TREE_COLUMNS = ("parent", "token", "depth", "rank", "logp")


class Visibility(Enum):
    """What the rows of a segment see among themselves; the prefix is always visible."""

    CAUSAL = "causal"  # a prefill chunk or a chain: row i sees rows 0..i
    ANCESTORS = "ancestors"  # a draft tree: a row sees itself and its ancestors
    FULL = "full"  # a drafter's block: every row sees every row


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive rows of the KV pool: the half-open interval [start_kv, start_kv + length)."""

    start_kv: int
    length: int


@dataclass(frozen=True, slots=True)
class DraftBlock:
    """Scores of one drafter pass, on the host.

    ``logp[r, d, p, k]`` is the log-probability of candidate k at depth d + 1, given the parent of rank p at depth d
    (P = 1: the marginals are independent of the parent; at depth 1 only p = 0 is read). Each last-axis row is sorted
    in descending order and is at most 0.
    """

    logp: np.ndarray
    """(R, D, P, K) float32."""
    ids: np.ndarray
    """(R, D, P, K) int64 token ids."""
    depths: np.ndarray
    """(R,) int64 usable depth of each request, at most D (blocks shrink near the context limit)."""


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A draft tree, nodes in best-first order; node 0 is the root, the pending token.

    A parent stands before its children and ``logp`` never increases over nodes 1..N, so the best tree of n nodes is
    the first n (CAST, Theorem 1).
    """

    parent: np.ndarray
    """(N + 1,) int32, -1 for the root."""
    token: np.ndarray
    """(N + 1,) int64; token[0] is the pending token."""
    depth: np.ndarray
    """(N + 1,) int32, 0 for the root."""
    rank: np.ndarray
    """(N + 1,) int32 rank among the candidates of its depth, 0 for the root."""
    logp: np.ndarray
    """(N + 1,) float64 log-probability of the path from the root, 0 for the root."""

    @property
    def num_nodes(self) -> int:
        """N, the root excluded."""
        return len(self.parent) - 1

    @property
    def num_rows(self) -> int:
        """M = N + 1, the root included."""
        return len(self.parent)

    @property
    def gains(self) -> np.ndarray:
        """(N,) float64 expected accepted drafts that each node adds, non-increasing."""
        gains: np.ndarray = np.exp(self.logp[1:])
        return gains

    def prefix(self, num_nodes: int) -> DraftTree:
        """The best tree of at most `num_nodes` nodes; shares memory."""
        rows = min(num_nodes, self.num_nodes) + 1
        return DraftTree(self.parent[:rows], self.token[:rows], self.depth[:rows], self.rank[:rows], self.logp[:rows])


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Draft trees of R requests, the nodes of one after those of another; `forest[i]` is tree i, sharing memory.

    Tree i owns entries [offsets[i], offsets[i + 1]) of every column; `parent` counts within its own tree.
    """

    offsets: np.ndarray
    """(R + 1,) int64, the first 0; every tree has at least its root."""
    parent: np.ndarray
    """(T,) int32, as in `DraftTree`; T = offsets[R]."""
    token: np.ndarray
    """(T,) int64."""
    depth: np.ndarray
    """(T,) int32."""
    rank: np.ndarray
    """(T,) int32."""
    logp: np.ndarray
    """(T,) float64."""
    faulty: Mapping[int, str] = field(default_factory=dict)
    """What was not finite about the scores of a tree, by its index; such a tree is its root alone."""
    source: DraftBlock | tuple[Forest, ...] | None = None
    """What the trees were made from, for a recorder: the scores of a block drafter, or the forests of a union."""
    costly: bool = True
    """False where a union has left its costly part out: the trees took next to no seconds."""

    @classmethod
    def of(cls, trees: Sequence[DraftTree]) -> Forest:
        """Join trees, at least one, copying them."""
        sizes = [tree.num_rows for tree in trees]
        columns = [[getattr(tree, name) for tree in trees] for name in TREE_COLUMNS]
        parent, token, depth, rank, logp = (np.concatenate(parts) for parts in columns)
        return cls(np.concatenate([[0], np.cumsum(sizes)]), parent, token, depth, rank, logp)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> DraftTree:
        rows = slice(self.offsets[index], self.offsets[index + 1])
        return DraftTree(self.parent[rows], self.token[rows], self.depth[rows], self.rank[rows], self.logp[rows])

    @property
    def num_rows(self) -> np.ndarray:
        """(R,) int64 rows of each tree, its root counted."""
        rows: np.ndarray = np.diff(self.offsets)
        return rows

    def prefix(self, num_nodes: np.ndarray) -> Forest:
        """The best trees of at most `num_nodes` (R,) nodes each."""
        if len(self) == 1:  # as a view
            tree = self[0].prefix(int(num_nodes[0]))
            offsets, columns = np.array([0, tree.num_rows]), (tree.parent, tree.token, tree.depth, tree.rank, tree.logp)
            return self if tree.num_rows == self.offsets[1] else Forest(offsets, *columns, self.faulty, self.source)
        kept = np.minimum(self.num_rows, np.asarray(num_nodes, np.int64) + 1)
        if (kept == self.num_rows).all():
            return self
        offsets = np.concatenate([[0], np.cumsum(kept)])
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1] - offsets[:-1], kept)
        parent, token, depth, rank, logp = (getattr(self, name)[rows] for name in TREE_COLUMNS)
        return Forest(offsets, parent, token, depth, rank, logp, self.faulty, self.source)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target decided about one tree."""

    path: np.ndarray
    """(committed,) int64 nodes of the accepted path, the root first."""
    pending: int
    """The target's own next token: the pending token of the next round."""
    logp: np.ndarray | None = None
    """(committed,) float64 log-probability of each token decided (path[1:] then pending), when asked for."""

    @property
    def committed(self) -> int:
        """Committed length of the round: accepted drafts + 1."""
        return len(self.path)


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """What the target decided about a forest of R trees."""

    offsets: np.ndarray
    """(R + 1,) int64: tree i owns `rows[offsets[i]:offsets[i + 1]]`; a tree in `faults` owns none."""
    rows: np.ndarray
    """(n,) int64 rows of the forest on accepted paths, increasing, roots included."""
    pending: np.ndarray
    """(R,) int64 the target's own next token of each request; -1 in `faults`."""
    faults: Mapping[int, DraftwoodError]
    """By tree: why nothing was decided."""

    def path(self, index: int, forest: Forest) -> np.ndarray:
        """(committed,) int64 nodes of tree `index` on its accepted path, the root first."""
        nodes: np.ndarray = self.rows[self.offsets[index] : self.offsets[index + 1]] - forest.offsets[index]
        return nodes


def is_text(text: str) -> bool:
    """False for a string with half a surrogate pair, which no encoding of text can hold."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the target's token is chosen.

    `temperature` 0 takes the argmax, ties to the lower id; above 0 the draw is a function of (`seed`, `completion`,
    absolute position, token id) alone.
    """

    temperature: float = 0.0
    seed: int = 0
    completion: int = 0

    def __post_init__(self) -> None:
        number = isinstance(self.temperature, int | float | np.number)
        if not (number and math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature {self.temperature!r}: expected a finite number >= 0")
        if not (isinstance(self.seed, int | np.integer) and 0 <= self.seed < 2**63):
            raise UsageError(f"seed {self.seed!r}: expected 0 to 2**63 - 1")

    @property
    def greedy(self) -> bool:
        """True when the draw is an argmax."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round of one request, as it happened."""

    rows: int
    """Rows verified for this request, the root counted."""
    committed: int
    """Tokens delivered by the round; after a stop or a cap only those that were kept."""
    drafted: bool
    """False when the round skipped drafting."""
    context: int
    """L, committed context length before the round."""
    accepted: int
    """Accepted drafts before any cut at a stop: the policy's view of the round."""
    predicted_s: float | None = None
    """Predicted seconds of the whole round under the cost profile, drafting included; None without a profile."""
    cost_factors: tuple[float, float, float] | None = None
    """Live factors (base, slope, draft) that the prediction used; None without a profile."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Measured seconds by stage, only in stage-timing mode."""
