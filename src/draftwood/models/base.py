"""What the engine and drafters need of a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ..batch import Batch
from ..cache import KVPool, LayerSpec


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """Sizes and limits of a target."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    """V, columns of the logits."""
    embedding_rows: int
    context_limit: int
    """Positions 0..context_limit-1 exist."""
    layers: tuple[LayerSpec, ...]
    dtype: torch.dtype
    device: torch.device


class TargetModel(Protocol):
    """A causal language model over packed rows."""

    spec: TargetSpec

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        """Logits (len(logit_rows), V) of a batch; writes the taps of its tap rows and stages keys and values.

        `tap_layers` are 0-based layers whose output is wanted, joined in this order along the feature axis into
        `taps` (len(tap_rows), len(tap_layers) * h); with none of them `taps` is None.
        """
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows (T, h) of the embedding matrix, without the model's own scale."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) of final hidden states (T, h): the output matrix alone."""
        ...


@runtime_checkable
class ReferenceModel(Protocol):
    """A target that can also run without any code of ours between the layers: what outputs are compared with."""

    def native_logits(self, token_ids: Sequence[int], *, last_rows: int | None = None) -> torch.Tensor:
        """Logits (T, V) of a whole text by the model's own attention, or (n, V) of its last n = `last_rows` >= 1 rows.

        The head is not computed for other rows: of a long text and a large vocabulary it is most of the memory.
        """
        ...
