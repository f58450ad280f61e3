"""The floor under plain decoding: every token reads the weights once, and memory gives so many bytes a second."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, runtime_checkable

import torch

PROBE_BYTES = 1 << 28
REPEATS = 7


@runtime_checkable
class HasModel(Protocol):
    """A target that is one torch module."""

    @property
    def model(self) -> torch.nn.Module:
        """It."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least seconds that a plain token can take on this memory."""

    weight_bytes: int
    """Read per token: all weights, an embedding table of its own left out."""
    bytes_per_s: float
    """Measured by summing a large array."""

    @property
    def ms_per_token(self) -> float:
        """Weight bytes over bandwidth."""
        return self.weight_bytes / self.bytes_per_s * 1e3


def floor(target: object, device: torch.device) -> Floor | None:
    """Measure the floor for `target`; None for a target without torch weights."""
    if not isinstance(target, HasModel):
        return None
    return Floor(weight_bytes(target.model), bandwidth(device))


def weight_bytes(model: torch.nn.Module) -> int:
    """Bytes of all distinct weights but an input embedding that the output matrix does not share."""
    shared = {id(weight): weight for weight in model.parameters()}
    embedding = model.get_input_embeddings().weight  # type: ignore[operator]
    output = model.get_output_embeddings()  # type: ignore[operator]
    if output is not None and output.weight is not embedding:
        shared.pop(id(embedding), None)
    return sum(weight.numel() * weight.element_size() for weight in shared.values())


def bandwidth(device: torch.device, size_bytes: int = PROBE_BYTES, repeats: int = REPEATS) -> float:
    """Bytes a second of the quickest of `repeats` reads of an array too large for caches."""
    values = torch.ones(size_bytes // 4, dtype=torch.float32, device=device)
    best_s = float("inf")
    for _ in range(repeats):
        start_s = perf_counter()
        values.sum().item()  # the copy of the sum waits for the device
        best_s = min(best_s, perf_counter() - start_s)
    return values.numel() * 4 / best_s
