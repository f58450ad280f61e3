"""Controls on the target's logits: pure functions of one row and that node's own history.

Order: bias, repetition penalty, presence and frequency penalties, ban of end tokens, then on softmax(logits / T) top-k,
top-p, min-p. At temperature 0 the last three cannot remove the argmax and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ..errors import UsageError


class History(NamedTuple):
    """What a request has seen when a row is decided."""

    prompt: np.ndarray
    """(p,) int64 prompt ids."""
    generated: np.ndarray
    """(g,) int64 output ids so far; at a root the pending token is the last of them."""

    def after(self, path_tokens: np.ndarray) -> History:
        """The history of a node: this one plus the tokens of its path from the root, the root's own left out."""
        return History(self.prompt, np.concatenate([self.generated, path_tokens]))


@dataclass(frozen=True, slots=True)
class Processors:
    """The controls of one request; defaults change nothing."""

    vocab_size: int
    """V, the length of a logits row; ids are checked against it."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these ids."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of ids in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from ids in the output."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence in the output."""
    min_tokens: int = 0
    """End ids are banned until the output has this many tokens."""
    end_ids: tuple[int, ...] = ()
    """Ids that end a request."""
    temperature: float = 0.0
    """Scale at which top-k, top-p and min-p see probabilities; the row itself is not scaled."""
    top_k: int = 0
    """Keeps the k likeliest tokens; 0 = all."""
    top_p: float = 1.0
    """Keeps the likeliest tokens until their sum reaches this share of what top-k left."""
    min_p: float = 0.0
    """Keeps tokens at least this fraction as likely as the likeliest."""

    def __post_init__(self) -> None:
        _require("vocab_size", self.vocab_size, self.vocab_size >= 1, "at least 1")
        for name, ids in (("logit_bias", self.logit_bias), ("end_ids", self.end_ids)):
            for token in ids:
                _require(f"{name} id", token, 0 <= token < self.vocab_size, f"0 to {self.vocab_size - 1}")
        for token, bias in self.logit_bias.items():
            _require(f"logit_bias of id {token}", bias, math.isfinite(bias), "a finite number")
        penalty = self.repetition_penalty
        _require("repetition_penalty", penalty, math.isfinite(penalty) and penalty > 0, "a finite number > 0")
        _require("presence_penalty", self.presence_penalty, math.isfinite(self.presence_penalty), "a finite number")
        _require("frequency_penalty", self.frequency_penalty, math.isfinite(self.frequency_penalty), "a finite number")
        _require("min_tokens", self.min_tokens, self.min_tokens >= 0, "0 or more")
        scale = self.temperature
        _require("temperature", scale, math.isfinite(scale) and scale >= 0, "a finite number >= 0")
        _require("top_k", self.top_k, self.top_k >= 0, "0 (all) or more")
        _require("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0, up to 1")
        _require("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "0 to 1")

    @property
    def idle(self) -> bool:
        """True when no row would ever change: the walk may then do without `controls`."""
        return not (self.logit_bias or self._penalises or (self.min_tokens and self.end_ids) or self._filters)

    @property
    def _penalises(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def _filters(self) -> bool:
        narrowed = 0 < self.top_k < self.vocab_size or self.top_p < 1.0 or self.min_p > 0.0
        return self.temperature > 0.0 and narrowed

    def apply(self, row: torch.Tensor, history: History) -> torch.Tensor:
        """Return the edited row, (V,) -> (V,) float64, as it stands before temperature; the input is untouched."""
        edited = row.double().clone()  # (V,) fp64
        if self.logit_bias:
            ids = torch.tensor(list(self.logit_bias), device=row.device)
            edited[ids] += torch.tensor(list(self.logit_bias.values()), dtype=edited.dtype, device=row.device)
        if self._penalises:
            self._penalise(edited, history)
        if len(history.generated) < self.min_tokens and self.end_ids:
            edited[list(self.end_ids)] = -torch.inf
        if self._filters:
            edited[~self._kept(edited)] = -torch.inf
        return edited

    def _penalise(self, row: torch.Tensor, history: History) -> None:
        """Edit `row` in place by the three penalties."""
        seen = np.unique(np.concatenate([history.prompt, history.generated])).astype(np.int64)
        if self.repetition_penalty != 1.0:
            at = torch.from_numpy(seen).to(row.device)
            old = row[at]
            row[at] = torch.where(old < 0, old * self.repetition_penalty, old / self.repetition_penalty)
        ids, counts = np.unique(history.generated.astype(np.int64), return_counts=True)
        at = torch.from_numpy(ids).to(row.device)
        times = torch.from_numpy(counts).to(row.device).double()
        row[at] -= self.presence_penalty + self.frequency_penalty * times

    def _kept(self, row: torch.Tensor) -> torch.Tensor:
        """(V,) bool: the tokens that top-k, then top-p, then min-p leave. Order: probability descending, then id."""
        prob, order = torch.softmax(row / self.temperature, dim=-1).sort(descending=True, stable=True)
        alive = torch.ones_like(prob, dtype=torch.bool)
        if self.top_k:
            alive[self.top_k :] = False
        if self.top_p < 1.0:
            prob_left = torch.where(alive, prob, 0.0)
            before = prob_left.cumsum(0) - prob_left
            alive &= before < self.top_p * prob_left.sum()
        alive &= prob >= self.min_p * prob[0]
        kept = torch.empty_like(alive)
        kept[order] = alive
        return kept


def _require(name: str, value: float, allowed: bool, expected: str) -> None:
    if not allowed:
        raise UsageError(f"{name} {value}: expected {expected}")
