"""Steps of a cost curve: where to measure next in order to pin one, and which are pinned. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

LEAST_RISE = 0.04
LEAST_SPREADS = 3.0
_CONCENTRATED = 0.75  # share of a gap's rise that one half must hold for the rise to be a step rather than a slope
_STEEPER = 3.0  # times the usual seconds per row


class Gap(NamedTuple):
    """Two measured rows with nothing measured between them."""

    low_row: int
    high_row: int

    @property
    def middle(self) -> int:
        """The row that halves the gap."""
        return (self.low_row + self.high_row) // 2


class Curve(NamedTuple):
    """Medians and spreads by row."""

    seconds: dict[int, float]
    spread: dict[int, float]

    def rises(self, gap: Gap) -> bool:
        """True when the gap rises by more than LEAST_RISE and LEAST_SPREADS times its spread.

        Few repeats may agree by chance: the spread is that of its ends, at least the usual one of the whole curve.
        """
        rise, base_s = self.rise(gap), self.seconds[gap.low_row]
        usual = float(np.median([self.spread[row] / self.seconds[row] for row in self.seconds]))
        noise = max(self.spread[gap.low_row], self.spread[gap.high_row], usual * base_s)
        return rise > LEAST_RISE * base_s and rise > LEAST_SPREADS * noise

    def rise(self, gap: Gap) -> float:
        """Seconds from one end to the other."""
        return self.seconds[gap.high_row] - self.seconds[gap.low_row]


def rows_to_add(grid: Sequence[int], curve: Curve) -> list[int]:
    """Return the rows that halve every gap of `grid` in which a step is still looked for."""
    ends = [_narrowed(Gap(*gap), curve) for gap in pairwise(grid)]
    return [gap.middle for gap in ends if gap is not None and gap.high_row - gap.low_row > 1]


def pinned_steps(grid: Sequence[int], curve: Curve) -> tuple[int, ...]:
    """Return the rows s after which the cost jumps: neighbours s, s + 1 that rise far more than a usual row does."""
    slopes = [curve.rise(Gap(*gap)) / (gap[1] - gap[0]) for gap in pairwise(grid)]
    usual = max(float(np.median(slopes)), 0.0)
    ends = [_narrowed(Gap(*gap), curve) for gap in pairwise(grid)]
    return tuple(
        gap.low_row
        for gap in ends
        if gap is not None and gap.high_row - gap.low_row == 1 and curve.rise(gap) > _STEEPER * usual
    )


def _narrowed(gap: Gap, curve: Curve) -> Gap | None:
    """Follow the halves that hold most of the rise, as far as they are measured; None when there is no step."""
    if not curve.rises(gap):
        return None
    while gap.high_row - gap.low_row > 1 and gap.middle in curve.seconds:
        halves = Gap(gap.low_row, gap.middle), Gap(gap.middle, gap.high_row)
        half = max(halves, key=curve.rise)
        if curve.rise(half) < _CONCENTRATED * curve.rise(gap) or not curve.rises(half):
            return None
        gap = half
    return gap
