"""Counter-based uniforms: noise as a function of (seed, completion, absolute position, counter), without a generator.

The mixing is the splitmix64 finaliser (Steele, Lea and Flood 2014) on 64-bit words: a key per position, then one word
per counter along a Weyl sequence that starts at the key. A word keeps its top 52 bits, so that a uniform is an odd
multiple of 2**-53: never 0, never 1, exact in float64. Words are integers, hence the same on every device.
"""

from __future__ import annotations

import torch

WORD = 2**64
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix(word: int) -> int:
    """One 64-bit word, well mixed."""
    word = (word ^ (word >> 30)) * MIX_1 % WORD
    word = (word ^ (word >> 27)) * MIX_2 % WORD
    return word ^ (word >> 31)


def position_key(seed: int, completion: int, pos: int, purpose: int = 0) -> int:
    """The 64-bit key of one absolute position; `purpose` keeps independent uses of one seed apart."""
    key = mix((purpose + GOLDEN) % WORD)
    for part in (seed, completion, pos):
        key = mix((key + GOLDEN * (part + 1)) % WORD)
    return key


def uniform(key: int, counter: int) -> float:
    """The uniform in (0, 1) of one counter under a position's key."""
    word = mix((key + GOLDEN * (counter + 1)) % WORD)
    return ((word >> 12) + 0.5) * 2.0**-52


def uniforms(keys: list[int], num_counters: int, device: torch.device) -> torch.Tensor:
    """Uniforms of the counters 0..num_counters-1 under every key, (len(keys), num_counters) float64 on `device`.

    torch has no unsigned 64-bit arithmetic; int64 products and sums wrap to the same bits, and a logical shift is an
    arithmetic one with the copies of the sign masked away.
    """
    start = torch.tensor([_signed(key + GOLDEN) for key in keys], dtype=torch.int64, device=device)
    counters = torch.arange(num_counters, dtype=torch.int64, device=device)
    word = start[:, None] + counters[None, :] * _signed(GOLDEN)
    word = (word ^ _shift(word, 30)) * _signed(MIX_1)
    word = (word ^ _shift(word, 27)) * _signed(MIX_2)
    word = word ^ _shift(word, 31)
    return (_shift(word, 12).to(torch.float64) + 0.5) * 2.0**-52  # (keys, counters) fp64


def _shift(word: torch.Tensor, bits: int) -> torch.Tensor:
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of an unsigned 64-bit word."""
    word %= WORD
    return word - WORD if word >= WORD // 2 else word
