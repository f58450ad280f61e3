"""The target's token at temperature > 0, by Gumbel-max with counter-based noise.

argmax over v of logit_v / T - log(-log u_v) is a draw from softmax(logit / T) when the u_v are independent uniforms.
Here u_v belongs to (seed, completion, absolute position, token id), so the draw depends on nothing else: the tree's
shape, the batch and the policy cannot change a seeded text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import UsageError
from ..kernel import compiled, first_call
from .uniform import GOLDEN, MIX_1, MIX_2, WORD, position_key, uniforms

MAX_ELEMENTS = 1 << 24
"""Scores held at once on an accelerator, so that float64 temporaries of wide trees stay at 128 MiB each."""

MAX_NOISE = 40.0
"""Above any noise: -log(-log u) < 36.8 for the largest u = 1 - 2**-53."""
LAST_BITS = (1 << 52) - 1

_GOLDEN, _MIX_1, _MIX_2 = np.uint64(GOLDEN), np.uint64(MIX_1), np.uint64(MIX_2)
_LOG_2 = math.log(2.0)


@compiled
def _gumbel_argmax(scaled: np.ndarray, start: np.uint64, likeliest: int) -> int:
    """The Gumbel-max choice of one row on a CPU, `scaled` (V,) float64, bit for bit that of `uniforms`.

    Almost no token needs its logarithms. With v = 1 - u, -log u >= v, so a token's noise is at most -log v: to gain
    `need` it must have v <= exp(-need), that is, v must start with so many zero bits. A token that lacks them cannot
    win. The likeliest token goes first, because then the bound bites from the start.
    """
    best = -1
    best_score = -np.inf
    for turn in range(-1, len(scaled)):
        token = likeliest if turn < 0 else turn
        value = scaled[token]
        need = best_score - value
        if turn == likeliest or value == -np.inf or need > MAX_NOISE:
            continue
        word = start + np.uint64(token) * _GOLDEN
        word = (word ^ (word >> np.uint64(30))) * _MIX_1
        word = (word ^ (word >> np.uint64(27))) * _MIX_2
        bits = np.int64((word ^ (word >> np.uint64(31))) >> np.uint64(12))  # u = (bits + 1/2) 2**-52
        if need > 0.0:
            zeros: int = min(int(need / _LOG_2) - 1, 52)  # one bit to spare
            if zeros > 0 and (LAST_BITS - bits) >> (52 - zeros) != 0:
                continue
        score = value - np.log(-np.log((bits + 0.5) * 2.0**-52))
        if score > best_score or (score == best_score and token < best):
            best = token
            best_score = score
    return best


@dataclass(frozen=True, slots=True)
class Gumbel:
    """Draws from softmax(logits / temperature), deterministic per (seed, completion, position)."""

    temperature: float
    seed: int
    completion: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise UsageError(f"temperature {self.temperature}: expected a finite number > 0 to sample")

    def __call__(self, logits: torch.Tensor, pos: np.ndarray) -> torch.Tensor:
        """Draw one token a row: (n, V) logits and (n,) positions of the drawn tokens -> (n,) int64, same device."""
        temperature = np.full(len(logits), self.temperature)
        return gumbel(logits, temperature, [position_key(self.seed, self.completion, int(at)) for at in pos])


def gumbel(logits: torch.Tensor, temperature: np.ndarray, keys: Sequence[int]) -> torch.Tensor:
    """Draw one token a row: (n, V) logits, (n,) temperatures above 0 and the rows' keys -> (n,) int64, same device.

    `keys` are `uniform.position_key` of each row's seed, completion and position.
    """
    if logits.device.type != "cpu":
        return _on_device(logits, temperature, keys)
    likeliest = logits.float().detach().numpy().argmax(axis=-1)
    scaled = _scaled(logits, temperature).detach().numpy()  # (n, V) fp64
    tokens = [
        _gumbel_argmax(row, np.uint64((key + GOLDEN) % WORD), int(first))
        for row, key, first in zip(scaled, keys, likeliest, strict=True)
    ]
    return torch.tensor(tokens, dtype=torch.int64)


def _scaled(logits: torch.Tensor, temperature: np.ndarray) -> torch.Tensor:
    """(n, V) float64, the likeliest token of a row at 0: noise would drown in logits of great size."""
    rows = logits.double()
    divisor = torch.from_numpy(temperature).to(logits.device)[:, None]
    return (rows - rows.amax(dim=-1, keepdim=True)).div_(divisor)


def _on_device(logits: torch.Tensor, temperature: np.ndarray, keys: Sequence[int]) -> torch.Tensor:
    """The same draw with tensors; siblings share a key, so noise is made once per request and depth."""
    distinct = list(dict.fromkeys(keys))
    place = {key: at for at, key in enumerate(distinct)}
    which = torch.tensor([place[key] for key in keys], device=logits.device)
    u = uniforms(distinct, logits.shape[-1], logits.device)
    noise = -torch.log(-torch.log(u))  # (depths, V) fp64
    step = max(1, MAX_ELEMENTS // logits.shape[-1])
    parts = [
        (_scaled(logits[at : at + step], temperature[at : at + step]) + noise[which[at : at + step]]).argmax(-1)
        for at in range(0, len(logits), step)
    ]
    return torch.cat(parts)


def warm_up() -> None:
    """Compile the sampling kernel, so that loading pays for it and not the first sampled round."""
    first_call(lambda: Gumbel(1.0, 0)(torch.zeros(1, 2), np.zeros(1, np.int64)))
