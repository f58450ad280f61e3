"""The contracts on both sides of a drafter: what the engine asks of it, and what it borrows from the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from ..core import Forest


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request of a drafting pass."""

    request: int
    pending: int
    """Token decided by the target and not yet in any cache: the root of the tree."""
    context_len: int
    """L, committed tokens; also the absolute position of the pending token."""
    block_size: int
    """Rows of this request's block, 2 to the drafter's block size; block_size - 1 positions are scored."""
    candidates: int
    """K, candidates kept per depth (of a node, for drafters that have no depths of their own)."""
    max_nodes: int
    """Most nodes of the tree."""
    max_depth: int
    """Deepest node that can still be delivered, at most block_size - 1."""
    scored: int = 0
    """Candidates per depth that the scores in `Forest.source` keep, if more than `candidates`; for recorders."""
    draft_share: float = 0.0
    """What part of the round's seconds a costly drafter's pass takes; 0: not known, or of no interest to the policy."""


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """Tokens of R requests that became context in one step: prefill chunks and accepted paths alike.

    The pending token of a request is not among them. Request i owns [offsets[i], offsets[i + 1]).
    """

    requests: tuple[int, ...]
    offsets: np.ndarray
    """(R + 1,) int64."""
    token_ids: np.ndarray
    """(n,) int64, each request's in order of position."""
    taps: torch.Tensor | None
    """(n, taps * h), the rows of `token_ids`; None for a drafter that taps no layer. Valid during the call only."""


class Drafter(Protocol):
    """Proposes a draft tree for each request, behind its pending token.

    A request is opened, then every committed token reaches `commit` exactly once and in order, then it is closed;
    `propose` is asked between commits. A preempted request is closed and opened again.
    """

    @property
    def block_size(self) -> int:
        """Largest depth + 1: rows of a block, the pending token counted."""
        ...

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Tapped target layers, 0-based, in the order in which `commit` expects them side by side; () for none."""
        ...

    @property
    def kv_row_bytes(self) -> int:
        """Bytes that one committed token keeps in the drafter's own pool; 0 without one."""
        ...

    def allocate(self, kv_rows: int, requests: int) -> None:
        """Make room for `kv_rows` committed tokens of at most `requests` requests together, while none is open."""
        ...

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """Admit a request whose known text is `token_ids` (P,) and which is expected to keep `rows` tokens.

        Its prompt, or after a preemption all but its pending token; `commit` delivers the same tokens again.
        """
        ...

    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """Grow a tree for each of `wanted` (distinct, open), in their order, in one pass.

        Scores that are not finite leave the root alone and a word in `Forest.faulty`; they raise nothing.
        """
        ...

    def commit(self, committed: Committed) -> None:
        """Append committed tokens to the contexts of their requests."""
        ...

    def close(self, request: int) -> None:
        """Forget a request; one that is not open is accepted."""
        ...


class TargetSizes(Protocol):
    """Sizes of a target that a drafter is checked against."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        ...

    @property
    def hidden_size(self) -> int:
        """h."""
        ...

    @property
    def vocab_size(self) -> int:
        """V, rows of the output matrix."""
        ...

    @property
    def embedding_rows(self) -> int:
        """Rows of the input embedding, at least one for every token."""
        ...

    @property
    def context_limit(self) -> int:
        """Positions the target can take: 0..context_limit - 1."""
        ...


class TargetHead(Protocol):
    """What a drafter borrows from its target; every `TargetModel` has it."""

    @property
    def spec(self) -> TargetSizes:
        """Its sizes."""
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Raw embedding rows (T, h) of token_ids (T,) int64, without any scale of the target."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw logits (T, V) of normalised states (T, h): the output matrix alone, no soft-cap or scale."""
        ...
