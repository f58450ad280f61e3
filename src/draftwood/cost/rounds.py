"""What a round costs, as the policies see it, and the factors that correct it while decoding."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from ..errors import CostError

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Predicted seconds of the coming round, as far as they are known before there are scores."""

    plain_s: float
    """C_plain: the rows that the round carries anyway (one for a lone request), nothing drafted."""
    draft_s: float
    """C_draft: one drafter pass for this round's requests."""
    round_s: np.ndarray
    """(max_nodes + 1,) float64: entry n is the whole round, drafting included, with n nodes verified."""

    def draft_share(self, num_nodes: int) -> float:
        """What part of a round's seconds the drafter's pass takes, when `num_nodes` nodes are verified."""
        return self.draft_s / float(self.round_s[min(num_nodes, len(self.round_s) - 1)])

    def without_draft(self) -> RoundCosts:
        """The same round where the drafter's costly pass is left out."""
        return RoundCosts(self.plain_s, 0.0, self.round_s - self.draft_s)


@dataclass(frozen=True, slots=True)
class LiveFactors:
    """How this machine runs now, relative to the profile; recorded with a round so that replay can read them."""

    base: float = 1.0
    """Multiplies C(1)."""
    slope: float = 1.0
    """Multiplies C(M) - C(1)."""
    draft: float = 1.0
    """Multiplies C_draft."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and MIN_FACTOR <= value <= MAX_FACTOR):
                raise CostError(f"cost factor {name} {value}: expected {MIN_FACTOR} to {MAX_FACTOR}")

    @property
    def relative_slope(self) -> float:
        """slope / base, what policies see: a common factor cancels."""
        return self.slope / self.base

    @property
    def relative_draft(self) -> float:
        """draft / base, what policies see."""
        return self.draft / self.base

    def to_json(self) -> dict[str, float]:
        """The three factors by name."""
        return asdict(self)


UNCORRECTED = LiveFactors()
