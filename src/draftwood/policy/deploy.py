"""Mean masses against costs on a grid of widths: what a rule that fixes one width sees."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..core import MAX_NODES
from ..cost.profile import CostProfile
from ..errors import UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """One cost curve, one curve of mean sorted masses, and the widths that may be chosen."""

    widths: np.ndarray
    """(w,) int64 nodes, increasing."""
    phi: np.ndarray
    """(w,) float64 expected accepted drafts at each width."""
    next_gain: np.ndarray
    """(w,) float64 mass of the node after each width, 0 where there is none."""
    cost_s: np.ndarray
    """(w,) float64 seconds of a round with that many nodes, drafting included."""
    plain_s: float
    """C_plain."""
    c1: float
    """Seconds per row of the stopping rule, never negative."""

    @property
    def rate(self) -> np.ndarray:
        """(w,) expected tokens per second."""
        rate: np.ndarray = (1.0 + self.phi) / self.cost_s
        return rate

    @property
    def threshold(self) -> np.ndarray:
        """(w,) the least mass that the next node needs: tokens per second times seconds per row."""
        return self.rate * self.c1


def check_grid(grid: tuple[int, ...]) -> tuple[int, ...]:
    """Return `grid`; raises UsageError unless it is increasing and inside 0..MAX_NODES."""
    if not grid or any(left >= right for left, right in pairwise(grid)):
        raise UsageError(f"grid {','.join(map(str, grid))!r}: expected increasing widths")
    if grid[0] < 0 or grid[-1] > MAX_NODES:
        raise UsageError(f"grid {grid[0]} to {grid[-1]}: expected widths from 0 to {MAX_NODES}")
    return grid


def deployment(
    profile: CostProfile, masses: np.ndarray, widths: np.ndarray, *, context: int, curve: str, c1: float
) -> Deployment:
    """Lay mean sorted `masses` (g,) and the profile's `curve` at `context` over `widths` (w,).

    Missing masses count as 0. Source: CAST, Theorem 2.
    """
    costs = profile.round_cost(1, context, max_nodes=int(widths[-1]), curve=curve)
    padded = np.zeros(max(int(widths[-1]) + 1, len(masses)))
    padded[: len(masses)] = masses
    phi = np.concatenate([[0.0], np.cumsum(padded)])
    return Deployment(widths, phi[widths], padded[widths], costs.round_s[widths], costs.plain_s, c1)
