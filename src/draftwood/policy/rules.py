"""Arithmetic that several policies share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core import MAX_NODES
from ..errors import CostError, UsageError


class Best(NamedTuple):
    """A maximum and where it is first reached."""

    at: int
    value: float


def check_nodes(candidates: int, max_nodes: int) -> None:
    """Raise UsageError unless both lie in 1..MAX_NODES (`max_nodes` may be 0)."""
    if not 1 <= candidates <= MAX_NODES:
        raise UsageError(f"candidates {candidates}: expected 1 to {MAX_NODES}")
    if not 0 <= max_nodes <= MAX_NODES:
        raise UsageError(f"max_nodes {max_nodes}: expected 0 to {MAX_NODES}")


def expected_accepted(gains: np.ndarray, max_nodes: int) -> np.ndarray:
    """Return Phi(0..N), (N + 1,) float64 with N = min(len(gains), max_nodes)."""
    count = min(len(gains), max_nodes)
    phi = np.empty(count + 1)
    phi[0] = 0.0
    np.cumsum(gains[:count], out=phi[1:])
    return phi


def need_costs(name: str, round_cost_s: np.ndarray | None, count: int) -> np.ndarray:
    """Return the first `count` entries; raises CostError when there are none or too few."""
    if round_cost_s is None:
        raise CostError(f"policy {name} needs a cost profile: pass one with --profile, or measure it first")
    if len(round_cost_s) < count:
        raise CostError(f"{len(round_cost_s) - 1} nodes have a cost: expected at least {count - 1}")
    return round_cost_s[:count]


def best_ratio(phi: np.ndarray, cost_s: np.ndarray, base_tokens: float) -> Best:
    """Return the maximum of (base_tokens + phi) / cost_s, its first index."""
    ratio = (base_tokens + phi) / cost_s
    at = int(ratio.argmax())
    return Best(at, float(ratio[at]))


def best_surplus(phi: np.ndarray, cost_s: np.ndarray, rate: float) -> Best:
    """Return the maximum of phi - rate * cost_s, its first index."""
    surplus = phi - rate * cost_s
    at = int(surplus.argmax())
    return Best(at, float(surplus[at]))


def first_loss(phi: np.ndarray, cost_s: np.ndarray, base_tokens: float) -> int:
    """Return the index before the first step that does not raise (base_tokens + phi) / cost_s; the last if all do."""
    ratio = (base_tokens + phi) / cost_s
    stops = np.flatnonzero(ratio[1:] <= ratio[:-1])
    return int(stops[0]) if len(stops) else len(ratio) - 1
