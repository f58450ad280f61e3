"""The contracts on both sides of a drafter: what the engine asks of it, and what it borrows from the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ..core import DraftBlock


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request of a drafting pass."""

    request: int
    pending: int
    """Token decided by the target and not yet in any cache; slot 0 of the block."""
    context_len: int
    """L, committed tokens; also the absolute position of the pending token."""
    block_size: int
    """Rows of this request's block, 2 to the drafter's block size; block_size - 1 positions are scored."""


class Drafter(Protocol):
    """Scores the positions behind the pending token of each request in one pass."""

    @property
    def block_size(self) -> int:
        """B, the largest block."""
        ...

    @property
    def depth(self) -> int:
        """D = B - 1, the most positions scored."""
        ...

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        """Tapped target layers, 0-based, in the order in which `commit` expects them side by side."""
        ...

    def draft(self, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
        """Score `requests` in one packed forward, the best `candidates` per position; DraftBlock keeps their order."""
        ...

    def commit(self, request: int, taps: torch.Tensor) -> None:
        """Append committed tokens to a request's context: taps (rows, taps * h), in order of position.

        The caller may reuse the memory of `taps` afterwards. The first commit of a request admits it.
        """
        ...

    def release(self, request: int) -> None:
        """Forget a request; one that was never committed is accepted."""
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
