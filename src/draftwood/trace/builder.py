"""Collects rounds while a run goes on and turns them into a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core import DraftTree
from ..errors import TraceError
from .format import MAX_CANDIDATES, Trace
from .tables import RequestTable, RoundTable, TraceMeta, TreeTable


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One round as a recorder sees it."""

    position: int
    """Index of the pending token in the output."""
    pending: int
    context: int
    logp: np.ndarray | None = None
    """(depth, K) float32 scores, cut to the usable depth; None where no position was scored."""
    ids: np.ndarray | None = None
    """(depth, K) token ids of the scores."""
    candidates: int = 0
    """Candidates per depth of the tree that was grown, 0 where nothing was drafted."""
    num_nodes: int = 0
    accepted: Sequence[int] | np.ndarray = ()
    """Accepted nodes, the root excluded."""
    committed: int = 1
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage; stages of the meta that are absent count 0."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Cost factors that the choice used; absent ones count 1."""
    tree: DraftTree | None = None
    """What a drafter that scores paths proposed; None without such a one."""


@dataclass(slots=True)
class _Request:
    request_id: str
    set_name: str
    prompt_hash: str
    prompt_len: int
    max_tokens: int
    output: np.ndarray | None = None
    finish: str = ""


class TraceBuilder:
    """Mutable; `add_request`, then `add_round` as rounds end, `finish_request`, and `build` at the end.

    Scores are kept as (depth, min(64, V)) float32 whatever the policy's own K, so that any policy can be replayed.
    """

    def __init__(self, meta: TraceMeta, *, depth: int) -> None:
        self._meta = meta
        self._depth = depth
        self._candidates = min(MAX_CANDIDATES, meta.vocab_size)
        self._requests: list[_Request] = []
        self._rounds: list[tuple[int, TraceRound]] = []

    @property
    def candidates(self) -> int:
        """K of the stored scores: ask the drafter for as many."""
        return self._candidates

    def add_request(self, *, request_id: str, set_name: str, prompt_hash: str, prompt_len: int, max_tokens: int) -> int:
        """Open a request and return its index."""
        self._requests.append(_Request(request_id, set_name, prompt_hash, prompt_len, max_tokens))
        return len(self._requests) - 1

    def add_round(self, request: int, round_: TraceRound) -> None:
        """Append a finished round; requests may interleave. Copies the scores.

        Raises `TraceError` for scores of another shape, such as those that depend on the parent's rank.
        """
        if round_.logp is None or round_.ids is None:
            self._rounds.append((request, round_))
            return
        shape = round_.logp.shape
        if round_.logp.ndim != 2 or shape[0] > self._depth or shape[1] != self._candidates:
            raise TraceError(f"scores of shape {shape}: a trace keeps (1..{self._depth}, {self._candidates})")
        if round_.ids.shape != shape:
            raise TraceError(f"ids of shape {round_.ids.shape}: expected that of the scores, {shape}")
        kept = TraceRound(
            **{name: getattr(round_, name) for name in _PLAIN},
            logp=np.array(round_.logp, dtype=np.float32),
            ids=np.array(round_.ids, dtype=np.int32),
        )
        self._rounds.append((request, kept))

    def finish_request(self, request: int, output_ids: Sequence[int] | np.ndarray, finish: str) -> None:
        """Close a request with its whole output (prefill's token first, the end token kept)."""
        self._requests[request].output = np.array(output_ids, dtype=np.int32)
        self._requests[request].finish = finish

    def build(self) -> Trace:
        """The trace of all finished requests' rounds, checked.

        Raises `TraceError` if a request was never finished or the parts do not fit together.
        """
        unfinished = [index for index, item in enumerate(self._requests) if item.output is None]
        if unfinished:
            raise TraceError(f"request {unfinished[0]} was never finished")
        items = self._requests
        outputs = [item.output for item in items if item.output is not None]
        requests = RequestTable(
            request_id=_strings([item.request_id for item in items]),
            set_name=_strings([item.set_name for item in items]),
            prompt_hash=_strings([item.prompt_hash for item in items]),
            prompt_len=_ints([item.prompt_len for item in items]),
            max_tokens=_ints([item.max_tokens for item in items]),
            finish=_strings([item.finish for item in items]),
            output_ids=_joined(outputs),
            output_offsets=_offsets([len(output) for output in outputs]),
        )
        order = sorted(self._rounds, key=lambda item: (item[0], item[1].position))
        trees = [round_.tree for _, round_ in order]
        found = [tree for tree in trees if tree is not None]
        table = TreeTable(
            offsets=_offsets([0 if tree is None else tree.num_nodes for tree in trees]),
            parent=_joined([_ints(tree.parent[1:]) for tree in found]),
            token=_joined([_ints(tree.token[1:]) for tree in found]),
            rank=_joined([_ints(tree.rank[1:]) for tree in found]),
            logp=np.concatenate([np.zeros(0), *(tree.logp[1:] for tree in found)]),
        )
        trace = Trace(self._meta, self._round_table(order), requests, table)
        trace.check_integrity()
        return trace

    def _round_table(self, order: Sequence[tuple[int, TraceRound]]) -> RoundTable:
        rounds = [round_ for _, round_ in order]
        shape = (len(rounds), self._depth, self._candidates)
        logp = np.full(shape, -np.inf, dtype=np.float32)
        ids = np.zeros(shape, dtype=np.int32)
        depth = np.zeros(len(rounds), dtype=np.int32)
        for b, item in enumerate(rounds):
            if item.logp is not None and item.ids is not None:
                depth[b] = len(item.logp)
                logp[b, : depth[b]] = item.logp
                ids[b, : depth[b]] = item.ids
        stages, names = self._meta.stages, self._meta.factor_names
        seconds = [[item.seconds.get(stage, 0.0) for stage in stages] for item in rounds]
        factors = [[item.factors.get(name, 1.0) for name in names] for item in rounds]
        return RoundTable(
            request=_ints([request for request, _ in order]),
            position=_ints([item.position for item in rounds]),
            pending=_ints([item.pending for item in rounds]),
            context=_ints([item.context for item in rounds]),
            drafted=np.array([item.logp is not None or item.tree is not None for item in rounds], dtype=bool),
            depth=depth,
            logp=logp,
            ids=ids,
            candidates=_ints([item.candidates for item in rounds]),
            num_nodes=_ints([item.num_nodes for item in rounds]),
            committed=_ints([item.committed for item in rounds]),
            accepted=_joined([_ints(item.accepted) for item in rounds]),
            accepted_offsets=_offsets([len(item.accepted) for item in rounds]),
            seconds=np.array(seconds, dtype=np.float64).reshape(len(rounds), len(stages)),
            factors=np.array(factors, dtype=np.float64).reshape(len(rounds), len(names)),
        )


_PLAIN = (
    "position", "pending", "context", "tree", "candidates", "num_nodes", "accepted", "committed", "seconds", "factors",
)  # fmt: skip


def _ints(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _strings(values: list[str]) -> np.ndarray:
    return np.array(values, dtype=np.str_)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def _offsets(lengths: list[int]) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
