"""A target that sums what it finds in the pool, and a drafter that sums what it was given: cheap, and no row is idle.

The value of a token is a function of itself and its position. A row decides by the sum of all values that it sees, read
from the pool: one row too many, too few or of another request changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from draftwood.batch import Batch, kv_index
from draftwood.cache import KVPool, LayerSpec
from draftwood.core import DraftTree, Forest
from draftwood.draft.base import Committed, DraftRequest
from draftwood.models.base import TargetSpec

VOCAB = 61
DEPTH = 4


def value(token: int, pos: int) -> int:
    return (token + 1) * (pos % 7 + 1)


def following(total: int) -> int:
    """What a sum decides."""
    return (31 * total + 7) % VOCAB


def text_of(prompt: Sequence[int], tokens: int) -> list[int]:
    """The plain continuation of a prompt."""
    total, text = sum(value(token, pos) for pos, token in enumerate(prompt)), list(prompt)
    for _ in range(tokens):
        text.append(following(total))
        total += value(text[-1], len(text) - 1)
    return text[len(prompt) :]


@dataclass
class SummingTarget:
    """See above; `fault` is asked once a forward and may raise, or name rows of the logits to be spoiled."""

    context_limit: int = 4096
    fault: Callable[[int], Sequence[int]] = lambda rows: ()
    forwards: int = 0

    def __post_init__(self) -> None:
        layers, cpu = (LayerSpec(1, 1, 1),), torch.device("cpu")
        self.spec = TargetSpec("summing", 1, 1, VOCAB, VOCAB, self.context_limit, layers, torch.float32, cpu)

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        self.forwards += 1
        spoiled = self.fault(len(batch.logit_rows))
        keys = pool.k(0).view(-1).numpy()
        keys[batch.kv_rows] = (batch.token_ids + 1) * (batch.pos % 7 + 1)
        totals = np.zeros(len(batch.token_ids))
        for index in range(len(batch.requests)):
            rows = batch.rows(index)
            own, visible = keys[batch.kv_rows[rows]].astype(np.float64), batch.own_visible(index)
            before = keys[kv_index(batch.prefix[index])].sum(dtype=np.float64) if batch.prefix[index] else 0.0
            totals[rows] = before + (own if visible is None else visible @ own)
        chosen = (31 * totals[batch.logit_rows].astype(np.int64) + 7) % VOCAB
        logits = torch.zeros(len(chosen), VOCAB)
        logits[torch.arange(len(chosen)), torch.from_numpy(chosen)] = 1.0
        for row in spoiled:
            logits[row] = torch.nan
        if taps is not None:
            taps.zero_()
        return logits

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(token_ids), 1)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(hidden), VOCAB)


@dataclass
class SummingDrafter:
    """Drafts a chain of what follows, every fifth position wrong; a wrong child stands beside each right one.

    `faulty` is asked for each tree whether its scores are not finite.
    """

    faulty: Callable[[], bool] = lambda: False
    block_size: int = DEPTH + 1
    target_layer_ids: tuple[int, ...] = (0,)
    kv_row_bytes: int = 0
    known: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Committed tokens and their sum, by open request."""

    def allocate(self, kv_rows: int, requests: int) -> None:
        assert not self.known

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        assert request not in self.known and rows >= len(token_ids)
        self.known[request] = 0, 0

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        broken = {at: "draft scores are not finite" for at in range(len(wanted)) if self.faulty()}
        forest = Forest.of([self._tree(item, 0 if at in broken else item.max_nodes) for at, item in enumerate(wanted)])
        return Forest(
            forest.offsets, forest.parent, forest.token, forest.depth, forest.rank, forest.logp, faulty=broken
        )

    def commit(self, committed: Committed) -> None:
        offsets, tokens = committed.offsets.tolist(), committed.token_ids.tolist()
        for request, start, stop in zip(committed.requests, offsets, offsets[1:], strict=False):
            length, total = self.known[request]
            for token in tokens[start:stop]:
                total += value(token, length)
                length += 1
            self.known[request] = length, total

    def close(self, request: int) -> None:
        self.known.pop(request, None)

    def _tree(self, item: DraftRequest, max_nodes: int) -> DraftTree:
        length, total = self.known[item.request]
        assert length == item.context_len, "the drafter's context has a hole"
        token, parent, parents, tokens, depths, ranks = item.pending, 0, [-1], [item.pending], [0], [0]
        for depth in range(1, item.max_depth + 1):
            total += value(token, length + depth - 1)
            token = (following(total) + ((length + depth) % 5 == 0)) % VOCAB
            parents += [parent, parent]
            tokens += [token, (token + 2) % VOCAB]
            depths += [depth, depth]
            ranks += [0, 1]
            parent = 2 * depth - 1
        logp = -0.1 * np.arange(len(parents))
        columns = [np.array(parents, np.int32), np.array(tokens, np.int64), np.array(depths, np.int32)]
        tree = DraftTree(*columns, np.array(ranks, np.int32), logp)
        return tree.prefix(max_nodes if item.candidates > 1 else 1)
